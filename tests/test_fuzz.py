"""Mutated stores, configs and collections: refused with our own errors, or read and valid."""

import contextlib
import json
import random
import shutil

import numpy as np
import pytest
from collections_made import TOML as STATED
from collections_made import (
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
from stores import sign, tasks
from stores import write as write_small

from hmcl_jax._files import json_sha256
from hmcl_jax.continual import ConfigError
from hmcl_jax.continual.experiment import read_experiment, read_order
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection
from hmcl_jax.data.store import MANIFEST, NAME, StoreError, read_store

OUTSIDE = "../../../outside"
JUNK = [
    *(None, True, -1, 0, 3.5, 1e308, 2**31, 2**63, 10**30, 10**400, "", "O", "|O8", "\ud800"),
    *(OUTSIDE, "/etc/passwd", "a\x00b", "x" * 5000, [], {}, [[]], [10**12, 10**12], {"a": {}}),
]
TOML = [
    *("-1", "0", "1e308", "nan", "inf", "-inf", "true", '""', "[]", "{}", "[[1]]", "1979-05-27"),
    *("9" * 400, "9" * 5000, "0x" + "f" * 5000, "2147483648", '"\\u0000"'),
    *("[" * 5000, "[" * 40 + "]" * 40, f'"{OUTSIDE}"', '"/dev/zero"', '"/etc/passwd"'),
    *(f'"{"x" * 5000}"', "{a = {b = 1}}", "'é'"),
]
BASE = """
stream = "pocket"
seeds = [1, 2]
order = "canonical"
[train]
batch = 64
step = "epoch"
weight_decay = 0.1
on_bad = "stop"
spike = 10.0
mesh = "1x1"
reset_optimizer = true
classification = {epochs = 2, learning_rate = 0.1}
[methods.vanilla]
[methods.early]
method = "hmcl_mr"
placement = "pre"
beta = 0.1
[methods.early.train]
batch = 32
[methods.gem]
margin = 0.5
"""


def mutate_bytes(chance, data):
    """A flipped bit, a cut, an insertion, or a stretch of noise."""
    at = chance.randrange(len(data) + 1)
    kind = chance.randrange(4)
    if kind == 0 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    noise = chance.randbytes(chance.randint(1, 40))
    return data[:at] + noise + data[at if kind == 2 else at + len(noise) :]


def mutate_tree(chance, tree):
    """A JSON value with one random part replaced or removed."""
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(sorted(tree))
        if chance.random() < 0.15:
            return {k: v for k, v in tree.items() if k != key}
        if chance.random() < 0.05:
            return {OUTSIDE if k == key else k: v for k, v in tree.items()}
        return {**tree, key: mutate_tree(chance, tree[key])}
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        at = chance.randrange(len(tree))
        return [*tree[:at], mutate_tree(chance, tree[at]), *tree[at + 1 :]]
    return chance.choice(JUNK)


def as_json(tree):
    return json.dumps(tree).encode("utf8", "surrogatepass")


def content(store):
    """All that is in a store."""
    arrays = [{name: x.tolist() for name, x in task.arrays.items()} for task in store]
    fields = [{**vars(task), "arrays": None} for task in store]
    return [arrays, fields, {key: value for key, value in vars(store).items() if key != "tasks"}]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store, plain or as int8, as a directory or one file, and what is in it."""
    folder, wholes = tmp_path_factory.mktemp("whole"), {}
    for features in (None, "int8"):
        for form in ("", ".zip"):
            whole = folder / f"whole-{features}{form}"
            write_small(whole, tasks(np.random.default_rng(0)), features=features)
            wholes[whole] = content(read_store(whole))
    return wholes


def damaged_store(chance, wholes, victim):
    """Reads a damaged store, half of the time with checksums that are right all the same."""
    whole, signed = chance.choice(list(wholes)), False
    if whole.is_dir():
        shutil.copytree(whole, victim)
        files = sorted(path for path in victim.rglob("*") if path.is_file())
        target = victim / MANIFEST if chance.random() < 0.6 else chance.choice(files)
    else:
        target = victim
        shutil.copy(whole, victim)
    data = target.read_bytes()
    if target.name == MANIFEST and chance.random() < 0.8:
        manifest = mutate_tree(chance, json.loads(data))
        if isinstance(manifest, dict) and chance.random() < 0.8:
            signed = True
            try:
                manifest["sha256"] = json_sha256(manifest)
            except ValueError:  # not even JSON
                manifest["sha256"] = ""
        target.write_bytes(as_json(manifest))
    else:
        target.write_bytes(mutate_bytes(chance, data))
        if target.suffix == ".npy" and chance.random() < 0.5:
            signed = True
            sign(victim)
    verify = chance.random() < 0.5
    store = read_store(victim, verify)
    store.validate()
    store.describe()
    assert all(NAME.fullmatch(task.name) for task in store)
    assert signed or not verify or content(store) == wholes[whole]


def damaged_config(chance, _, victim):
    """Reads a config file with a damaged line, and single settings as of the command line."""
    lines, overrides = BASE.strip().splitlines(), []
    at = chance.randrange(len(lines))
    key, equals, _ = lines[at].partition(" = ")
    kind = chance.random()
    if kind < 0.5 and equals:
        lines[at] = f"{key} = {chance.choice(TOML)}"
    elif kind < 0.6:
        lines[at] = f'[methods."{OUTSIDE}"]\nmethod = "vanilla"'
    elif kind < 0.7:
        lines[at] = f"{key}x = {chance.choice(TOML)}"
    elif kind < 0.8:
        del lines[at]
    elif kind < 0.9:
        place = chance.choice(["train.batch", "train", "methods.gem.margin", "seeds", "order"])
        overrides = [f"{place}={chance.choice(TOML)}"]
    data = "\n".join(lines).encode()
    victim.write_bytes(mutate_bytes(chance, data) if kind >= 0.9 else data)
    experiment = read_experiment(victim, overrides)
    read_order(experiment.order, ["canonical"])
    assert all("/" not in name for name in experiment.methods)


def fuzz(case, seed, count, wholes, folder):
    inside = folder / "a" / "b" / "inside"
    inside.mkdir(parents=True)
    refused = 0
    for number in range(count):
        victim = inside / f"case{number}"
        try:
            case(random.Random(seed * 1_000_003 + number), wholes, victim)
        except (StoreError, ConfigError):
            refused += 1
        if victim.is_dir():
            shutil.rmtree(victim)
        else:
            victim.unlink(missing_ok=True)
    assert refused > count / 3
    names = sorted(path.name for path in folder.rglob("*"))
    assert names == ["a", "b", "inside"], "something was written outside"


@pytest.mark.filterwarnings("ignore")  # of numpy, on numbers that only damage brings
@pytest.mark.parametrize(
    ("seed", "count"), [(0, 200), pytest.param(1, 3200, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("case", [damaged_store, damaged_config])
def test_mutations(tmp_path, stores, case, count, seed):
    fuzz(case, seed, count, stores, tmp_path)


def check(collection, split):
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


def mutate_header(chance, data):
    """A tar file with a random field, mostly with the right checksum, so that it is believed."""
    data = bytearray(data)
    block = 512 * chance.randrange(len(data.rstrip(b"\x00")) // 512 + 1)
    start, length = chance.choice([(0, 100), (0, 2), (124, 12), (148, 2), (156, 1), (257, 8)])
    field = chance.randbytes(length)
    if start == 124 and chance.random() < 0.5:
        field = b"\x80" + field[1:]  # a number in base 256
    elif start == 156:
        field = bytes([chance.choice(b"01234567gxLKSVDNM")])
    data[block + start : block + start + length] = field
    if start != 148 and chance.random() < 0.7:
        data[block + 148 : block + 156] = b" " * 8
        data[block + 148 : block + 156] = b"%06o\x00 " % sum(data[block : block + 512])
    return bytes(data)


def is_refused(root):
    try:
        found = open_collection(root)
    except IngestError:
        return True
    check(found, found.train)
    check(found, found.test)
    return False


@pytest.mark.parametrize(
    ("build", "file"),
    [
        (make_caption_table, "train.csv"),
        (make_label_table, "train.csv"),
        (lambda root: make_label_table(root, "jsonl"), "train.jsonl"),
        (make_coco, "annotations/captions_train2017.json"),
        (make_karpathy, "dataset_made.json"),
        (make_label_shards, "train/0.tar"),
        (make_label_shards, "zeroshot_classification_templates.txt"),
        (make_label_shards, "train/nshards.txt"),
        (make_caption_shards, "test/0.tar"),
        (lambda root: make_caption_shards(root, "json"), "test/0.tar"),
        (make_folders, "collection.toml"),
        (make_folders, "classnames.txt"),
    ],
)
def test_damaged_collections(tmp_path, build, file):
    chance = random.Random(0)
    root = build(tmp_path / "set")
    if build is make_folders:
        write(root / file, STATED if file.endswith("toml") else "a\nb\nc\nd\n")
    whole = (root / file).read_bytes()
    times, refused = 150 if file.endswith(".tar") else 50, 0
    for trial in range(times):
        data = mutate_bytes(chance, whole)
        if file.endswith(".tar") and trial % 3:  # most of a tar file is zeros
            data = mutate_header(chance, whole)
        elif file.endswith(".json") and trial % 2:
            data = json.dumps(mutate_tree(chance, json.loads(whole))).encode()
        (root / file).write_bytes(data)
        refused += is_refused(root)
    assert 0 < refused < times
