"""The paper's data sets: sizes, orders and prompts; and collections that are not as large."""

import dataclasses
import re

import pytest
from collections_made import make_caption_table, write

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection
from hmcl_jax.data.suites import ORDERS, SUITES, Expected, check_counts, open_expected

SUITE = SUITES["hmcl16"]
BY_NAME = {expected.name: expected for expected in SUITE}
# The paper's table of data sets: classes, train, test; and the number of prompts.
TABLE = {
    "FGVC Aircraft": (100, 3334, 3333, 2),
    "Caltech-101": (102, 2448, 6084, 34),
    "ImageNet-1K": (1000, 1281167, 50000, 7),
    "CIFAR-10": (10, 45000, 10000, 18),
    "CIFAR-100": (100, 45000, 10000, 18),
    "CLEVR": (8, 4500, 5000, 1),
    "Country211": (211, 31650, 21100, 5),
    "DTD": (47, 1880, 1880, 6),
    "EuroSAT": (10, 5000, 5000, 3),
    "Flowers-102": (102, 1020, 6149, 1),
    "Food-101": (101, 68175, 25250, 2),
    "MNIST": (10, 48000, 10000, 1),
    "PCAM": (2, 262144, 32768, 1),
    "SST-2": (2, 6920, 1821, 1),
    "COCO": (0, 118287, 5000, 0),
    "Flickr30K": (0, 29000, 1000, 0),
}


def test_the_table_of_the_paper():
    assert len(SUITE) == 16
    assert {e.title: (e.classes, e.train, e.test, len(e.prompts)) for e in SUITE} == TABLE
    names = [name for expected in SUITE for name in (expected.name, *expected.aliases)]
    assert len(set(names)) == len(names)


def test_the_orders_of_the_paper():
    assert [expected.title for expected in SUITE] == [
        *("FGVC Aircraft", "Caltech-101", "ImageNet-1K", "CIFAR-10", "CIFAR-100", "CLEVR", "COCO"),
        *("Country211", "DTD", "EuroSAT", "Flickr30K", "Food-101", "MNIST", "Flowers-102", "PCAM"),
        "SST-2",
    ]
    orders = ORDERS["hmcl16"]
    for order in orders.values():
        assert sorted(order) == sorted(BY_NAME)
    chosen = {key: [order[0], order[7], order[-1]] for key, order in orders.items()}
    assert chosen == {
        "seq2": ["flickr30k", "coco", "imagenet"],
        "seq3": ["dtd", "eurosat", "sst2"],
    }


def test_prompts():
    for expected in SUITE:
        assert len(set(expected.prompts)) == len(expected.prompts)
        for prompt in expected.prompts:
            assert re.fullmatch(r"(?! )[^{}A-Z]*{}[^{}A-Z]*\.", prompt)
            assert "  " not in prompt
    assert {"pics : a origami {}.", "pics : art of the {}."} <= set(BY_NAME["imagenet"].prompts)
    assert {"a photo of the {}.", "a photo of a big {}."} <= set(PROMPTS)
    assert BY_NAME["mnist"].prompts == ('a photo of the number: "{}".',)


def made(root, name, classes=3, train=4, test=2, splits=("train", "test")):
    for split, count in zip(splits, (train, test), strict=True):
        for label in range(classes):
            for number in range(count):
                write(root / name / split / f"c{label}" / f"{number}.jpg", f"{label} {number}")
    return root / name


PROMPTS = BY_NAME["cifar10"].prompts
SMALL = Expected("cifar10", "CIFAR-10", 12, 6, "made", 3, ("wds_cifar10",), prompts=PROMPTS)


def test_counts_that_differ_are_all_named(tmp_path):
    check_counts(open_collection(made(tmp_path, "cifar10")), SMALL)
    wrong = open_collection(made(tmp_path, "other", classes=2, train=5, test=1))
    message = r"CIFAR-10 of the suite: classes: 3.*2.*: 12.*10 found; .*: 6.*2 .*train: train"
    with pytest.raises(IngestError, match=message):
        check_counts(wrong, SMALL)
    captions = open_collection(make_caption_table(tmp_path / "captions"))
    with pytest.raises(IngestError, match="kind: classification expected, retrieval found"):
        check_counts(captions, SMALL)
    check_counts(captions, Expected("captions", "Captions", 3, 3, "made"))  # counts pictures


def test_collections_are_found_by_name_or_alias(tmp_path):
    with pytest.raises(IngestError, match="one of cifar10, wds_cifar10; it has none"):
        open_expected(tmp_path, SMALL)
    made(tmp_path, "wds_cifar10")
    found = open_expected(tmp_path, SMALL)
    assert (found.name, found.fit) == ("cifar10", "crop")
    assert len(found.prompts) == 18
    made(tmp_path, "cifar10")
    with pytest.raises(IngestError, match="several folders of CIFAR-10: cifar10, wds_cifar10"):
        open_expected(tmp_path, SMALL)


def test_published_sets_are_cut_to_the_protocol(tmp_path):
    made(tmp_path, "cifar10", train=4, splits=("train", "val"))
    nine = dataclasses.replace(SMALL, train=9, train_split="train[:75%]")
    found = open_expected(tmp_path, nine)
    assert len(found.train.pictures) == 9
    assert found.provenance["splits"] == "train: train[:75%], test: test"
    whole = open_expected(tmp_path, dataclasses.replace(nine, train=12))
    assert whole.provenance["splits"] == "train: train, test: test"
    splits = {"train_split": "train[:5]", "test_split": "train[7:]"}
    one = dataclasses.replace(nine, train=5, test=5, **splits)
    assert open_expected(tmp_path, one).test.pictures[0].key.startswith("train/")
    with pytest.raises(IngestError, match=r"8 expected, 9 found(.|\n)*8 expected, 12 found"):
        open_expected(tmp_path, dataclasses.replace(nine, train=8))
    write(tmp_path / "cifar10" / "collection.toml", '[splits]\ntrain = "train[:50%]"\n')
    with pytest.raises(IngestError, match=r"9 expected, 6 found \(splits train: train\[:50%\]"):
        open_expected(tmp_path, nine)
