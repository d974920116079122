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
    write_tar,
)

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import distinct_names, open_collection


@pytest.mark.parametrize("layout", CLASSIFICATION)
def test_classification_is_the_same_in_every_layout(tmp_path, layout):
    found = open_collection(CLASSIFICATION[layout](tmp_path))
    assert (found.kind, found.fit, found.classes) == ("classification", "crop", NAMES)
    for split, rows in labelled().items():
        part = getattr(found, split)
        expected = [(data, IN_ORDER.index(name)) for _, name, data in sorted(rows)]
        assert contents(part) == expected
        assert part.labels.dtype == np.int32
        assert (part.captions, part.pairs) == ((), None)
        keys = [picture.key for picture in part.pictures]
        assert len(set(keys)) == len(keys)
        assert all(key.startswith((f"{split}/", f"all/{split}/")) for key in keys)
    expected = ("a {}.", "the {}.") if layout == "tar" else ("a photo of a {}.",)
    assert found.prompts == expected


@pytest.mark.parametrize("layout", RETRIEVAL)
def test_retrieval_is_the_same_in_every_layout(tmp_path, layout):
    found = open_collection(RETRIEVAL[layout](tmp_path))
    assert (found.kind, found.fit, found.classes) == ("retrieval", "squash", ())
    assert found.prompts == ()
    for split in ("train", "test"):
        part = getattr(found, split)
        expected = [(name.encode(), captions) for name, captions in sorted(captions_of(split))]
        assert contents(part) == expected
        assert part.labels is None
        assert part.pairs.dtype == np.int32
        assert part.pairs.tolist() == [[0, 0], [1, 1], [1, 2], [2, 3], [2, 4], [2, 5]]


def test_pictures_are_a_sequence_that_makes_them_when_asked(tmp_path):
    pictures = open_collection(make_folders(tmp_path)).train.pictures
    assert len(pictures) == 12
    assert pictures[-1] == pictures[11]
    with pytest.raises(IndexError):
        pictures[12]
    assert list(pictures)[5].read() == pictures[5].read()


def test_opening_reads_and_stats_no_picture(tmp_path, monkeypatch):
    make_folders(tmp_path)
    looked_at = []
    for call in ("stat", "lstat", "open"):
        real = getattr(os, call)

        def spy(path, *args, real=real, **more):
            looked_at.append(str(path))
            return real(path, *args, **more)

        monkeypatch.setattr(os, call, spy)
    opened = open_collection(tmp_path)
    assert not [path for path in looked_at if path.endswith(".jpg")]
    monkeypatch.undo()
    assert len(opened.train.pictures) == 12


def test_hidden_files_and_other_files_are_ignored_and_counted(tmp_path):
    make_folders(tmp_path)
    for name in ("cat/.0.jpg", "cat/notes.txt", "list.csv", ".cache/x.jpg"):
        write(tmp_path / "train" / name, "x")
    write(tmp_path / "train" / "cat" / "more" / "1.jpg", "x")
    found = open_collection(tmp_path)
    assert found.provenance["ignored"] == "4 files, 1 folder"
    assert len(found.train.pictures) == 12
    assert found.provenance["layout"] == "folders"
    shards = make_label_shards(tmp_path / "shards")
    write_tar(shards / "test" / "1.tar", [("a.cls", b"0"), ("a.jpg", b"x"), ("a.npy", b"")])
    assert open_collection(shards).provenance["ignored"] == "1 file"


def test_suffixes_in_capitals_and_test_folders_by_other_names(tmp_path):
    make_folders(tmp_path)
    (tmp_path / "train" / "cat" / "0.jpg").rename(tmp_path / "train" / "cat" / "0.JPEG")
    (tmp_path / "test").rename(tmp_path / "validation")
    found = open_collection(tmp_path)
    assert "train/cat/0.JPEG" in [p.key for p in found.train.pictures]
    assert found.test.pictures[0].key.startswith("validation/")
    shutil.copytree(tmp_path / "validation", tmp_path / "val")
    assert open_collection(tmp_path).test.pictures[0].key.startswith("val/")


