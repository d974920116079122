"""The feature store: one documented format for every stream of tasks.

A store is a directory, or one uncompressed zip file of the same members:

- ``manifest.json``: schema version, name, backbone, K, tau, dimension, task orders, and per task
  its kind, modalities, class names, class tree, provenance, and the shape, dtype and SHA-256 of
  every array; and a SHA-256 of all this.
- ``<task>/<array>.npy``: plain arrays, read by memory mapping, never by unpickling.
- ``<task>/<array>.codes.npy``, ``.scales.npy``, ``.offset.npy``: an array of features as int8, see
  :mod:`hmcl_jax.data.encoding`. Its entry in the manifest has ``"encoding": "int8"``, the dtype of
  the decoded array, and shape, dtype and SHA-256 of each part.

Two kinds of tasks, in any two modalities, `general` (text; the apex of the cones) and `specific`:

- *classification*: ``train_features`` (n, d) of the specific modality, ``train_labels`` (n,),
  ``prototypes`` (C, d) of the general modality, and the same for ``test``;
- *retrieval*: ``train_specific`` (n, d), ``train_general`` (m, d) and ``train_pairs`` (p, 2), the
  rows (specific, general) that belong together, and the same for ``test``.

Features are space components of points on the hyperboloid, in float16 or float32. A task may also
hold small pictures of some test samples: ``thumbnails``, JPEG files one after the other as bytes,
``thumbnail_ends``, where each ends, and ``thumbnail_rows``, the sample that each shows; and
``tree_features``, the points of all names in its class tree (``Task.tree_names``).
"""

import dataclasses
import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.lib import format as npy

