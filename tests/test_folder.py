"""Paths and links cannot lead out of a folder; arguments replace the settings that it states."""

import os
from pathlib import Path

import pytest
from collections_made import TOML, contents, make_caption_table, make_folders, write, write_table

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection, recognise


@pytest.mark.parametrize(
    "image",
    ["../secret.png", "pictures/../../secret.png", "{}/secret.png", "", ".."],
)
def test_paths_cannot_leave_the_collection(tmp_path, image):
    root = make_caption_table(tmp_path / "set")
    write(tmp_path / "secret.png", "x")
    write_table(root / "train.csv", [{"image": image.format(tmp_path), "caption": "x"}])
    with pytest.raises(IngestError, match=r"train\.csv line 2: image"):
        open_collection(root)


def test_links_must_stay_inside(tmp_path):
    root = make_caption_table(tmp_path / "set")
    write(tmp_path / "outside" / "a.png", "secret")
    (root / "pictures" / "inside.png").symlink_to("train-1.png")
    (root / "pictures" / "gone.png").symlink_to("nowhere.png")
    write_table(root / "train.csv", [{"image": "pictures/inside.png", "caption": "x"}])
    assert contents(open_collection(root).train) == [(b"train-1.png", ["x"])]
    for link, target, image in (
        ("out.png", tmp_path / "outside" / "a.png", "pictures/out.png"),
        ("there", tmp_path / "outside", "pictures/there/a.png"),
    ):
        (root / "pictures" / link).symlink_to(target)
        write_table(root / "train.csv", [{"image": image, "caption": "x"}])
        with pytest.raises(IngestError, match=rf"pictures/{link} is a link that leaves"):
            open_collection(root)
        assert contents(open_collection(root, links=True).train) == [(b"secret", ["x"])]
        (root / "pictures" / link).unlink()
    write_table(root / "train.csv", [{"image": "pictures/gone.png", "caption": "x"}])
    with pytest.raises(IngestError, match="there is no such file"):
        open_collection(root)


def test_links_in_class_folders_and_of_whole_splits(tmp_path):
    real = make_folders(tmp_path / "real")
    write(tmp_path / "x.jpg", "x")
    root = make_folders(tmp_path / "set")
    (root / "train" / "cat" / "x.jpg").symlink_to(tmp_path / "x.jpg")
    with pytest.raises(IngestError, match=r"train/cat/x\.jpg is a link that leaves"):
        open_collection(root)
    assert len(open_collection(root, links=True).train.pictures) == 13
    (tmp_path / "linked").mkdir()
    for split in ("train", "test"):
        (tmp_path / "linked" / split).symlink_to(real / split)
    with pytest.raises(IngestError, match="is a link that leaves"):
        open_collection(tmp_path / "linked")
    assert len(open_collection(tmp_path / "linked", links=True).train.pictures) == 12
    assert recognise(tmp_path / "linked") == "folders"  # reads no picture
    (tmp_path / "whole").symlink_to(real)
    assert len(open_collection(tmp_path / "whole").train.pictures) == 12


def test_names_that_are_not_utf8(tmp_path):
    make_folders(tmp_path)
    odd = os.fsdecode(b"\xff.jpg")
    Path(tmp_path, "train", "cat", odd).touch()
    halves = {"train": "train[:50%]", "test": "train[50%:]"}
    parts = open_collection(tmp_path, "x", splits=halves)
    keys = [picture.key for split in (parts.train, parts.test) for picture in split.pictures]
    assert f"train/cat/{odd}" in keys
    for split in ("train", "test"):
        Path(tmp_path, split, os.fsdecode(b"\xff")).mkdir()
    with pytest.raises(IngestError, match="must be valid Unicode"):
        open_collection(tmp_path, "x")


def test_arguments_come_before_collection_toml_before_text_files(tmp_path):
    make_folders(tmp_path)
    write(tmp_path / "collection.toml", TOML)
    write(tmp_path / "classnames.txt", "a\nb\nc\nd\n")
    found = open_collection(tmp_path)
    assert (found.name, found.fit, found.prompts) == ("beasts", "squash", ("one {}.",))
    assert found.classes == ("z", "owl", "cat", "cat")
    assert found.provenance == {
        "layout": "folders",
        "splits": "train: train, test: test",
        "ignored": "0 files",
        "licence": "CC0",
        "source": "made",
    }
    told = open_collection(tmp_path, "other", prompts=["two {}."], fit="crop")
    assert (told.name, told.fit, told.prompts) == ("other", "crop", ("two {}.",))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("colour = 1\nsize = 2", "unknown keys: 'colour', 'size'; known are name"),
        ('name = "a b"', "name must be .* got 'a b'"),
        ("classes = []", "classes must be a list"),
        ('classes = ["a", ""]', "classes 2 must .*not be blank"),
        ('prompts = ["{} {c}"]', "prompts must hold {} once"),
        ('fit = "stretch"', "fit must be one of crop, squash, got 'stretch'"),
        ('layout = "zip"', "layout must be one of these, got 'zip'"),
        ("provenance = { a = 1 }", r"provenance\.a must be a text"),
        ('name = "\x00"', r"collection\.toml cannot be read: TOMLDecodeError"),
    ],
)
def test_what_collection_toml_must_not_state(tmp_path, text, complaint):
    make_folders(tmp_path)
    write(tmp_path / "collection.toml", text)
    with pytest.raises(IngestError, match=complaint):
        open_collection(tmp_path)


def test_blank_lines_in_text_files_and_odd_names_of_folders_are_refused(tmp_path):
    make_folders(tmp_path / "a b")
    with pytest.raises(IngestError, match="give name="):
        open_collection(tmp_path / "a b")
    write(tmp_path / "a b" / "classnames.txt", "w\n\ny\nz\n")
    with pytest.raises(IngestError, match=r"classnames\.txt: line 2 must .*not be blank"):
        open_collection(tmp_path / "a b", "ab")
