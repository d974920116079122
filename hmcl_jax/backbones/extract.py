"""From collections of pictures and texts to a feature store, with a frozen backbone.

All features are made in shards (:mod:`hmcl_jax.backbones.shards`) in ``OUT.partial`` beside the
store. A run that was stopped resumes at the first missing shard and ends with the same bytes,
because batches never reach across shards. ``OUT.partial/plan.json`` records backbone, data,
options and versions; a run with others is refused. The contents of pictures are not part of it: do
not change them between a stop and a resume.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
from PIL import Image

from hmcl_jax import _checks, _files
from hmcl_jax._versions import versions
from hmcl_jax.backbones.backbone import Backbone
from hmcl_jax.backbones.images import read_batches
from hmcl_jax.backbones.shards import Shard, Shards, join_shards
from hmcl_jax.data.feature_arrays import FeatureCollection
from hmcl_jax.data.image_datasets import Collection, Split, distinct_names
from hmcl_jax.data.store import MANIFEST, NAME, Task, read_store, write_store
from hmcl_jax.evaluation import symmetric_recall, top1

PLAN, LOCK = "plan.json", "lock"
MADE_BY = ("hmcl_jax", "jax", "jaxlib", "pillow", "tokenizers")  # they change features' last bits
Source = Collection | FeatureCollection


class ExtractError(ValueError):
    """Features cannot be extracted as requested."""


@dataclasses.dataclass(frozen=True)
class Options:
    """How features are made."""

    batch: int = 64  # pictures or texts that go through a tower at once
    shard: int = 32  # batches per shard; a crash costs at most one shard
    dtype: str = "float16"  # of the features in the store, or "float32"
    on_error: str = "raise"  # or "skip" pictures that cannot be read
    upright: bool = False  # turn pictures as their EXIF data says; published protocols do not
    workers: int = 2  # threads that decode pictures
    thumbnails: int = 0  # number of test samples per task whose small pictures the store holds
    resume: bool = False  # continue from the shards in OUT.partial

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("shard", 1), ("workers", 1), ("thumbnails", 0)):
            _checks.integer(name, getattr(self, name), least)
        _checks.choice("dtype", self.dtype, ("float16", "float32"))
        _checks.choice("on_error", self.on_error, ("raise", "skip"))


class Step(NamedTuple):
    """The progress of an extraction."""

    task: str
    part: str  # such as "train pictures"
    done: int  # rows of this part
    total: int
    fresh: int  # rows made since this process started on the part
    seconds: float  # since then


def extract_store(
    out: str | Path,
    sources: Sequence[Source],
    encoder: Backbone,
    *,
    name: str,
    options: Options | None = None,
    orders: Mapping[str, Sequence[str]] | None = None,
    listener: Callable[[Step], None] | None = None,
) -> str:
    """Makes a feature store.

    Args:
      out: the store, a new directory or a new file that ends in ``.zip``.
      sources: the tasks, in canonical order.
      encoder: the backbone, or any object with its methods and attributes.
      name: of the stream.
      options: how features are made.
      orders: other orders of the tasks, by name.
      listener: called with the progress after every batch.

    Returns:
      The fingerprint of the store.
    """
    options = options or Options()
    out = Path(out)
    work = out.with_name(f"{out.name}.partial")
    plan = make_plan(sources, encoder, name, options, orders or {})
    if out.exists():
        store = read_store(out) if options.resume else None
        if store is None or store.provenance.get("plan") != _files.json_sha256(plan):
            raise ExtractError(f"out = {str(out)!r} exists already; choose another or remove it.")
        shutil.rmtree(work, ignore_errors=True)
        return store.fingerprint
    with _work_folder(work, plan, options.resume):
        for left in _files.partials(out):  # by a crash while the store was written
            shutil.rmtree(left)
        extraction = _Extraction(work, encoder, options, listener)
        fingerprint = write_store(
            out,
            [extraction.task(source) for source in sources],
            name=name,
            backbone=encoder.name,
            K=encoder.K,
            tau=encoder.tau,
            orders=orders,
            provenance={
                "backbone": plan["backbone"],
                "versions": ", ".join(f"{name} {v}" for name, v in plan["versions"].items()),
                "plan": _files.json_sha256(plan),
            },
        )
    shutil.rmtree(work)
    return fingerprint


def make_plan(
    sources: Sequence[Source],
    encoder: Backbone,
    name: str,
    options: Options,
    orders: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Everything that decides a store's content; refuses sources that cannot become one."""
    if not sources:
        raise ExtractError("sources must name at least one task, got none.")
    names = [source.name for source in sources]
    for source in sources:
        if names.count(source.name) > 1:
            raise ExtractError(f"The task {source.name!r} is given twice; give one another name.")
        _check_source(source, encoder)
    return {
        "name": name,
        "backbone": f"{encoder.fingerprint} in {encoder.dtype}",
        "versions": versions(MADE_BY),
        # Workers and resume do not change the result.
        "options": {k: v for k, v in vars(options).items() if k not in ("workers", "resume")},
        "tasks": {source.name: _fingerprint(source) for source in sources},
        "orders": {key: list(order) for key, order in orders.items()},
    }


