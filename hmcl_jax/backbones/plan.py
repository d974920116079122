"""What an extraction is made of, and its folder: nothing of one is ever mixed with another.

The contents of pictures are not looked at here: do not change them between a stop and --resume.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import filelock
import numpy as np

from hmcl_jax import _files
from hmcl_jax._versions import versions
from hmcl_jax.data.ingest import Collection, FeatureCollection
from hmcl_jax.data.store import MANIFEST, NAME, read_store

PLAN, LOCK = "plan.json", "lock"
MADE_BY = ("hmcl_jax", "jax", "jaxlib", "pillow", "tokenizers")  # they change features' last bits
MOST = 2**16  # of any of the options
Source = Collection | FeatureCollection


class ExtractError(ValueError):
    """Features cannot be extracted as asked."""


class Encoder(Protocol):
    """What is needed of a backbone; :class:`hmcl_jax.backbones.Backbone` is one."""

    name: str
    K: float
    tau: float
    dimension: int
    image_size: int
    dtype: str
    fingerprint: str

    def encode_images(self, pixels: np.ndarray) -> np.ndarray: ...
    def encode_texts(self, tokens: np.ndarray) -> np.ndarray: ...
    def prototypes(self, tokens: np.ndarray, classes: np.ndarray) -> np.ndarray: ...


@dataclasses.dataclass(frozen=True)
class Options:
    """How features are made.

    Attributes:
      batch: pictures or texts that go through a tower at once.
      shard: of how many batches a shard consists; what a crash can cost.
      dtype: of the features in the store, ``"float16"`` or ``"float32"``.
      on_error: ``"raise"`` or ``"skip"`` pictures that cannot be read.
      upright: whether pictures are turned as their EXIF data says; published protocols do not.
      workers: threads that decode pictures.
      thumbnails: small pictures of so many test samples per task go into the store.
    """

    batch: int = 64
    shard: int = 32
    dtype: str = "float16"
    on_error: str = "raise"
    upright: bool = False
    workers: int = 2
    thumbnails: int = 0

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("shard", 1), ("workers", 1), ("thumbnails", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= MOST:
                raise ExtractError(
                    f"{name} must be a whole number from {least} to {MOST}, got {value!r}."
                )
        for name, known in (("dtype", ("float16", "float32")), ("on_error", ("raise", "skip"))):
            if getattr(self, name) not in known:
                raise ExtractError(f"{name} must be one of {known}, got {getattr(self, name)!r}.")


def make_plan(
    sources: Sequence[Source],
    encoder: Encoder,
    name: str,
    options: Options,
    orders: Mapping[str, Sequence[str]] | None,
) -> dict[str, Any]:
    """What a store is made of; refuses what cannot become one, before any work is done."""
    if not sources:
        raise ExtractError("sources must name at least one task, got none.")
    names = [source.name for source in sources]
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ExtractError(f"The task {twice[0]!r} is given twice; give one another name.")
    for source in sources:
        if not NAME.fullmatch(source.name) or source.name == MANIFEST:
            raise ExtractError(f"The name {source.name!r} is not one for a task; give another.")
        if isinstance(source, FeatureCollection):
            found = {x.shape[1] for x in source.arrays.values() if x.dtype.kind == "f"}
            if found != {encoder.dimension}:
                raise ExtractError(
                    f"{source.name}: its features have dimension {sorted(found)}, those of the "
                    f"backbone {encoder.dimension}; all tasks of a stream share one."
                )
        if isinstance(source, FeatureCollection) and not np.isclose(source.K, encoder.K):
            raise ExtractError(
                f"{source.name}: its features lie on the hyperboloid of K = {source.K:g}, those of "
                f"the backbone on that of {encoder.K:g}; state K in its collection.toml."
            )
        known = isinstance(source, FeatureCollection) and source.prototypes is not None
        if source.kind == "classification" and not source.prompts and not known:
            raise ExtractError(
                f"{source.name}: no prompts; give --prompt, such as 'a photo of a {{}}.'"
            )
    made_by = dataclasses.asdict(options)
    del made_by["workers"]  # changes nothing in the result
    return {
        "name": name,
        "backbone": f"{encoder.fingerprint} in {encoder.dtype}",
        "versions": versions(MADE_BY),
        "options": made_by,
        "tasks": {source.name: _fingerprint(source) for source in sources},
        "orders": {key: list(order) for key, order in (orders or {}).items()},
    }


def digest(plan: Mapping[str, Any]) -> str:
    return _files.json_sha256(plan)


def _fingerprint(source: Source) -> str:
    """SHA-256 of what a source says of itself, without the contents of its pictures."""
    found = hashlib.sha256()

    def add(*texts: str) -> None:
        for text in texts:
            found.update(f"{len(text)}:{text}".encode("utf8", "surrogateescape"))

    add(source.name, source.kind, *source.classes, "", *source.prompts)
    add(*(text for item in sorted(source.provenance.items()) for text in item))
    if isinstance(source, FeatureCollection):
        add(source.general, source.specific)
        arrays = {**source.arrays, "prototypes": source.prototypes}
        for array, values in sorted(arrays.items()):
            if values is None:
                continue
            add(array, str(values.dtype), str(values.shape))
            found.update(np.ascontiguousarray(values).data)
        return found.hexdigest()
    add(source.fit)
    for split in (source.train, source.test):
        add(*(picture.key for picture in split.pictures), "", *split.captions)
        for values in (split.labels, split.pairs):
            found.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


def already_made(out: Path, work: Path, plan: Mapping[str, Any], resume: bool) -> str:
    """The store is there: fine if it is what this call would make and `resume` is on."""
    if resume:
        store = read_store(out)
        if store.provenance.get("plan") == digest(plan):
            shutil.rmtree(work, ignore_errors=True)
            return store.fingerprint
        raise ExtractError(f"{out} exists already and was made otherwise; choose another --out.")
    raise ExtractError(f"{out} exists already; choose another or remove it.")


@contextlib.contextmanager
def work_folder(work: Path, plan: Mapping[str, Any], resume: bool) -> Iterator[None]:
    """The folder of shards, for this process alone: a new one, or one with shards of this plan."""
    begun = work / PLAN
    ours = {work / LOCK, *_files.partials(begun)}
    if work.exists() and not begun.exists() and set(work.iterdir()) - ours:
        raise ExtractError(f"{work} is in the way and not ours; remove it.")
    work.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(work / LOCK, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ExtractError(f"{work} is in use by another process; wait for it.") from None
    try:
        if begun.exists():
            _check_plan(begun, plan, resume)
        else:
            _files.write_whole(begun, json.dumps(plan, sort_keys=True))
        yield
    finally:
        lock.release()


def _check_plan(begun: Path, plan: Mapping[str, Any], resume: bool) -> None:
    work = begun.parent
    if not resume:
        raise ExtractError(f"{work} was begun already; go on with --resume, or remove it.")
    try:
        old = json.loads(begun.read_bytes())
    except ValueError:
        raise ExtractError(f"{begun} is damaged; remove {work}.") from None
    other = [key for key in plan if not isinstance(old, dict) or old.get(key) != plan[key]]
    if other:
        raise ExtractError(
            f"{work} was begun with another {' and '.join(other)}; say the same again, "
            "or remove it."
        )
