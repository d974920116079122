"""Checks of a store; every error names the task, the array and the row."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hmcl_jax.data.errors import StoreError

if TYPE_CHECKING:
    from hmcl_jax.data.store import Task

INDICES = (
    *("train_labels", "test_labels", "train_pairs", "test_pairs"),
    *("thumbnail_ends", "thumbnail_rows"),
)


def check_numbers(**named: Any) -> None:
    """Refuses what is not a finite number, by name."""
    for name, value in named.items():
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or not np.isfinite(value):
            raise StoreError(f"{name} must be a finite number, got {value!r}.")


def feature_dimension(task: "Task") -> int:
    """Dimension of the task's features."""
    for array in task.arrays.values():
        if np.ndim(array) == 2 and np.asarray(array).dtype.kind == "f":
            return int(np.shape(array)[1])
    raise StoreError(f"Task {task.name!r} has no features of shape (n, d).")


def as_stored(where: str, name: str, values: Any) -> np.ndarray:
    """An array in the dtype it is stored in; refuses values that this would change."""
    values = np.ascontiguousarray(values)
    kind = values.dtype.kind
    if name in INDICES or name == "thumbnails":
        wanted = np.uint8 if name == "thumbnails" else np.int32
        if kind not in "iu":
            raise StoreError(f"{where} must be whole numbers, got dtype {values.dtype}.")
        limits = np.iinfo(wanted)
        bad = (values < limits.min) | (values > limits.max)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            value = values.reshape(len(values), -1)[row].tolist()
            raise StoreError(f"{where} row {row} is {value}, beyond {np.dtype(wanted)}.")
        return values.astype(wanted)
    if kind != "f":
        raise StoreError(f"{where} must be floating-point numbers, got dtype {values.dtype}.")
    return values if values.dtype in (np.float16, np.float32) else values.astype(np.float32)


def validate_task(task: "Task", dimension: int, K: float) -> None:
    """Checks shapes, finiteness, radii, labels or pairs, and the class tree of a task."""
    where = f"Task {task.name!r}"
    for name, array in task.arrays.items():
        if name in (*INDICES, "thumbnails"):
            continue
        if array.ndim != 2 or array.shape[1] != dimension:
            wanted = f"shape (n, {dimension})"
            raise StoreError(f"{where}: {name} must have {wanted}, got {array.shape}.")
        if len(array) == 0:
            raise StoreError(f"{where}: {name} is empty.")
        for start in range(0, len(array), 65536):
            block = np.asarray(array[start : start + 65536], np.float32)
            bad = ~np.isfinite(block).all(axis=1)
            if bad.any():
                raise StoreError(f"{where}: {name} row {start + int(bad.argmax())} is not finite.")
            radius = np.linalg.norm(block, axis=1)
            far = radius > 1e4 * np.sqrt(K)
            if far.any():
                row = int(far.argmax())
                raise StoreError(
                    f"{where}: {name} row {start + row} has radius {radius[row]:.3g}, beyond what "
                    f"float32 resolves on the hyperboloid with K = {K:g}; are these points?"
                )
    for split in ("train", "test"):
        if task.kind == "classification":
            _validate_labels(where, task, split)
        else:
            _validate_pairs(where, task, split)
    if "thumbnails" in task.arrays:
        _validate_thumbnails(where, task)
    if task.classes and task.kind == "retrieval":
        raise StoreError(f"{where}: a retrieval task has no classes, got {len(task.classes)}.")
    names = set(task.classes)
    if len(names) != len(task.classes):
        twice = next(c for c in task.classes if list(task.classes).count(c) > 1)
        raise StoreError(f"{where}: class name {twice!r} occurs twice.")
    parents = dict(task.tree)
    if len(parents) != len(task.tree):
        raise StoreError(f"{where}: a name in the class tree has two parents.")
    for child in parents:
        seen = {child}
        while child in parents:
            child = parents[child]
            if child in seen:
                raise StoreError(f"{where}: the class tree has a cycle through {child!r}.")
            seen.add(child)
    if len(task.arrays.get("tree_features", task.tree_names)) != len(task.tree_names):
        rows = len(task.arrays["tree_features"])
        raise StoreError(
            f"{where}: tree_features has {rows} rows for {len(task.tree_names)} names in the tree."
        )


