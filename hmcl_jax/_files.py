"""Files and folders that come to be whole or not at all, their checksums, and JSON without NaN.

Whatever is written lies under a hidden name beside its place until it is whole, and takes its place
by one rename. A process that is killed leaves ``.NAME.partial-PID``, which later ones ignore.
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
    """What processes that write `path`, or were killed while they did, have beside it."""
    begin = f".{path.name}.partial-"
    return {file for file in path.parent.glob(".*.partial-*") if file.name.startswith(begin)}


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A path to write to; what is there in the end replaces `path`. On errors, nothing does."""
    partial = _beside(path, "partial")
    try:
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes | str) -> None:
    """Writes a file, whole or not at all; text as UTF-8."""
    with whole_file(path) as partial:
        partial.write_bytes(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def partial_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path`, to be moved there when it is whole; removed in any case."""
    partial = _beside(path, "partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process with the same number
    try:
        partial.mkdir(parents=True)
        yield partial
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(path: Path, new: Path) -> None:
    """Puts the folder `new` in the place of `path`, which is back if that fails."""
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
    """SHA-256 of plain data, its own entry ``"sha256"`` left out."""
    others = {key: value for key, value in body.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, allow_nan=False).encode()).hexdigest()


def without_nan(value: Any) -> Any:
    """As JSON has it: lists and dicts, with None for every number that is not finite."""
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
