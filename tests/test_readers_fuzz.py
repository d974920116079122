"""Random damage gives an IngestError or a collection that is valid; never another exception."""

import contextlib
import json
import random

import numpy as np
import pytest
from collections_made import (
    TOML,
    contents,
    make_caption_shards,
    make_caption_table,
    make_coco,
    make_folders,
    make_karpathy,
    make_label_shards,
    make_label_table,
    write,
)
from fuzzing import mutate_bytes, mutate_tree

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection


def stated(root, file="collection.toml", text=TOML):
    write(make_folders(root) / file, text)
    return root


def check(split, collection):
    """Everything that must hold of a split, and that its pictures can be read or are refused."""
    count = len(split.pictures)
    assert count
    if collection.kind == "classification":
        assert split.labels.shape == (count,)
        assert 0 <= split.labels.min() <= split.labels.max() < len(collection.classes)
    else:
        assert split.pairs.min() >= 0
        assert set(split.pairs[:, 0]) == set(range(count))
        assert set(split.pairs[:, 1]) == set(range(len(split.captions)))
        assert all(text.strip() == text != "" for text in split.captions)
        "".join(split.captions).encode()
    assert len({picture.key for picture in split.pictures}) == count
    with contextlib.suppress(IngestError):
        contents(split)


@pytest.mark.parametrize(
    ("build", "file"),
    [
        (make_caption_table, "train.csv"),
        (lambda root: make_caption_table(root, "jsonl"), "test.jsonl"),
        (make_label_table, "train.csv"),
        (lambda root: make_label_table(root, "jsonl"), "train.jsonl"),
        (make_coco, "annotations/captions_train2017.json"),
        (make_karpathy, "dataset_made.json"),
        (make_label_shards, "train/0.tar"),
        (make_label_shards, "zeroshot_classification_templates.txt"),
        (make_label_shards, "train/nshards.txt"),
        (make_caption_shards, "test/0.tar"),
        (lambda root: make_caption_shards(root, "json"), "test/0.tar"),
        (stated, "collection.toml"),
        (lambda root: stated(root, "classnames.txt", "a\nb\nc\nd\n"), "classnames.txt"),
    ],
)
def test_damaged_collections(tmp_path, build, file):
    chance = random.Random(0)
    root = build(tmp_path / "set")
    whole = (root / file).read_bytes()
    refused = 0
    for trial in range(100):
        data = mutate_bytes(chance, whole)
        if file.endswith(".tar") and trial % 2:  # most of a tar file is zeros; change its headers
            blocks = len(whole.rstrip(b"\x00")) // 512 + 1
            field = chance.choice([0, 1, 124, 130, 148, 156, 257, 345])
            at = 512 * chance.randrange(blocks) + field
            data = whole[:at] + chance.randbytes(2) + whole[at + 2 :]
        elif file.endswith(".json") and trial % 2:
            data = json.dumps(mutate_tree(chance, json.loads(whole))).encode()
        (root / file).write_bytes(data)
        try:
            found = open_collection(root)
        except IngestError:
            refused += 1
            continue
        check(found.train, found)
        check(found.test, found)
    assert 0 < refused < 100


def test_tar_headers_with_right_checksums(tmp_path):
    """Headers with random fields and the right checksum, so that they are believed."""
    rng = np.random.default_rng(1)
    root = make_label_shards(tmp_path / "set")
    whole = (root / "train" / "0.tar").read_bytes()
    fields = {"name": (0, 100), "size": (124, 12), "type": (156, 1), "magic": (257, 8)}
    refused = 0
    for trial in range(150):
        data = bytearray(whole)
        block = 1024 * int(rng.integers(8))
        start, length = fields[rng.choice(sorted(fields))]
        if trial % 3 == 0 and start == 124:
            data[block + 124 : block + 136] = b"\x80" + rng.bytes(11)  # a number in base 256
        elif trial % 3 == 1 and start == 156:
            data[block + 156] = rng.choice(list(b"01234567gxLKSVDNM"))
        else:
            data[block + start : block + start + length] = rng.bytes(length)
        data[block + 148 : block + 156] = b" " * 8
        total = sum(data[block : block + 512])
        data[block + 148 : block + 156] = b"%06o\x00 " % total
        (root / "train" / "0.tar").write_bytes(bytes(data))
        try:
            found = open_collection(root)
        except IngestError:
            refused += 1
            continue
        check(found.train, found)
    assert refused > 100