# --- splits


def keys_of(split):
    return {picture.key for picture in split.pictures}


def test_parts_are_random_disjoint_and_complete(tmp_path):
    for number in range(40):
        write(tmp_path / "train" / f"c{number // 10}" / f"{number:02}.png", f"{number:02}")
    with pytest.raises(IngestError, match=r"there is no test split .*there are train"):
        open_collection(tmp_path)
    found = open_collection(tmp_path, splits={"train": "train[:75%]", "test": "train[75%:]"})
    assert len(found.train.pictures) == 30
    assert len(found.test.pictures) == 10
    assert len(keys_of(found.train) | keys_of(found.test)) == 40
    # Pictures are sorted by class, and yet each class is in both parts.
    assert set(found.train.labels.tolist()) == set(found.test.labels.tolist()) == {0, 1, 2, 3}
    assert contents(found.train) == [
        (number, int(number) // 10) for number in sorted(data for data, _ in contents(found.train))
    ]
    again = open_collection(tmp_path, splits={"train": "train[:30]", "test": "train[30:40]"})
    assert keys_of(again.train) == keys_of(found.train)
    assert found.provenance["splits"] == "train: train[:75%], test: train[75%:]"
    for train, test, complaint in (
        ("train[:75%]", "train[70%:]", "train and test share|test and train share"),
        ("train", "train[:1]", "test and train share"),
        ("train[:41]", "train", "rows 0 to 41, but train has 40"),
        ("train[:99999999999999999999]", "train", "but train has 40"),
        ("train[-1:]", "train", "must be like"),
        ("train+dev", "train", "no dev split"),
    ):
        with pytest.raises(IngestError, match=complaint):
            open_collection(tmp_path, splits={"train": train, "test": test})
    with pytest.raises(IngestError, match="splits must be of 'train' and 'test', got dev"):
        open_collection(tmp_path, splits={"dev": "train"})


def test_restval_counts_as_training_only_if_told(tmp_path):
    make_karpathy(tmp_path, restval=True)
    assert len(open_collection(tmp_path).train.pictures) == 3
    found = open_collection(tmp_path, splits={"train": "train+restval"})
    expected = [(name.encode(), captions) for name, captions in sorted(captions_of("train"))]
    assert contents(found.train) == [*expected, (b"more.png", ["one more"])]
    write(tmp_path / "collection.toml", '[splits]\ntrain = "restval"\n')
    assert contents(open_collection(tmp_path).train) == [(b"more.png", ["one more"])]


# --- what a collection states


def test_collection_toml_and_arguments(tmp_path):
    make_folders(tmp_path)
    write(
        tmp_path / "collection.toml",
        """
        name = "beasts"
        layout = "folders"
        classes = ["z", "owl", "cat", "cat"]
        prompts = ["one {}."]
        fit = "squash"
        licence = "CC0"
        provenance = { source = "made" }
        """,
    )
    found = open_collection(tmp_path)
    assert (found.name, found.fit, found.prompts) == ("beasts", "squash", ("one {}.",))
    assert found.classes == ("z", "owl", "cat", "cat")
    assert distinct_names(found.classes) == ("z", "owl", "cat", "cat (2)")
    assert found.provenance["licence"] == "CC0"
    assert found.provenance["source"] == "made"
    told = open_collection(tmp_path, "other", prompts=["two {}."], fit="crop")
    assert (told.name, told.fit, told.prompts) == ("other", "crop", ("two {}.",))


def test_distinct_names_stay_distinct():
    assert distinct_names(("a", "a", "a (2)", "a")) == ("a", "a (3)", "a (2)", "a (4)")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("colour = 1\nsize = 2", "unknown keys: 'colour', 'size'; known are name, layout"),
        ("name = 3", "name must be a text"),
        ('name = "a b"', "name 'a b' must be letters"),
        ("classes = []", "classes must be a list"),
        ('classes = ["a", ""]', "classes number 2 must not be blank"),
        ('prompts = ["{} {c}"]', "prompts number 1 must hold {} once"),
        ('fit = "stretch"', "fit must be one of crop, squash, got 'stretch'"),
        ('layout = "zip"', "layout must be one of folders, table"),
        ("provenance = { a = 1 }", r"provenance\.a must be a text"),
        ('classes = ["a"]', "1 class names are stated, but there are 4 class folders"),
        ('name = "\x00"', "is not TOML"),
    ],
)
def test_what_collection_toml_must_not_state(tmp_path, text, complaint):
    make_folders(tmp_path)
    write(tmp_path / "collection.toml", text)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


