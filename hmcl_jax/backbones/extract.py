"""From collections of pictures and texts to a feature store, with a frozen backbone.

Everything is made in shards (:mod:`hmcl_jax.backbones.shards`) in ``OUT.partial`` beside the store:
a run that was stopped goes on with the next shard, and ends with the same bytes, because batches
never reach across shards. ``OUT.partial/plan.json`` says what the shards were made of; another
backbone, other data, options or versions are refused there.
"""

import dataclasses
import io
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from hmcl_jax._files import partials
from hmcl_jax.backbones.pictures import read_batches
from hmcl_jax.backbones.plan import (
    Encoder,
    ExtractError,
    Options,
    Source,
    already_made,
    digest,
    make_plan,
    work_folder,
)
from hmcl_jax.backbones.shards import Shard, Shards
from hmcl_jax.data.ingest import Collection, FeatureCollection, Split, distinct_names
from hmcl_jax.data.store import Task, write_store
from hmcl_jax.evaluation import symmetric_recall, top1

Tokenize = Callable[[Sequence[str]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Step:
    """How far an extraction is.

    Attributes:
      task: name.
      part: such as ``"train pictures"``.
      done: rows of this part.
      total: rows of this part.
      fresh: rows made since this process started on the part.
      seconds: since then.
    """

    task: str
    part: str
    done: int
    total: int
    fresh: int
    seconds: float


Listener = Callable[[Step], None]


def extract_store(
    out: str | Path,
    sources: Sequence[Source],
    encoder: Encoder,
    tokenize: Tokenize,
    *,
    name: str,
    options: Options | None = None,
    orders: Mapping[str, Sequence[str]] | None = None,
    resume: bool = False,
    listener: Listener | None = None,
) -> str:
    """Makes a feature store; see the module's head.

    Args:
      out: of the store, a new directory or a new file that ends in ``.zip``.
      sources: the tasks, in canonical order.
      encoder: the backbone.
      tokenize: texts to token ids.
      name: of the stream.
      options: how features are made.
      orders: other orders of the tasks, by name.
      resume: whether to go on where ``OUT.partial`` ends.
      listener: is told how far it is.

    Returns:
      The fingerprint of the store.
    """
    options = options or Options()
    out = Path(out)
    if not out.name:
        raise ExtractError(f"out must name a new folder or file, got {str(out)!r}.")
    work = out.with_name(f"{out.name}.partial")
    plan = make_plan(sources, encoder, name, options, orders)
    if out.exists():
        return already_made(out, work, plan, resume)
    with work_folder(work, plan, resume):
        for left in partials(out):  # by a crash while it was written
            shutil.rmtree(left)
        maker = _Maker(work, encoder, tokenize, options, listener)
        tasks = [
            maker.from_pictures(source)
            if isinstance(source, Collection)
            else maker.from_features(source)
            for source in sources
        ]
        fingerprint = write_store(
            out,
            tasks,
            name=name,
            backbone=encoder.name,
            K=encoder.K,
            tau=encoder.tau,
            orders=orders,
            provenance={
                "backbone": plan["backbone"],
                "versions": ", ".join(f"{name} {v}" for name, v in plan["versions"].items()),
                "plan": digest(plan),
            },
        )
    shutil.rmtree(work)
    return fingerprint


# Rows of the source, their points, and what was bad.
_Made = tuple[np.ndarray, np.ndarray, list[tuple[int, str, str]]]


class _Maker:
    """Makes the tasks one after the other."""

    def __init__(
        self,
        work: Path,
        encoder: Encoder,
        tokenize: Tokenize,
        options: Options,
        listener: Listener | None,
    ) -> None:
        self.work, self.encoder, self.tokenize, self.options = work, encoder, tokenize, options
        self.listener = listener

    def from_pictures(self, source: Collection) -> Task:
        made: dict[str, np.ndarray] = {}
        notes = dict(source.provenance)
        if source.kind == "classification":
            made["prototypes"] = self._prototypes(source)
        for which, split in (("train", source.train), ("test", source.test)):
            shown = self._pictures(source, which, split)
            if shown.bad:
                notes[f"skipped_{which}"] = _skipped(shown.bad, len(split.pictures))
            if source.kind == "classification":
                assert split.labels is not None
                made[f"{which}_features"] = shown.features
                made[f"{which}_labels"] = split.labels[shown.rows]
                if which == "train":
                    _refuse_empty(source, made["train_labels"])
            else:
                texts = self._texts(source, which, split)
                made |= _paired(which, split, shown, texts)
            if which == "test" and self.options.thumbnails:
                made |= self._thumbnails(split, shown.rows)
        task = Task(
            *(source.name, source.kind, "text", "image", made),
            classes=distinct_names(source.classes),
            provenance=notes,
        )
        return dataclasses.replace(task, scores={"zero_shot": self._zero_shot(task)})

    def from_features(self, source: FeatureCollection) -> Task:
        unknown = source.kind == "classification" and source.prototypes is None
        task = source.task(self._prototypes(source) if unknown else None)
        stored = {
            name: self._stored(source.name, name, values) if values.dtype.kind == "f" else values
            for name, values in task.arrays.items()
        }
        task = dataclasses.replace(task, arrays=stored)
        return dataclasses.replace(task, scores={"zero_shot": self._zero_shot(task)})

    def _zero_shot(self, task: Task) -> float:
        """The score before anything is learned."""
        classes = task.kind == "classification"
        sides = ("prototypes", "test_features") if classes else ("test_general", "test_specific")
        general, specific = (np.asarray(task.arrays[side], np.float32) for side in sides)
        known = task.arrays["test_labels" if classes else "test_pairs"]
        score = top1 if classes else symmetric_recall
        return float(score(general, specific, known, K=self.encoder.K))

    def _shards(self, task: str, part: str, rows: int) -> Shards:
        size = self.options.batch * self.options.shard
        return Shards(self.work / "tasks" / task / part.replace(" ", "_"), rows, size)

    def _prototypes(self, source: Source) -> np.ndarray:
        """One point per class, in one shard: the mean needs all prompts of a class."""
        shards = Shards(
            self.work / "tasks" / source.name / "prototypes", len(source.classes), 2**31
        )
        done, started, fresh = shards.read(0), time.perf_counter(), 0
        if done is None:
            prompts = [p.replace("{}", name) for name in source.classes for p in source.prompts]
            classes = np.repeat(np.arange(len(source.classes), dtype=np.int32), len(source.prompts))
            tokens = self.tokenize(prompts)
            _refuse_equal(source, tokens.reshape(len(source.classes), -1))
            points = self.encoder.prototypes(tokens, classes)
            features = self._stored(source.name, "prototypes", points)
            done = Shard(features, np.arange(len(points)))
            shards.write(0, done)
            fresh = len(points)
        seconds = time.perf_counter() - started
        self._tell(source.name, "prototypes", len(done.rows), len(done.rows), fresh, seconds)
        return np.asarray(done.features)

    def _texts(self, source: Collection, which: str, split: Split) -> np.ndarray:
        def make(span: range) -> Iterator[_Made]:
            for start in span[:: self.options.batch]:
                rows = range(start, min(span.stop, start + self.options.batch))
                tokens = self.tokenize([split.captions[row] for row in rows])
                yield np.asarray(rows), self.encoder.encode_texts(tokens), []

        return self._make(source.name, f"{which} texts", len(split.captions), make).features

    def _pictures(self, source: Collection, which: str, split: Split) -> Shard:
        def make(span: range) -> Iterator[_Made]:
            chosen = [split.pictures[row] for row in span]
            batches = read_batches(
                chosen,
                self.encoder.image_size,
                source.fit,
                self.options.batch,
                workers=self.options.workers,
                on_error=self.options.on_error,
                upright=self.options.upright,
            )
            for rows, pixels, bad in batches:
                points = self.encoder.encode_images(pixels) if len(rows) else np.zeros((0, 1))
                told = [(span.start + row, chosen[row].key, reason) for row, reason in bad]
                yield span.start + np.asarray(rows, np.int64), points, told

        found = self._make(source.name, f"{which} pictures", len(split.pictures), make)
        if not len(found.rows):
            raise ExtractError(f"{source.name}: no {which} picture can be read.")
        return found

    def _make(
        self, task: str, part: str, rows: int, make: Callable[[range], Iterator[_Made]]
    ) -> Shard:
        """All shards of a part, those that are finished from disk."""
        shards = self._shards(task, part, rows)
        started, fresh = time.perf_counter(), 0
        for number in range(len(shards)):
            span = shards.span(number)
            if shards.read(number) is None:
                kept, points, bad = [], [], []
                for some, encoded, wrong in make(span):
                    bad += wrong
                    fresh += len(some) + len(wrong)
                    if len(some):
                        kept.append(some)
                        points.append(self._stored(task, part, encoded))
                    seconds = time.perf_counter() - started
                    done = span.start + sum(map(len, kept)) + len(bad)
                    self._tell(task, part, done, rows, fresh, seconds)
                shards.write(number, _joined(kept, points, bad, self.options.dtype))
            self._tell(task, part, span.stop, rows, fresh, time.perf_counter() - started)
        return shards.whole()

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
        """Small pictures of some test samples, evenly spread."""
        from PIL import Image

        count = min(self.options.thumbnails, len(rows))
        places = np.unique(np.linspace(0, len(rows) - 1, count).round().astype(np.int64))
        files = []
        chosen = [split.pictures[rows[place]] for place in places]
        for _, pixels, _ in read_batches(chosen, 96, "squash", 16, upright=self.options.upright):
            for picture in pixels:
                file = io.BytesIO()
                Image.fromarray(picture).save(file, "JPEG", quality=80)
                files.append(np.frombuffer(file.getvalue(), np.uint8))
        return {
            "thumbnails": np.concatenate(files),
            "thumbnail_ends": np.cumsum([len(file) for file in files]),
            "thumbnail_rows": places,
        }

    def _tell(
        self, task: str, part: str, done: int, total: int, fresh: int, seconds: float
    ) -> None:
        if self.listener is not None:
            self.listener(Step(task, part, done, total, fresh, seconds))


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


def _refuse_empty(source: Collection, labels: np.ndarray) -> None:
    missing = np.setdiff1d(np.arange(len(source.classes)), labels)
    if missing.size:
        raise ExtractError(
            f"{source.name}: no training picture of the class {source.classes[missing[0]]!r} can "
            "be read; mend them, or take the class out."
        )


def _joined(kept: list, points: list, bad: list, dtype: str) -> Shard:
    if not kept:
        return Shard(np.zeros((0, 1), dtype), np.zeros(0, np.int64), tuple(bad))
    return Shard(np.concatenate(points), np.concatenate(kept), tuple(bad))


def _skipped(bad: Sequence[tuple[int, str, str]], total: int) -> str:
    """For the store's provenance."""
    _, key, reason = bad[0]
    return f"{len(bad)} of {total} pictures, the first {key}: {reason}"


def _paired(which: str, split: Split, shown: Shard, texts: np.ndarray) -> dict[str, np.ndarray]:
    """Arrays of a retrieval split; without pictures that were skipped, and their texts."""
    assert split.pairs is not None
    place = np.full(len(split.pictures), -1, np.int64)
    place[shown.rows] = np.arange(len(shown.rows))
    pairs = np.stack([place[split.pairs[:, 0]], split.pairs[:, 1]], axis=1)
    pairs = pairs[pairs[:, 0] >= 0]
    used, captions = np.unique(pairs[:, 1], return_inverse=True)
    return {
        f"{which}_specific": shown.features,
        f"{which}_general": texts[used],
        f"{which}_pairs": np.stack([pairs[:, 0], captions], axis=1).astype(np.int32),
    }
