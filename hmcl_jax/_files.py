"""Atomic writes of files and folders, checksums, and JSON without NaN.

A file is written under a hidden name beside its path and renamed to it when it is complete. A
process that is killed leaves ``.NAME.partial-PID`` behind, which later ones ignore.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np


def partials(path: Path) -> set[Path]:
    """Partial files of `path`, of processes that write it or were killed while they did."""
    # Not glob(f".{path.name}..."): the name may contain characters that glob interprets.
    begin = f".{path.name}.partial-"
    return {file for file in path.parent.glob(".*.partial-*") if file.name.startswith(begin)}


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; the file then replaces `path`, unless there was an error."""
    partial = _beside(path, "partial")
    try:
        yield partial
        # On disk before the rename, or a power cut could leave an empty file under the name.
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    """Writes a file atomically; text as UTF-8."""
    with whole_file(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, to be moved there when complete; else it is removed."""
    partial = _beside(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process with the same number
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(path: Path, new: Path) -> None:
    """Moves the folder `new` to `path`; if that fails, the old folder is restored."""
    # Two renames, as a rename cannot replace a folder that is not empty.
    old = _beside(path, "old")
    shutil.rmtree(old, ignore_errors=True)
    try:
        if path.exists():
            path.replace(old)
        new.replace(path)
    finally:
        if old.exists() and not path.exists():
            old.replace(path)
    shutil.rmtree(old, ignore_errors=True)


def _beside(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{kind}-{os.getpid()}")


def file_sha256(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_sha256(body: Mapping[str, Any]) -> str:
    """SHA-256 of plain data without its entry ``"sha256"``."""
    others = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, allow_nan=False).encode()).hexdigest()


def without_nan(value: Any) -> Any:
    """Lists and dicts for JSON, which has no NaN: None for every number that is not finite."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return without_nan(value.tolist())
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value


def json_text(value: Any) -> str:
    """The text of a JSON file; numbers that are not finite are null."""
    return json.dumps(without_nan(value), indent=1, allow_nan=False) + "\n"
