"""Collections of pictures: every layout gives the same data, and what is wrong is named."""

import os
import shutil

import numpy as np
import pytest
from collections_made import (
    CLASSIFICATION,
    IN_ORDER,
    NAMES,
    RETRIEVAL,
    captions_of,
    contents,
    labelled,
    make_folders,
    make_karpathy,
    make_label_shards,
    make_label_table,
    write,
    write_table,
    write_tar,
)

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import LAYOUTS, distinct_names, open_collection, recognise


@pytest.mark.parametrize("layout", CLASSIFICATION)
def test_classification_is_the_same_in_every_layout(tmp_path, layout):
    found = open_collection(CLASSIFICATION[layout](tmp_path))
    assert (found.kind, found.fit, found.classes) == ("classification", "crop", NAMES)
    for split, rows in labelled().items():
        part = getattr(found, split)
        assert contents(part) == [(data, IN_ORDER.index(name)) for _, name, data in sorted(rows)]
        assert part.labels.dtype == np.int32
        assert (part.captions, part.pairs) == ((), None)
        keys = [picture.key for picture in part.pictures]
        assert len(set(keys)) == len(keys)
        assert all(key.startswith((f"{split}/", f"all/{split}/")) for key in keys)
    templates = ("a {}.", "the {}.") if layout == "tar" else ("a photo of a {}.",)
    assert found.prompts == templates


@pytest.mark.parametrize("layout", RETRIEVAL)
def test_retrieval_is_the_same_in_every_layout(tmp_path, layout):
    found = open_collection(RETRIEVAL[layout](tmp_path))
    assert (found.kind, found.fit, found.classes) == ("retrieval", "squash", ())
    assert found.prompts == ()
    for split in ("train", "test"):
        part = getattr(found, split)
        assert contents(part) == [(name.encode(), own) for name, own in sorted(captions_of(split))]
        assert part.labels is None
        assert part.pairs.dtype == np.int32
        assert part.pairs.tolist() == [[0, 0], [1, 1], [1, 2], [2, 3], [2, 4], [2, 5]]


def test_opening_reads_and_stats_no_picture(tmp_path, monkeypatch):
    make_folders(tmp_path)
    looked_at = []
    for call in ("stat", "lstat", "open"):
        real = getattr(os, call)

        def spy(path, *args, real=real, **more):
            looked_at.append(str(path))
            return real(path, *args, **more)

        monkeypatch.setattr(os, call, spy)
    pictures = open_collection(tmp_path).train.pictures
    assert not [path for path in looked_at if path.endswith(".jpg")]
    monkeypatch.undo()
    assert len(pictures) == 12
    assert pictures[-1].read() == pictures[11].read()
    with pytest.raises(IndexError):
        pictures[12]


def test_other_files_are_ignored_and_counted(tmp_path):
    make_folders(tmp_path)
    for name in ("cat/.0.jpg", "cat/notes.txt", "list.csv", ".cache/x.jpg", "cat/more/1.jpg"):
        write(tmp_path / "train" / name, "x")
    found = open_collection(tmp_path)
    assert found.provenance["ignored"] == "5 files"
    assert len(found.train.pictures) == 12
    shards = make_label_shards(tmp_path / "shards")
    write_tar(shards / "test" / "1.tar", [("a.cls", b"0"), ("a.jpg", b"x"), ("a.npy", b"")])
    assert open_collection(shards).provenance["ignored"] == "1 file"


def test_names_of_files_and_folders(tmp_path):
    make_folders(tmp_path)
    (tmp_path / "train" / "cat" / "0.jpg").rename(tmp_path / "train" / "cat" / "0.JPEG")
    (tmp_path / "test").rename(tmp_path / "validation")
    found = open_collection(tmp_path)
    assert "train/cat/0.JPEG" in [picture.key for picture in found.train.pictures]
    assert found.test.pictures[0].key.startswith("validation/")
    shutil.copytree(tmp_path / "validation", tmp_path / "val")
    assert open_collection(tmp_path).test.pictures[0].key.startswith("val/")


def test_labels_are_names_or_rows_of_stated_classes(tmp_path):
    for split in ("train", "test"):
        for number in range(3):
            write(tmp_path / f"{split}{number}.png", "x")

    def opened(labels, classes=None):
        for split in ("train", "test"):
            rows = [{"image": f"{split}{i}.png", "label": v} for i, v in enumerate(labels)]
            write_table(tmp_path / f"{split}.jsonl", rows)
        (tmp_path / "classnames.txt").unlink(missing_ok=True)
        if classes:
            write(tmp_path / "classnames.txt", "\n".join(classes))
        found = open_collection(tmp_path, "x")
        return found.classes, found.train.labels.tolist()

    assert opened([10, 9, 2]) == (("2", "9", "10"), [2, 1, 0])
    assert opened(["b", "c", "a"]) == (("a", "b", "c"), [1, 2, 0])
    assert opened([2, 0, 1], ["u", "v", "w"]) == (("u", "v", "w"), [2, 0, 1])
    assert opened(["4", "10", "3"], ["10", "3", "4"]) == (("10", "3", "4"), [2, 0, 1])
    assert opened([0, 1, 2], ["m", "m", "w"]) == (("m", "m", "w"), [0, 1, 2])
    assert opened(["007", "7", "x"])[0] == ("007", "7", "x")
    assert distinct_names(("a", "a", "a (2)", "a")) == ("a", "a (3)", "a (2)", "a (4)")
    for labels, wrong, classes in (
        (["m", "m", "w"], "picture train0.png has the label 'm'", ["m", "m", "w"]),
        ([0, 1, 3], "without a training picture: w", ["u", "v", "w"]),
    ):
        with pytest.raises(IngestError, match=wrong):
            opened(labels, classes)
    opened(["a", "b", "c"])
    write_table(tmp_path / "test.jsonl", [{"image": "test1.png", "label": "d"}])
    with pytest.raises(IngestError, match=r"test1\.png has the label 'd'"):
        open_collection(tmp_path, "x")