def _check_source(source: Source, encoder: Backbone) -> None:
    if not NAME.fullmatch(source.name) or source.name == MANIFEST:
        raise ExtractError(f"{source.name!r} cannot be the name of a task; give another.")
    if isinstance(source, FeatureCollection):
        dimensions = {x.shape[1] for x in source.arrays.values() if x.dtype.kind == "f"}
        if dimensions != {encoder.dimension}:
            raise ExtractError(
                f"{source.name}: its features have dimension {sorted(dimensions)}, those of the "
                f"backbone {encoder.dimension}; all tasks of a stream must share one."
            )
        if not np.isclose(source.K, encoder.K):
            raise ExtractError(
                f"{source.name}: its features lie on the hyperboloid of K = {source.K:g}, those "
                f"of the backbone on that of {encoder.K:g}; state K in its collection.toml."
            )
    known = isinstance(source, FeatureCollection) and source.prototypes is not None
    if source.kind == "classification" and not source.prompts and not known:
        raise ExtractError(
            f"{source.name}: no prompts; give --prompt, such as 'a photo of a {{}}.'"
        )


def _fingerprint(source: Source) -> str:
    """SHA-256 of a source, without the contents of its pictures."""
    digest = hashlib.sha256()

    def add(*texts: str) -> None:
        for text in texts:
            digest.update(f"{len(text)}:{text}".encode("utf8", "surrogateescape"))

    add(source.name, source.kind, *source.classes, "", *source.prompts)
    add(*(text for item in sorted(source.provenance.items()) for text in item))
    if isinstance(source, FeatureCollection):
        add(source.general, source.specific)
        for array, values in sorted({**source.arrays, "prototypes": source.prototypes}.items()):
            if values is not None:
                add(array, str(values.dtype), str(values.shape))
                digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()
    add(source.fit)
    for split in (source.train, source.test):
        add(*(picture.key for picture in split.pictures), "", *split.captions)
        for values in (split.labels, split.pairs):
            digest.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _work_folder(work: Path, plan: Mapping[str, Any], resume: bool) -> Iterator[None]:
    """Locks the folder of shards: a new one, or one with shards of the same plan."""
    begun = work / PLAN
    ours = {work / LOCK, *_files.partials(begun)}
    if work.exists() and not begun.exists() and set(work.iterdir()) - ours:
        raise ExtractError(f"{work} is in the way and was not made by an extraction; remove it.")
    work.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(work / LOCK, timeout=0):
            if not begun.exists():
                _files.write_whole(begun, json.dumps(plan, sort_keys=True))
            elif not resume:
                raise ExtractError(f"{work} exists; continue with --resume, or remove it.")
            old = json.loads(begun.read_bytes())
            if other := [key for key in plan if old.get(key) != plan[key]]:
                raise ExtractError(
                    f"{work} was begun with another {' and '.join(other)}; use the same again, or "
                    "remove it."
                )
            yield
    except filelock.Timeout:
        raise ExtractError(f"{work} is in use by another process; wait for it.") from None