def _validate_labels(where: str, task: "Task", split: str) -> None:
    labels, features = task.arrays[f"{split}_labels"], task.arrays[f"{split}_features"]
    if len(task.arrays["prototypes"]) != len(task.classes):
        raise StoreError(
            f"{where}: prototypes has {len(task.arrays['prototypes'])} rows for "
            f"{len(task.classes)} classes."
        )
    if labels.shape != (len(features),):
        raise StoreError(
            f"{where}: {split}_labels must have shape ({len(features)},), got {labels.shape}."
        )
    _check_range(f"{where}: {split}_labels", labels, len(task.classes))


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
    unique, first = np.unique(pairs, axis=0, return_index=True)
    if len(unique) != len(pairs):
        row = int(np.setdiff1d(np.arange(len(pairs)), first)[0])
        raise StoreError(f"{where}: {split}_pairs row {row} repeats an earlier pair.")


def _validate_thumbnails(where: str, task: "Task") -> None:
    data, ends, rows = (
        task.arrays[name] for name in ("thumbnails", "thumbnail_ends", "thumbnail_rows")
    )
    if not data.ndim == ends.ndim == rows.ndim == 1 or len(ends) != len(rows) or not len(ends):
        raise StoreError(f"{where}: thumbnails, their ends and rows must be lists that match.")
    if (np.diff(ends, prepend=0) <= 0).any() or ends[-1] != len(data):
        raise StoreError(f"{where}: thumbnail_ends must grow up to {len(data)}, got {ends[-1]}.")
    one = task.kind == "classification"
    samples = task.arrays["test_features" if one else "test_specific"]
    _check_range(f"{where}: thumbnail_rows", rows, len(samples))


def _check_range(where: str, values: np.ndarray, count: int) -> None:
    bad = (values < 0) | (values >= count)
    if bad.any():
        row = int(bad.argmax())
        raise StoreError(f"{where} row {row} is {values[row]}, outside of [0, {count}).")


def check_manifest(manifest: Mapping[str, Any]) -> None:
    """Refuses a manifest whose parts are not what they should be, even if its checksum is right."""

    def number(x: Any) -> bool:
        return isinstance(x, int | float) and not isinstance(x, bool) and bool(np.isfinite(x))

    def strings(x: Any) -> bool:
        return isinstance(x, list) and all(isinstance(item, str) for item in x)

    def mapping(x: Any, of: Any) -> bool:
        return isinstance(x, dict) and all(of(value) for value in x.values())

    def text(x: Any) -> bool:
        return isinstance(x, str)

    def expect(where: str, entry: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
        for key, right in kinds.items():
            if not right(entry.get(key)):
                raise StoreError(f"{where}: {key} must not be {str(entry.get(key))[:40]!r}.")

    def positive(x: Any) -> bool:
        return number(x) and x > 0

    expect(
        "The manifest",
        manifest,
        {
            **dict.fromkeys(("name", "backbone"), text),
            **dict.fromkeys(("K", "tau"), positive),
            "dimension": lambda x: positive(x) and isinstance(x, int),
            "orders": lambda x: mapping(x, strings),
            "provenance": lambda x: mapping(x, text),
            "tasks": lambda x: isinstance(x, list) and all(isinstance(e, dict) for e in x),
        },
    )
    if not manifest["tasks"]:
        raise StoreError("The manifest has no tasks.")
    names = [str(entry.get("name")) for entry in manifest["tasks"]]
    if len(set(names)) != len(names):
        raise StoreError(f"The manifest names a task twice: {names}.")
    if "canonical" not in manifest["orders"]:
        raise StoreError("The manifest has no canonical order.")
    for entry in manifest["tasks"]:
        expect(
            f"Task {str(entry.get('name'))[:40]!r} in the manifest",
            entry,
            {
                **dict.fromkeys(("name", "kind", "general", "specific"), text),
                "classes": strings,
                "tree": lambda x: (
                    isinstance(x, list) and all(strings(row) and len(row) == 2 for row in x)
                ),
                "scores": lambda x: mapping(x, number),
                "provenance": lambda x: mapping(x, text),
                "arrays": lambda x: mapping(x, lambda value: isinstance(value, dict)),
            },
        )