def test_stated_class_names_rename_the_folders_in_order(tmp_path):
    make_folders(tmp_path)
    write(tmp_path / "classnames.txt", "w\nx\ny\nz\n\n")
    assert open_collection(tmp_path).classes == ("w", "x", "y", "z")
    write(tmp_path / "classnames.txt", "w\nx\ny\n")
    with pytest.raises(IngestError, match=r"4 sorted class folders .*got w, x, y"):
        open_collection(tmp_path)
    (tmp_path / "classnames.txt").unlink()
    for split in ("train", "test"):
        write(tmp_path / split / "barn owl" / "1.jpg", "x")
    with pytest.raises(IngestError, match="got Zebra, barn owl, barn owl"):
        open_collection(tmp_path)


def test_unknown_and_ambiguous_layouts(tmp_path):
    with pytest.raises(IngestError, match="nowhere' must be the folder"):
        open_collection(tmp_path / "nowhere")
    write(tmp_path / "odd" / "readme", "x")
    with pytest.raises(IngestError, match=r"folders none and the files readme") as caught:
        open_collection(tmp_path / "odd")
    for layout in (*LAYOUTS, "features"):
        assert layout in str(caught.value)
    both = make_label_table(make_folders(tmp_path / "both"))
    with pytest.raises(IngestError, match="may be table or folders; say which with layout="):
        open_collection(both)
    assert recognise(make_label_shards(tmp_path / "shards")) == "webdataset"
    assert open_collection(both, layout="folders").train.pictures[0].key.startswith("train/")
    for layout, complaint in (
        ("features", r"got 'features'(.|\n)*for read_features"),
        ("coco", "there is no train split"),
        ("karpathy", r"one dataset_<name>\.json, got 0"),
    ):
        with pytest.raises(IngestError, match=complaint):
            open_collection(both, layout=layout)


def test_folders_with_other_classes_or_no_pictures(tmp_path):
    make_folders(tmp_path)
    write(tmp_path / "test" / "cow" / "1.jpg", "x")
    shutil.rmtree(tmp_path / "test" / "cat")
    with pytest.raises(IngestError, match="only one split has classes cat, cow"):
        open_collection(tmp_path)
    for file in (make_folders(tmp_path / "c") / "test").rglob("*.jpg"):
        file.unlink()
    with pytest.raises(IngestError, match=r"test is rows 0 to 0, but there are 0 pictures"):
        open_collection(tmp_path / "c")


@pytest.fixture
def forty(tmp_path):
    for number in range(40):
        write(tmp_path / "train" / f"c{number // 10}" / f"{number:02}.png", f"{number:02}")
    return tmp_path


def test_parts_are_random_disjoint_and_complete(forty):
    found = open_collection(forty, splits={"train": "train[:75%]", "test": "train[75%:]"})
    assert (len(found.train.pictures), len(found.test.pictures)) == (30, 10)
    train, test = contents(found.train), contents(found.test)
    assert len({data for data, _ in train + test}) == 40
    # Pictures are sorted by class, and yet each class is in both parts.
    assert set(found.train.labels.tolist()) == set(found.test.labels.tolist()) == {0, 1, 2, 3}
    assert train == [(number, int(number) // 10) for number, _ in sorted(train)]
    again = open_collection(forty, splits={"train": "train[:30]", "test": "train[30:40]"})
    assert contents(again.train) == train
    assert found.provenance["splits"] == "train: train[:75%], test: train[75%:]"
    # Fixed for ever: features that were extracted from a part stay comparable.
    part = open_collection(forty, splits={"train": "train[4:]", "test": "train[:4]"}).test
    assert [data for data, _ in contents(part)] == [b"08", b"12", b"18", b"21"]


@pytest.mark.parametrize(
    ("splits", "complaint"),
    [
        ({}, "no test split, but train"),
        ({"train": "train[:75%]", "test": "train[70%:]"}, "share pictures of train"),
        ({"train": "train[:41]", "test": "train"}, "rows 0 to 41, but there are 40"),
        ({"train": "train[-1:]"}, "must be like"),
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