def test_class_names_are_counted_and_must_agree(tmp_path):
    make_folders(tmp_path)
    write(tmp_path / "classnames.txt", "w\nx\ny\nz\n\n")
    assert open_collection(tmp_path).classes == ("w", "x", "y", "z")
    write(tmp_path / "collection.toml", 'classes = ["a", "b", "c", "d"]')
    with pytest.raises(IngestError, match=r"collection\.toml and classnames\.txt state different"):
        open_collection(tmp_path)
    (tmp_path / "collection.toml").unlink()
    write(tmp_path / "classnames.txt", "w\nx\ny\n")
    with pytest.raises(IngestError, match="3 class names are stated, but there are 4"):
        open_collection(tmp_path)
    write(tmp_path / "classnames.txt", "w\n\ny\nz\n")
    with pytest.raises(IngestError, match=r"classnames\.txt line 2 must not be blank"):
        open_collection(tmp_path)
    (tmp_path / "classnames.txt").unlink()
    for split in ("train", "test"):
        write(tmp_path / split / "barn owl" / "1.jpg", "x")
    with pytest.raises(IngestError, match="two class folders are named 'barn owl'"):
        open_collection(tmp_path)


def test_unknown_and_ambiguous_layouts(tmp_path):
    with pytest.raises(IngestError, match="must be the folder of a collection, found nothing"):
        open_collection(tmp_path / "nowhere")
    with pytest.raises(IngestError, match="found a file"):
        open_collection(write(tmp_path / "file", "x"))
    write(tmp_path / "odd" / "readme", "x")
    with pytest.raises(IngestError, match=r"folders none and the files readme") as caught:
        open_collection(tmp_path / "odd")
    for layout in ("folders", "table", "coco", "karpathy", "webdataset", "features"):
        assert layout in str(caught.value)
    both = make_label_table(make_folders(tmp_path / "both"))
    with pytest.raises(IngestError, match="may be table or folders; say which with layout="):
        open_collection(both)
    assert open_collection(both, layout="folders").train.pictures[0].key.startswith("train/")
    with pytest.raises(IngestError, match="layout must be one of"):
        open_collection(both, layout="sqlite")
    with pytest.raises(IngestError, match="there is no folder 'annotations'"):
        open_collection(both, layout="coco")
    with pytest.raises(IngestError, match=r"one dataset_<name>\.json, got 0"):
        open_collection(both, layout="karpathy")


def test_folders_with_other_classes_or_no_pictures(tmp_path):
    make_folders(tmp_path)
    write(tmp_path / "test" / "cow" / "1.jpg", "x")
    shutil.rmtree(tmp_path / "test" / "cat")
    with pytest.raises(IngestError, match=r"the same in all splits; missing: cat; not known: cow"):
        open_collection(tmp_path)
    make_folders(tmp_path / "b")
    for file in (tmp_path / "b" / "train" / "cat").iterdir():
        file.rename(file.with_suffix(".txt"))
    with pytest.raises(IngestError, match="1 of 4 classes have no training picture: cat"):
        open_collection(tmp_path / "b")
    make_folders(tmp_path / "c")
    for file in (tmp_path / "c" / "test").rglob("*.jpg"):
        file.unlink()
    with pytest.raises(IngestError, match=r"test has no picture in its class folders"):
        open_collection(tmp_path / "c")
    write(tmp_path / "d" / "train" / "1.jpg", "x")
    with pytest.raises(IngestError, match="must hold a folder of pictures for each class"):
        open_collection(tmp_path / "d", layout="folders", splits={"test": "train"})
