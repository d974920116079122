"""The form of a store, and checks of it; every error names the task, the array and the row."""

import graphlib
import re
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from hmcl_jax.data.errors import StoreError

if TYPE_CHECKING:
    from hmcl_jax.data.store import Task

MANIFEST = "manifest.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def _both(*arrays: str) -> tuple[str, ...]:
    return tuple(f"{split}_{array}" for split in ("train", "test") for array in arrays)


ARRAYS = {
    "classification": ("prototypes", *_both("features", "labels")),
    "retrieval": _both("specific", "general", "pairs"),
}
THUMBNAILS = ("thumbnails", "thumbnail_ends", "thumbnail_rows")  # all of them, or none
EXTRA = (*THUMBNAILS, "tree_features")
INTEGERS = {
    **dict.fromkeys(_both("labels", "pairs"), np.int32),
    "thumbnails": np.uint8,
    "thumbnail_ends": np.int32,
    "thumbnail_rows": np.int32,
}


def check_finite(**named: Any) -> None:
    """Refuses what is not a finite number, by name."""
    for name, value in named.items():
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not np.isfinite(value):
            raise StoreError(f"{name} must be a finite number, got {value!r}.")


def check_form(name: Any, kind: Any, arrays: Collection[str]) -> None:
    """Checks a task's name, its kind and the names of its arrays."""
    if not isinstance(name, str) or not NAME.fullmatch(name) or name == MANIFEST:
        allowed = "up to 64 letters, digits, '_', '.' or '-'"
        raise StoreError(f"Task name {str(name)[:80]!r} must be {allowed}, not {MANIFEST}.")
    if kind not in ARRAYS:
        raise StoreError(f"Task {name!r}: kind must be one of {list(ARRAYS)}, got {kind!r}.")
    thumbnails = THUMBNAILS if set(THUMBNAILS) & set(arrays) else ()
    missing = sorted({*ARRAYS[kind], *thumbnails}.difference(arrays))
    unknown = sorted(set(arrays).difference(ARRAYS[kind], EXTRA))
    if missing or unknown:
        raise StoreError(
            f"Task {name!r}: {kind} needs the arrays {', '.join(ARRAYS[kind])}; missing: "
            f"{', '.join(missing) or 'none'}; not known: {', '.join(unknown) or 'none'}."
        )


def as_stored(where: str, name: str, values: Any) -> np.ndarray:
    """An array in the dtype it is stored in; refuses values that this would change."""
    values = np.ascontiguousarray(values)
    if name not in INTEGERS:
        if values.dtype.kind != "f":
            raise StoreError(f"{where} must be floating-point numbers, got dtype {values.dtype}.")
        return values if values.dtype in (np.float16, np.float32) else values.astype(np.float32)
    if values.dtype.kind not in "iu":
        raise StoreError(f"{where} must be whole numbers, got dtype {values.dtype}.")
    stored = values.astype(INTEGERS[name])
    changed = np.argwhere(stored != values)
    if len(changed):
        at = tuple(changed[0])
        raise StoreError(f"{where} row {at[0]} is {values[at]}, beyond {stored.dtype}.")
    return stored


def validate_task(task: "Task", dimension: int, K: float) -> None:
    """Checks shapes, finiteness, radii, labels or pairs, and the class tree of a task."""
    where = f"Task {task.name!r}"
    for name, array in task.arrays.items():
        if name not in INTEGERS:
            _validate_points(f"{where}: {name}", array, dimension, K)
    for split in ("train", "test"):
        if task.kind == "classification":
            _validate_labels(where, task, split)
        else:
            _validate_pairs(where, task, split)
    if "thumbnails" in task.arrays:
        _validate_thumbnails(where, task)
    if task.classes and task.kind == "retrieval":
        raise StoreError(f"{where}: a retrieval task has no classes, got {len(task.classes)}.")
    if twice := [name for name, count in Counter(task.classes).items() if count > 1]:
        raise StoreError(f"{where}: class name {twice[0]!r} occurs twice.")
    if len(dict(task.tree)) != len(task.tree):
        raise StoreError(f"{where}: a name in the class tree has two parents.")
    try:
        graphlib.TopologicalSorter({child: [above] for child, above in task.tree}).prepare()
    except graphlib.CycleError as error:
        raise StoreError(f"{where}: the class tree has a cycle, {error.args[1]}.") from None
    names = len(task.tree_names)
    if len(task.arrays.get("tree_features", task.tree_names)) != names:
        raise StoreError(f"{where}: tree_features must have a row for each of {names} names.")


def _validate_points(where: str, points: np.ndarray, dimension: int, K: float) -> None:
    if points.ndim != 2 or points.shape[1] != dimension or not len(points):
        raise StoreError(f"{where} must have shape (n, {dimension}), got {points.shape}.")
    for start in range(0, len(points), 65536):
        block = np.asarray(points[start : start + 65536], np.float32)
        radius = np.linalg.norm(block, axis=1)
        bad = ~(radius <= 1e4 * np.sqrt(K))
        if bad.any():
            row = int(bad.argmax())
            if not np.isfinite(block[row]).all():
                raise StoreError(f"{where} row {start + row} is not finite.")
            raise StoreError(
                f"{where} row {start + row} has radius {radius[row]:.3g}, which float32 does not "
                f"resolve with K = {K:g}; are these points?"
            )


def _validate_labels(where: str, task: "Task", split: str) -> None:
    labels, rows = task.arrays[f"{split}_labels"], len(task.arrays[f"{split}_features"])
    prototypes, classes = len(task.arrays["prototypes"]), len(task.classes)
    if prototypes != classes:
        raise StoreError(f"{where}: prototypes has {prototypes} rows for {classes} classes.")
    if labels.shape != (rows,):
        raise StoreError(f"{where}: {split}_labels must have shape ({rows},), got {labels.shape}.")
    _check_range(f"{where}: {split}_labels", labels, classes)


def _validate_pairs(where: str, task: "Task", split: str) -> None:
    pairs = task.arrays[f"{split}_pairs"]
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise StoreError(f"{where}: {split}_pairs must have shape (p, 2), got {pairs.shape}.")
    for column, side in enumerate(("specific", "general")):
        count = len(task.arrays[f"{split}_{side}"])
        _check_range(f"{where}: {split}_pairs, {side}", pairs[:, column], count)
        unpaired = np.setdiff1d(np.arange(count), pairs[:, column])
        if unpaired.size:
            raise StoreError(f"{where}: {split}_{side} row {unpaired[0]} is in no pair.")
    rows, counts = np.unique(pairs, axis=0, return_counts=True)
    if counts.max() > 1:
        raise StoreError(f"{where}: {split}_pairs repeats the pair {rows[counts.argmax()]}.")


def _validate_thumbnails(where: str, task: "Task") -> None:
    data, ends, rows = (task.arrays[name] for name in THUMBNAILS)
    if not data.ndim == ends.ndim == rows.ndim == 1 or len(ends) != len(rows) or not len(ends):
        raise StoreError(f"{where}: thumbnails, their ends and rows must be lists that match.")
    if (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != len(data):
        raise StoreError(f"{where}: thumbnail_ends must grow up to {len(data)}, got {ends[-1]}.")
    samples = "test_features" if task.kind == "classification" else "test_specific"
    _check_range(f"{where}: thumbnail_rows", rows, len(task.arrays[samples]))


def _check_range(where: str, values: np.ndarray, count: int) -> None:
    bad = (values < 0) | (values >= count)
    if bad.any():
        row = int(bad.argmax())
        raise StoreError(f"{where} row {row} is {values[row]}, outside of [0, {count}).")
