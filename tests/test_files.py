"""Files and folders that come to be whole or not at all."""

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax import _files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("data", "held"), [("a\nµ", b"a\n\xc2\xb5"), (b"\r\n\xff", b"\r\n\xff")])
def test_files_are_written_as_given(tmp_path, data, held):
    for _ in range(2):  # the second time, it is replaced
        _files.write_whole(tmp_path / "file", data)
        assert (tmp_path / "file").read_bytes() == held
        assert names(tmp_path) == ["file"]


def test_a_file_that_fails_leaves_the_old_one(tmp_path):
    _files.write_whole(tmp_path / "file", "old")

    def interrupted():
        with _files.whole_file(tmp_path / "file") as partial:
            partial.write_text("ne")
            assert _files.partials(tmp_path / "file") == {partial}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (tmp_path / "file").read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_a_file_that_was_not_written_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), _files.whole_file(tmp_path / "file"):
        pass
    assert names(tmp_path) == []


def test_what_others_left_is_found_by_the_whole_name(tmp_path):
    left = {tmp_path / f".[a].partial-{number}" for number in (1, 22)}
    for path in (*left, tmp_path / ".a.partial-1", tmp_path / "[a].partial-1"):
        path.touch()
    assert _files.partials(tmp_path / "[a]") == left


def test_folders_are_removed_unless_they_are_moved(tmp_path):
    path = tmp_path / "above" / "folder"
    for moved in (False, True):
        with _files.partial_folder(path) as partial:
            (partial / "file").touch()
            if moved:
                _files.replace_folder(path, partial)
        assert names(path.parent) == ["folder"] * moved
    assert names(path) == ["file"]
    # What a killed process with the same number left is no obstacle.
    for left in (f".folder.partial-{os.getpid()}", f".folder.old-{os.getpid()}"):
        (path.parent / left).mkdir()
        (path.parent / left / "left").touch()
    with _files.partial_folder(path) as partial:
        assert names(partial) == []
        _files.replace_folder(path, partial)
    assert names(path.parent) == ["folder"]
    assert names(path) == []


def test_a_folder_that_cannot_be_replaced_is_back(tmp_path, monkeypatch):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").touch()
    real = Path.replace

    def fails(self, target):
        if ".partial-" in self.name:
            raise OSError("cannot be moved")
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="cannot be"), _files.partial_folder(path) as partial:
        _files.replace_folder(path, partial)
    assert names(tmp_path) == ["folder"]
    assert names(path) == ["old"]


def test_checksums(tmp_path):
    data = bytes(range(256)) * 5000
    (tmp_path / "file").write_bytes(data)
    assert _files.file_sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()
    body = {"b": [1, "µ"], "a": None}
    digest = hashlib.sha256(b'{"a": null, "b": [1, "\\u00b5"]}').hexdigest()
    assert _files.json_sha256(body) == _files.json_sha256({**body, "sha256": "x"}) == digest
    with pytest.raises(ValueError, match="not JSON compliant"):
        _files.json_sha256({"a": float("nan")})


def test_what_is_not_finite_is_null():
    value = {
        "array": np.array([[1.5, np.nan], [np.inf, 2]], np.float32),
        3: (np.float64("-inf"), np.int64(4), True, None, "x"),
        "empty": np.zeros((0, 2)),
    }
    plain = {
        "array": [[1.5, None], [None, 2.0]],
        "3": [None, 4, True, None, "x"],
        "empty": [],
    }
    assert _files.without_nan(value) == plain
    assert json.loads(_files.json_text(value)) == plain
    assert _files.json_text({}) == "{}\n"
    with pytest.raises(TypeError):
        _files.json_text({"a": object()})