from hmcl_jax import _files
from hmcl_jax.data.encoding import Arrays, Encoded, encode_features
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.store_checks import (  # noqa: F401  # some of them are named from here
    ARRAYS,
    EXTRA,
    INTEGERS,
    MANIFEST,
    NAME,
    as_stored,
    check_finite,
    check_form,
    validate_task,
)

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Task:
    """One task of a store."""

    name: str  # unique in its store
    kind: str  # "classification" or "retrieval"
    general: str  # modality of the prototypes or captions
    specific: str  # modality of the samples
    arrays: Mapping[str, np.ndarray]  # see above; mapped, or decoded at the first access
    classes: tuple[str, ...] = ()  # in the order of the labels; empty for retrieval
    tree: tuple[tuple[str, str], ...] = ()  # (child, parent) of classes and categories above them
    scores: Mapping[str, float] = dataclasses.field(default_factory=dict)  # such as zero_shot
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)  # origin and licence

    def size(self, split: str) -> int:
        """Number of samples (classification) or pairs (retrieval) in ``"train"`` or ``"test"``."""
        kind = "labels" if self.kind == "classification" else "pairs"
        return len(self.arrays[f"{split}_{kind}"])

    def pairs(self, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The features of a split and the rows that belong together, for both kinds of tasks.

        Returns:
          Features of the general modality (class prototypes or captions), features of the specific
          modality, and int32 rows (specific, general), shape ``(p, 2)``.
        """
        arrays = self.arrays
        if self.kind == "retrieval":
            rows = np.asarray(arrays[f"{split}_pairs"], np.int32)
            return arrays[f"{split}_general"], arrays[f"{split}_specific"], rows
        labels = np.asarray(arrays[f"{split}_labels"], np.int32)
        rows = np.stack([np.arange(len(labels), dtype=np.int32), labels], axis=1)
        return arrays["prototypes"], arrays[f"{split}_features"], rows

    @property
    def tree_names(self) -> tuple[str, ...]:
        """All names in the class tree, sorted; the rows of ``tree_features``."""
        return tuple(sorted({name for row in self.tree for name in row}))

    def thumbnail(self, row: int) -> bytes | None:
        """The small picture of a test sample, a JPEG file, if there is one."""
        places = np.flatnonzero(self.arrays.get("thumbnail_rows", np.zeros(0)) == row)
        if not places.size:
            return None
        start, end = np.append(0, self.arrays["thumbnail_ends"])[places[0] : places[0] + 2]
        return self.arrays["thumbnails"][start:end].tobytes()

    @property
    def chance(self) -> float:
        """Score of guessing: 1 / classes, or for R@5 both ways 5 / gallery, at most 1."""
        if self.kind == "classification":
            return 1 / len(self.classes)
        galleries = (len(self.arrays["test_specific"]), len(self.arrays["test_general"]))
        return float(np.mean([min(1, 5 / n) for n in galleries]))


@dataclasses.dataclass(frozen=True)
class Store:
    """A stream of tasks with frozen features."""

    name: str
    backbone: str  # that made the features
    K: float  # squared radius of the hyperboloid
    tau: float  # temperature of the backbone's logits
    dimension: int  # d of the features
    tasks: tuple[Task, ...]  # in canonical order
    orders: Mapping[str, tuple[str, ...]]  # of the tasks' names; "canonical" is always there
    fingerprint: str  # SHA-256 of the manifest, and so of everything
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __getitem__(self, name: str) -> Task:
        tasks = {task.name: task for task in self.tasks}
        if name not in tasks:
            raise KeyError(f"{name!r}; the tasks are {list(tasks)}")
        return tasks[name]

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def modalities(self) -> tuple[str, ...]:
        """All modalities of the stream, sorted."""
        return tuple(sorted({m for task in self.tasks for m in (task.general, task.specific)}))

    def validate(self) -> None:
        """Checks shapes, label ranges, pairings, finiteness and that points are sane."""
        for task in self.tasks:
            validate_task(task, self.dimension, self.K)

    def describe(self) -> str:
        """A table of the tasks: kind, sizes, classes, chance and measured scores."""
        measured = sorted({score for task in self.tasks for score in task.scores})
        rows = [["#", "task", "kind", "modalities", "train", "test", "ways", "chance", *measured]]
        for index, task in enumerate(self.tasks, 1):
            ways = len(task.classes) or len(task.arrays["test_general"])
            sides = f"{task.general} > {task.specific}"
            sizes = [str(n) for n in (task.size("train"), task.size("test"), ways)]
            scores = [f"{task.scores[s]:.1%}" if s in task.scores else "" for s in measured]
            chance = f"{task.chance:.1%}"
            rows.append([str(index), task.name, task.kind, sides, *sizes, chance, *scores])
        columns = [[task.chance for task in self.tasks]]
        columns += [[t.scores[s] for t in self.tasks if s in t.scores] for s in measured]
        rows.append(["", "mean", *[""] * 5, *(f"{np.mean(column):.1%}" for column in columns)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = zip(row, widths, strict=True)
            padded = [c.ljust(w) if 1 <= i <= 3 else c.rjust(w) for i, (c, w) in enumerate(cells)]
            lines.append("  ".join(padded).rstrip())
        rule = "-" * max(map(len, lines))
        title = (
            f"{self.name}: {len(self.tasks)} tasks, d = {self.dimension}, K = {self.K:g}, "
            f"tau = {self.tau:.4g}, backbone {self.backbone}"
        )
        return "\n".join([title, rule, lines[0], rule, *lines[1:-1], rule, lines[-1]])


class StreamInfo(TypedDict):
    """What :func:`write_store` takes beside tasks."""

    name: str
    backbone: str
    K: float
    tau: float
    orders: NotRequired[Mapping[str, Sequence[str]] | None]
    provenance: NotRequired[Mapping[str, str] | None]


def write_store(
    path: str | os.PathLike[str],
    tasks: Sequence[Task],
    *,
    features: str | None = None,
    **info: Unpack[StreamInfo],
) -> str:
    """Writes a store; leaves nothing behind if it fails, and never overwrites anything.

    Args:
      path: a new directory, or a new file whose name ends in ``.zip``.
      tasks: in canonical order.
      features: None stores them as they are given, ``"int8"`` in half the size of float16 and less
        exactly, see :mod:`hmcl_jax.data.encoding`. Decoded arrays are kept in memory.
      **info: ``name``, ``backbone``, ``K`` and ``tau`` as in :class:`Store`; optionally ``orders``,
        other orders of the tasks by name, and ``provenance`` of the stream as a whole.

    Returns:
      The fingerprint of the store.
    """
    path, orders = Path(path), info.get("orders") or {}
    if path.exists():
        raise StoreError(f"path = {str(path)!r} exists already; choose another or remove it.")
    if features not in (None, "int8"):
        raise StoreError(f"features must be None (as given) or 'int8', got {features!r}.")
    check_finite(K=info["K"], tau=info["tau"])
    if "canonical" in orders:
        raise StoreError("orders must not name 'canonical': that is the order of the tasks.")
    named = {"canonical": [task.name for task in tasks], **orders}
    for task in tasks:
        check_form(task.name, task.kind, task.arrays)
        check_finite(**{f"Task {task.name!r}: score {k}": v for k, v in task.scores.items()})
    points = [x for task in tasks for name, x in task.arrays.items() if name not in INTEGERS]
    with _files.partial_folder(path) as partial:
        manifest: dict[str, Any] = {
            "schema": SCHEMA,
            "name": info["name"],
            "backbone": info["backbone"],
            "K": float(info["K"]),
            "tau": float(info["tau"]),
            "dimension": np.atleast_1d(points[0]).shape[-1] if points else 0,
            "orders": {key: list(order) for key, order in named.items()},
            "provenance": dict(info.get("provenance") or {}),
            "tasks": [_write_task(partial, task, features) for task in tasks],
        }
        manifest["sha256"] = _files.json_sha256(manifest)
        text = json.dumps(manifest, indent=1, sort_keys=True, allow_nan=False)
        (partial / MANIFEST).write_text(text, encoding="ascii")
        read_store(partial).validate()
        whole = partial
        if path.suffix == ".zip":
            whole = partial / ".packed"
            _pack(partial, whole)
        whole.replace(path)
    return str(manifest["sha256"])


def _write_task(root: Path, task: Task, features: str | None) -> dict[str, Any]:
    if (root / task.name).exists():
        raise StoreError(f"Task name {task.name!r} occurs twice.")
    (root / task.name).mkdir()
    stored = {
        array: as_stored(f"Task {task.name!r}: {array}", array, task.arrays[array])
        for array in (*ARRAYS[task.kind], *EXTRA)
        if array in task.arrays
    }
    encoded = encode_features(stored) if features else {}
    entries: dict[str, dict[str, Any]] = {}
    for array, values in stored.items():
        if array not in encoded:
            entries[array] = _save(root / task.name / f"{array}.npy", values)
            continue
        entries[array] = {"encoding": features, "dtype": values.dtype.str}
        for part, x in encoded[array][0]._asdict().items():
            entries[array][part] = _save(root / task.name / f"{array}.{part}.npy", x)
    return {
        **{field: getattr(task, field) for field in ("name", "kind", "general", "specific")},
        "classes": list(task.classes),
        "tree": [list(row) for row in task.tree],
        "scores": {key: float(value) for key, value in task.scores.items()},
        "provenance": dict(task.provenance),
        "arrays": entries,
    }


def _save(path: Path, values: np.ndarray) -> dict[str, Any]:
    np.save(path, values, allow_pickle=False)
    sha256 = _files.file_sha256(path)
    return {"shape": list(values.shape), "dtype": values.dtype.str, "sha256": sha256}


def _pack(root: Path, target: Path) -> None:
    """Members in a fixed order with a fixed date, so that equal stores are equal files."""
    members = [MANIFEST, *sorted(file.relative_to(root).as_posix() for file in root.rglob("*.npy"))]
    with zipfile.ZipFile(target, "x", zipfile.ZIP_STORED) as archive:
        for member in members:
            info = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
            # An extra field of padding, so that arrays start at multiples of 64 bytes.
            start = archive.fp.tell() + 30 + len(member) + 4  # type: ignore[union-attr]
            padding = -start % 64
            info.extra = b"\x35\xd9" + padding.to_bytes(2, "little") + bytes(padding)
            archive.writestr(info, (root / member).read_bytes())


def _open_members(path: Path) -> Callable[[str], np.ndarray]:
    """A function that returns the bytes of a member as a view of a mapped file."""
    if path.is_dir():
        return lambda member: np.memmap(path / member, np.uint8, "r")
    mapped = np.memmap(path, np.uint8, "r")
    with zipfile.ZipFile(path) as archive:
        infos = {info.filename: info for info in archive.infolist()}

    def view(member: str) -> np.ndarray:
        info = infos[member]
        if info.compress_type != zipfile.ZIP_STORED:
            raise StoreError(f"{path}: member {member!r} is compressed.")
        # A local header has 30 bytes, at 26 and 28 the lengths of the name and the extra field.
        lengths = mapped[info.header_offset + 26 : info.header_offset + 30].view("<u2")
        start = info.header_offset + 30 + int(lengths.sum())
        return mapped[start : start + info.file_size]

    return view


def read_store(path: str | os.PathLike[str], verify: bool = True) -> Store:
    """Opens a store; arrays are mapped, not loaded.

    Args:
      path: of a directory or a zip file that :func:`write_store` made.
      verify: compare the checksum of every array; the manifest's is always compared.
    """
    path = Path(path)
    if not path.exists():
        raise StoreError(f"There is no store at {str(path)!r}.")
    try:
        view = _open_members(path)
        return _parse(view, json.loads(view(MANIFEST).tobytes()), verify)
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error
    except Exception as error:  # damaged files cause many kinds of errors in json, zipfile, numpy
        reason = f"{type(error).__name__}: {error}"
        raise StoreError(f"{path} is not a readable store: {reason}") from error


def _parse(view: Callable[[str], np.ndarray], manifest: Any, verify: bool) -> Store:
    if str(manifest["schema"]) != str(SCHEMA):
        raise StoreError(f"schema must be {SCHEMA}, got {manifest['schema']!r}.")
    fingerprint = _files.json_sha256(manifest)
    if manifest["sha256"] != fingerprint:
        raise StoreError("the manifest does not match its own checksum.")
    tasks = []
    for entry in manifest["tasks"]:
        check_form(entry["name"], entry["kind"], entry["arrays"])
        arrays = {
            array: _read_entry(view, f"{entry['name']}/{array}", described, verify)
            for array, described in entry["arrays"].items()
        }
        task = Task(
            **{key: entry[key] for key in ("name", "kind", "general", "specific", "provenance")},
            arrays=Arrays(arrays),
            classes=tuple(map(str, entry["classes"])),
            tree=tuple((str(child), str(parent)) for child, parent in entry["tree"]),
            scores={key: float(value) for key, value in entry["scores"].items()},
        )
        tasks.append(task)
    names = [task.name for task in tasks]
    orders = {key: tuple(order) for key, order in manifest["orders"].items()}
    if not names or len(set(names)) < len(names) or "canonical" not in orders:
        raise StoreError(f"needs tasks with different names and a canonical order, got {names}.")
    for key, order in orders.items():
        if sorted(order) != sorted(names):
            raise StoreError(f"order {key!r} does not hold every task once.")
    sizes = {key: manifest[key] for key in ("K", "tau", "dimension")}
    check_finite(**sizes)
    if min(sizes.values()) <= 0:
        raise StoreError(f"K, tau and dimension must be positive, got {sizes}.")
    same = {key: manifest[key] for key in ("name", "backbone", "provenance")}
    return Store(**same, **sizes, tasks=tuple(tasks), orders=orders, fingerprint=fingerprint)


def _read_entry(
    view: Callable[[str], np.ndarray], member: str, entry: Mapping[str, Any], verify: bool
) -> Any:
    """A mapped array, or the mapped parts of an encoded one and its dtype."""
    if "encoding" not in entry:
        return _read_array(view, f"{member}.npy", entry, verify)
    form, features = (entry["encoding"], entry["dtype"]), member.split("/")[1] not in INTEGERS
    if form not in (("int8", "<f2"), ("int8", "<f4")) or not features:
        raise StoreError(
            f"{member} has the encoding and dtype {str(form)[:80]}; known is int8 of <f2 or <f4, "
            "for features. Was the store written by a newer version?"
        )
    parts = Encoded(
        *(_read_array(view, f"{member}.{k}.npy", entry[k], verify) for k in Encoded._fields)
    )
    rows, columns = parts.codes.shape[:1], parts.codes.shape[1:]
    if parts.codes.ndim != 2 or (parts.scales.shape, parts.offset.shape) != (rows, columns):
        shapes = [part.shape for part in parts]
        raise StoreError(f"{member} needs parts of shape (n, d), (n,) and (d,), got {shapes}.")
    return parts, np.dtype(entry["dtype"])


def _read_array(
    view: Callable[[str], np.ndarray], member: str, entry: Mapping[str, Any], verify: bool
) -> np.ndarray:
    data = view(member)
    if verify and hashlib.sha256(data.data).hexdigest() != entry["sha256"]:
        raise StoreError(f"{member} does not match its checksum.")
    header = io.BytesIO(data[:4096].tobytes())
    if npy.read_magic(header) != (1, 0):
        raise StoreError(f"{member} is not a .npy file of version 1.0.")
    shape, by_columns, dtype = npy.read_array_header_1_0(header)
    described = [list(shape), dtype.str] == [entry["shape"], entry["dtype"]]
    if not described or by_columns or dtype.hasobject or min(shape, default=0) < 0:
        raise StoreError(f"{member} must have shape {entry['shape']} and dtype {entry['dtype']}.")
    if len(data) != header.tell() + dtype.itemsize * math.prod(shape):
        raise StoreError(f"{member} has {len(data)} bytes, which do not fit {shape}; truncated?")
    return data[header.tell() :].view(dtype).reshape(shape)
