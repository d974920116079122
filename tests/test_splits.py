"""Parts of splits are random, disjoint and complete."""

import pytest
from collections_made import captions_of, contents, make_karpathy, write

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection


def keys_of(split):
    return {picture.key for picture in split.pictures}


@pytest.fixture
def forty(tmp_path):
    for number in range(40):
        write(tmp_path / "train" / f"c{number // 10}" / f"{number:02}.png", f"{number:02}")
    return tmp_path


def test_parts_are_random_disjoint_and_complete(forty):
    found = open_collection(forty, splits={"train": "train[:75%]", "test": "train[75%:]"})
    assert (len(found.train.pictures), len(found.test.pictures)) == (30, 10)
    assert len(keys_of(found.train) | keys_of(found.test)) == 40
    # Pictures are sorted by class, and yet each class is in both parts.
    assert set(found.train.labels.tolist()) == set(found.test.labels.tolist()) == {0, 1, 2, 3}
    assert contents(found.train) == [
        (number, int(number) // 10) for number in sorted(data for data, _ in contents(found.train))
    ]
    again = open_collection(forty, splits={"train": "train[:30]", "test": "train[30:40]"})
    assert keys_of(again.train) == keys_of(found.train)
    assert found.provenance["splits"] == "train: train[:75%], test: train[75%:]"
    # Fixed for ever: features that were extracted from a part stay comparable.
    part = open_collection(forty, splits={"train": "train[4:]", "test": "train[:4]"}).test
    assert [data for data, _ in contents(part)] == [b"08", b"12", b"18", b"21"]


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        ({}, "no test split; there are train"),
        ({"train": "train[:75%]", "test": "train[70%:]"}, "share pictures of train"),
        ({"test": "train[:1]"}, "share pictures of train"),
        ({"train": "train[:41]", "test": "train"}, "rows 0 to 41, but there are 40"),
        ({"train": "train[5:5]", "test": "train"}, "rows 5 to 5, but there are 40"),
        ({"train": "train[-1:]"}, "must be like"),
        ({"train": "train+dev"}, "no dev split"),
        ({"dev": "train"}, "splits must be of 'train' and 'test'"),
    ],
)
def test_wrong_parts_are_refused(forty, splits, complaint):
    with pytest.raises(IngestError, match=complaint):
        open_collection(forty, splits=splits)


def test_joined_splits_and_parts_of_captions(tmp_path):
    make_karpathy(tmp_path, restval=True)
    assert len(open_collection(tmp_path).train.pictures) == 3
    joined = open_collection(tmp_path, splits={"train": "train+restval"}).train
    expected = [(name.encode(), captions) for name, captions in sorted(captions_of("train"))]
    assert contents(joined) == [*expected, (b"more.png", ["one more"])]
    write(tmp_path / "collection.toml", '[splits]\ntrain = "restval"\n')
    assert contents(open_collection(tmp_path).train) == [(b"more.png", ["one more"])]
    two = open_collection(tmp_path, splits={"train": "train[:2]", "test": "train[2:]"})
    assert sorted(contents(two.train) + contents(two.test)) == expected