@dataclasses.dataclass(frozen=True)
class _Extraction:
    """Makes the tasks one after the other."""

    work: Path
    encoder: Backbone
    options: Options
    listener: Callable[[Step], None] | None

    def task(self, source: Source) -> Task:
        """The task of a source, with its score before anything is learned."""
        if isinstance(source, Collection):
            task = self._from_pictures(source)
        else:
            task = self._from_features(source)
        general, specific, pairs = task.pairs("test")
        points = np.asarray(general, np.float32), np.asarray(specific, np.float32)
        if task.kind == "classification":
            score = top1(*points, pairs[:, 1], K=self.encoder.K)
        else:
            score = symmetric_recall(*points, pairs, K=self.encoder.K)
        return dataclasses.replace(task, scores={"zero_shot": float(score)})

    def _from_pictures(self, source: Collection) -> Task:
        arrays: dict[str, np.ndarray] = {}
        notes = dict(source.provenance)
        if source.kind == "classification":
            arrays["prototypes"] = self._prototypes(source)
        for which, split in (("train", source.train), ("test", source.test)):
            encoded = self._pictures(source, which, split)
            if encoded.bad:
                _, key, reason = encoded.bad[0]
                count = f"{len(encoded.bad)} of {len(split.pictures)} pictures"
                notes[f"skipped_{which}"] = f"{count}, the first {key}: {reason}"
            if split.labels is not None:
                arrays[f"{which}_features"] = encoded.features
                arrays[f"{which}_labels"] = split.labels[encoded.rows]
                missing = np.setdiff1d(np.arange(len(source.classes)), arrays["train_labels"])
                if missing.size:
                    raise ExtractError(
                        f"{source.name}: no training picture of the class "
                        f"{source.classes[missing[0]]!r} can be read; repair them, or remove it."
                    )
            else:
                arrays |= _paired(which, split, encoded, self._texts(source, which, split))
            if which == "test" and self.options.thumbnails:
                arrays |= self._thumbnails(split, encoded.rows)
        classes = distinct_names(source.classes)
        return Task(source.name, source.kind, "text", "image", arrays, classes, provenance=notes)

    def _from_features(self, source: FeatureCollection) -> Task:
        unknown = source.kind == "classification" and source.prototypes is None
        task = source.task(self._prototypes(source) if unknown else None)
        stored = {
            name: self._stored(source.name, name, values) if values.dtype.kind == "f" else values
            for name, values in task.arrays.items()
        }
        return dataclasses.replace(task, arrays=stored)

    def _prototypes(self, source: Source) -> np.ndarray:
        """One point per class, in one shard: the mean needs all prompts of a class."""

        def encode(span: range) -> Iterator[Shard]:
            prompts = [p.replace("{}", name) for name in source.classes for p in source.prompts]
            classes = np.repeat(np.arange(len(source.classes), dtype=np.int32), len(source.prompts))
            tokens = self.encoder.tokenize(prompts)
            _refuse_equal(source, tokens.reshape(len(source.classes), -1))
            yield Shard(self.encoder.prototypes(tokens, classes), np.asarray(span))

        rows = len(source.classes)
        return np.asarray(self._encode(source.name, "prototypes", rows, encode, rows).features)

    def _texts(self, source: Collection, which: str, split: Split) -> np.ndarray:
        def encode(span: range) -> Iterator[Shard]:
            for start in span[:: self.options.batch]:
                rows = range(start, min(span.stop, start + self.options.batch))
                tokens = self.encoder.tokenize([split.captions[row] for row in rows])
                yield Shard(self.encoder.encode_texts(tokens), np.asarray(rows))

        return self._encode(source.name, f"{which} texts", len(split.captions), encode).features

    def _pictures(self, source: Collection, which: str, split: Split) -> Shard:
        options = self.options

        def encode(span: range) -> Iterator[Shard]:
            pictures = [split.pictures[row] for row in span]
            batches = read_batches(
                *(pictures, self.encoder.image_size, source.fit, options.batch),
                workers=options.workers,
                on_error=options.on_error,
                upright=options.upright,
            )
            for rows, pixels, bad in batches:
                empty = np.zeros((0, self.encoder.dimension))
                points = self.encoder.encode_images(pixels) if len(rows) else empty
                named = tuple((span.start + row, pictures[row].key, why) for row, why in bad)
                yield Shard(points, span.start + rows, named)

        whole = self._encode(source.name, f"{which} pictures", len(split.pictures), encode)
        if not len(whole.rows):
            raise ExtractError(f"{source.name}: no {which} picture can be read.")
        return whole

    def _encode(
        self,
        task: str,
        part: str,
        rows: int,
        encode: Callable[[range], Iterator[Shard]],
        shard_rows: int | None = None,
    ) -> Shard:
        """All shards of a part; finished ones are read from disk."""
        size = shard_rows or self.options.batch * self.options.shard
        shards = Shards(self.work / "tasks" / task / part.replace(" ", "_"), rows, size)
        started, fresh = time.perf_counter(), 0

        def report(done: int) -> None:
            if self.listener is not None:
                seconds = time.perf_counter() - started
                self.listener(Step(task, part, done, rows, fresh, seconds))

        finished = []
        for number in range(len(shards)):
            span = shards.span(number)
            shard = shards.read(number)
            if shard is None:
                before, batches = fresh, []
                for batch in encode(span):
                    stored = self._stored(task, part, batch.features)
                    batches.append(batch._replace(features=stored))
                    fresh += len(batch.rows) + len(batch.bad)
                    report(span.start + fresh - before)
                shard = join_shards(batches)
                shards.write(number, shard)
            finished.append(shard)
            report(span.stop)
        return join_shards(finished)

    def _stored(self, task: str, part: str, points: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            stored = points.astype(self.options.dtype)
        if not np.isfinite(stored).all():
            largest = float(np.abs(points).max())
            raise ExtractError(
                f"{task}: {part} are not finite in {self.options.dtype} (largest {largest:g}); "
                "use float32, and look at the backbone."
            )
        return stored

    def _thumbnails(self, split: Split, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Small pictures of some test samples, evenly spaced."""
        count = min(self.options.thumbnails, len(rows))
        chosen = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))
        files = []
        pictures = [split.pictures[rows[row]] for row in chosen]
        for _, pixels, _ in read_batches(pictures, 96, "squash", 16, upright=self.options.upright):
            for picture in pixels:
                file = io.BytesIO()
                Image.fromarray(picture).save(file, "JPEG", quality=80)
                files.append(np.frombuffer(file.getvalue(), np.uint8))
        return {
            "thumbnails": np.concatenate(files),
            "thumbnail_ends": np.cumsum([len(file) for file in files]),
            "thumbnail_rows": chosen,
        }


def _refuse_equal(source: Source, tokens: np.ndarray) -> None:
    """Refuses prompts so long that class names are cut off, and two get the same tokens."""
    seen: dict[bytes, str] = {}
    for name, row in zip(source.classes, tokens, strict=True):
        other = seen.setdefault(row.tobytes(), name)
        if other != name:
            raise ExtractError(
                f"{source.name}: the classes {other!r} and {name!r} have the same prompts in "
                "tokens; make the prompts shorter, or the names more different."
            )


def _paired(which: str, split: Split, encoded: Shard, texts: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays of a retrieval split, without the bad pictures and their texts."""
    assert split.pairs is not None
    new_row = np.full(len(split.pictures), -1, np.int64)
    new_row[encoded.rows] = np.arange(len(encoded.rows))
    pairs = np.stack([new_row[split.pairs[:, 0]], split.pairs[:, 1]], axis=1)
    pairs = pairs[pairs[:, 0] >= 0]
    used, captions = np.unique(pairs[:, 1], return_inverse=True)
    return {
        f"{which}_specific": encoded.features,
        f"{which}_general": texts[used],
        f"{which}_pairs": np.stack([pairs[:, 0], captions], axis=1).astype(np.int32),
    }
