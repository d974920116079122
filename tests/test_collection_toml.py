"""What a collection states of itself, and what arguments say instead."""

import pytest
from collections_made import make_folders, write

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.image_datasets import open_collection

TOML = """
name = "beasts"
layout = "folders"
classes = ["z", "owl", "cat", "cat"]
prompts = ["one {}."]
fit = "squash"
licence = "CC0"
provenance = { source = "made" }
"""


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
        ("colour = 1\nsize = 2", "unknown keys: 'colour', 'size'; known are name, layout"),
        ("name = 3", "name must be a text"),
        ('name = "a b"', "name must be letters.* got 'a b'"),
        ("classes = []", "classes must be a list"),
        ('classes = ["a", ""]', "classes 2 must .*not be blank"),
        ('prompts = ["{} {c}"]', "prompts 1 must hold {} once"),
        ('fit = "stretch"', "fit must be one of crop, squash, got 'stretch'"),
        ('layout = "zip"', "layout must be one of folders, table"),
        ("provenance = { a = 1 }", r"provenance\.a must be a text"),
        ("splits = 3", r"splits\.source must be a text"),
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
    with pytest.raises(IngestError, match="choose one with name="):
        open_collection(tmp_path / "a b")
    write(tmp_path / "a b" / "classnames.txt", "w\n\ny\nz\n")
    with pytest.raises(IngestError, match=r"classnames\.txt: line 2 must .*not be blank"):
        open_collection(tmp_path / "a b", "ab")
