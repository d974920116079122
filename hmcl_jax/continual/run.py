"""A stream of tasks, one method after the other, all seeds at once.

After every task all tasks seen so far are scored, and the run is checkpointed: heads, method state
(moments, memories), AdamW's moments if they outlive a task, and scores. Anchor, protected system
and orders follow from these, so a killed run resumes bitwise.
"""

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack

import jax
import numpy as np

from hmcl_jax.continual.config import ConfigError, TrainConfig
from hmcl_jax.continual.distributed import check_same, is_first
from hmcl_jax.continual.experiment import (
    DEFAULT_METHODS,
    SEEDS,
    check_methods,
    check_order,
    check_seeds,
)
from hmcl_jax.continual.health import Stopped, load_stopped, warn_skipped, warn_stopped
from hmcl_jax.continual.learner import (
    Carried,
    Setting,
    TaskAt,
    add_missing_heads,
    initial_opt_state,
    learn_task,
    own_config,
)
from hmcl_jax.continual.mesh import check_mesh
from hmcl_jax.continual.method import Heads, Method
from hmcl_jax.continual.programs import Programs
from hmcl_jax.continual.run_directory import RunDirectory, open_run
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.store import Store

CHECKPOINT_SCHEMA = 3
LAYOUT = ("seed_axis", "device_memory", "mesh")  # how seeds are laid out and fed
RECORDED = ("details", "losses", "seconds", "logs")  # of every task, as in StreamResult
SHOWN_EVERY = 2.0  # seconds between events about epochs
Listener = Callable[["Event"], None]


@dataclasses.dataclass(frozen=True)
class Event:
    """What happens during a run, for those who show it."""

    # "method" (begins), "task" (begins), "epoch" (of a task that takes long), "scores" (task done)
    # or "done".
    kind: str
    method: str
    task: str = ""
    number: int = 0  # of the task, or of the epochs done
    count: int = 0  # of all tasks, or all epochs
    scores: np.ndarray | None = None  # the matrix so far, (seeds, T, T)
    log: Mapping[str, float] = dataclasses.field(default_factory=dict)  # means over seeds


@dataclasses.dataclass(frozen=True)
class StreamResult:
    """What a method did on a stream; tasks are in the order of the stream."""

    method: str
    settings: Mapping[str, Any]
    tasks: tuple[str, ...]
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    scores: np.ndarray  # R, (seeds, T, T): on task i after task t; NaN if i was not seen yet
    details: list[list[dict[str, list[float]]]]  # all measures, details[t][i][measure][seed]
    losses: list[list[list[float]]]  # means over minibatches, losses[t][seed][epoch]
    seconds: list[dict[str, float]]  # per task, for learning and for evaluating
    logs: list[dict[str, list[float]]]  # of the method, logs[t][figure][seed], or [seed][epoch]
    heads: Heads  # at the end, with a seed axis
    programs: int  # compiled for learning; those that methods share count for the first of them
    # Seeds that were stopped: their scores are NaN from then on, their heads of the task before.
    stopped: tuple[Stopped, ...] = ()


class RunOptions(TypedDict, total=False):
    """The options of :func:`run_stream` that most calls leave at their defaults."""

    order: str | Sequence[str]
    resume: bool
    listener: Listener | None


def run_stream(
    store: Store,
    methods: Sequence[str | Method] = DEFAULT_METHODS,
    seeds: Sequence[int] = SEEDS,
    config: TrainConfig | None = None,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    out: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> dict[str, StreamResult]:
    """Learns a stream with every method. All arguments are checked before anything is trained.

    Args:
      store: the stream.
      methods: names (see :data:`hmcl_jax.continual.methods.METHODS`) or methods.
      seeds: trained side by side.
      config: settings that all methods share.
      settings: of methods, ``{name: {setting: value}}``.
      out: folder for checkpoints, one folder per method; without it nothing is written.
      **options: ``order`` of the tasks, a name in ``store.orders`` (default ``"canonical"``) or
        names of tasks; ``resume``, whether runs that are in `out` are resumed (default False);
        ``listener``, called with every :class:`Event`.

    Returns:
      Results by method name.

    Example:
      >>> from hmcl_jax.continual import TrainConfig, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store = synthetic_stream(tasks=2, classes=4, dimension=8)
      >>> results = run_stream(store, ["vanilla"], seeds=[0, 1], config=TrainConfig(batch=64))
      >>> results["vanilla"].scores.shape
      (2, 2, 2)
    """
    stream, resume = Stream(store, seeds, config, options), options.get("resume", False)
    chosen = check_methods(methods, settings or {})
    for method in chosen:
        check_mesh(own_config(stream.config, method), len(stream.seeds))
    identities = {method.name: identify(stream, method) for method in chosen}
    check_same([identities, dataclasses.asdict(stream.config), out is None, resume])
    with contextlib.ExitStack() as stack:
        runs: dict[str, RunDirectory] = {}
        if out is not None:  # all of them are opened before anything is trained
            for name, identity in identities.items():
                opened = open_run(Path(out, name), identity, resume=resume)
                runs[name] = stack.enter_context(opened)
        return {
            method.name: MethodRun(stream, method, stream.seeds).learn(runs.get(method.name))
            for method in chosen
        }


class Stream:
    """The parts that the runs of all methods on one stream share, checked before training."""

    def __init__(
        self, store: Store, seeds: Sequence[int], config: TrainConfig | None, options: RunOptions
    ) -> None:
        if unknown := options.keys() - RunOptions.__annotations__.keys():
            raise TypeError(f"run_stream has no parameter {min(unknown)!r}.")
        self.store, self.config = store, config or TrainConfig()
        if not isinstance(self.config, TrainConfig):
            raise ConfigError(f"config must be a TrainConfig, got {config!r}.")
        self.seeds = check_seeds(seeds)
        self.tasks = check_order(store, options.get("order", "canonical"))
        store.validate()
        listener = options.get("listener")
        self.evaluator = Evaluator(store.K, self.config.device_memory)
        self.tell = listener if listener and is_first() else lambda event: None
        # Methods may have their own settings; only those of the layout make other programs.
        self.programs = functools.cache(
            lambda seed_axis, mesh: Programs(TrainConfig(seed_axis=seed_axis, mesh=mesh))
        )


def identify(stream: Stream, method: Method) -> dict[str, Any]:
    """The settings that must agree to resume a run; the layout of the work may change."""
    shared = dataclasses.asdict(stream.config).items()
    return {
        "checkpoint_schema": CHECKPOINT_SCHEMA,
        "store": {"name": stream.store.name, "fingerprint": stream.store.fingerprint},
        "method": method.name,
        "settings": method.described(),
        "config": {name: value for name, value in shared if name not in LAYOUT},
        "seeds": list(stream.seeds),
        "order": [task.name for task in stream.tasks],
    }


class MethodRun:
    """One method on one stream; in a `sweep`, settings differ along the seed axis."""

    def __init__(
        self,
        stream: Stream,
        method: Method,
        seeds: tuple[int, ...],
        sweep: Mapping[str, jax.Array] | None = None,
    ) -> None:
        self.stream, self.method, self.tasks = stream, method, stream.tasks
        store, config = stream.store, own_config(stream.config, method)
        self.setting = Setting(store.K, store.tau, seeds, config, sweep or {})
        self.programs = stream.programs(config.seed_axis, config.mesh)
        size = len(self.tasks)
        self.scores = np.full((len(seeds), size, size), np.nan)
        self.carried = Carried()
        self.records: list[dict[str, Any]] = []  # of finished tasks

    @property
    def stopped(self) -> np.ndarray:
        return self.carried.is_stopped(len(self.setting.seeds))

    def learn(self, directory: RunDirectory | None = None) -> StreamResult:
        name, tell, tasks = self.method.name, self.stream.tell, self.tasks
        compiled_before = self.programs.count()
        tell(Event("method", name, count=len(tasks)))
        if directory is not None:
            self._resume(directory)
        for index in range(len(self.records), len(tasks)):
            task = tasks[index].name
            tell(Event("task", name, task, index, len(tasks)))
            record = self._learn_task(index)
            self._add(record)
            if directory is not None:  # before the listener hears of it, which may stop the run
                directory.save(index + 1, self._saved(index + 1), record)
            means = self._means(record)
            tell(Event("scores", name, task, index + 1, len(tasks), self.scores.copy(), means))
        tell(Event("done", name, "", len(tasks), len(tasks), self.scores.copy()))
        return StreamResult(
            method=name,
            settings=self.method.described(),
            tasks=tuple(task.name for task in tasks),
            kinds=tuple(task.kind for task in tasks),
            seeds=self.setting.seeds,
            scores=self.scores,
            **{key: [record[key] for record in self.records] for key in RECORDED},
            heads=self.carried.heads,
            programs=self.programs.count() - compiled_before,
            stopped=self.carried.stopped,
        )

    def _tasks_at(self, index: int) -> list[TaskAt]:
        """The task at an index of the stream, and those that are trained with it."""
        size = len(self.tasks)
        seen = {"current": range(0), "seen": range(index), "all": range(size)}
        others = seen[self.method.trains_on]
        return [(self.tasks[i], i) for i in (index, *(i for i in others if i != index))]

    def _learn_task(self, index: int) -> dict[str, Any]:
        """Learns a task and scores all that were seen; returns the record of it."""
        start = told = time.perf_counter()
        task, name = self.tasks[index], self.method.name

        def on_epoch(done: int, epochs: int) -> None:
            nonlocal told
            if time.perf_counter() - told > SHOWN_EVERY:
                told = time.perf_counter()
                self.stream.tell(Event("epoch", name, task.name, done, epochs))

        before = len(self.carried.stopped)
        self.carried, learned = learn_task(
            self.method, self.carried, self._tasks_at(index), self.setting, self.programs, on_epoch
        )
        stopped, new = self.stopped, self.carried.stopped[before:]
        if new and not self.setting.sweep:  # points of a sweep may diverge
            warn_stopped(name, new, task.kind, none_left=bool(stopped.all()))
        warn_skipped(name, task.name, self.setting.seeds, learned.skipped)
        done = time.perf_counter()
        measures = self.stream.evaluator.all(self.carried.heads, self.tasks[: index + 1])
        return {
            "details": [
                {name: np.where(stopped, np.nan, x).tolist() for name, x in measured.items()}
                for measured in measures
            ],
            "losses": learned.losses.tolist(),
            "seconds": {"learn": done - start, "evaluate": time.perf_counter() - done},
            "logs": {name: x.tolist() for name, x in learned.metrics.items()},
            "stopped": [dataclasses.asdict(one) for one in new],
        }

    def _add(self, record: dict[str, Any]) -> None:
        row = np.transpose([cell["score"] for cell in record["details"]])
        self.scores[:, len(self.records), : row.shape[1]] = row
        self.records.append(record)

    def _means(self, record: Mapping[str, Any]) -> dict[str, float]:
        """Figures of a task as means over the seeds that are not stopped."""
        shown = ~self.stopped | self.stopped.all()
        return {
            figure: float(np.mean(np.asarray(values)[shown]))
            for figure, values in record["logs"].items()
            if np.ndim(values) == 1  # one per task; curves are for the report
        }

    def _saved(self, finished: int) -> dict[str, Any]:
        """The state in the checkpoint after so many tasks."""
        saved = {"heads": self.carried.heads, "state": self.carried.state}
        if not self.setting.train.reset_optimizer:
            spec = self.setting.spec(self.tasks[finished - 1], finished - 1)
            saved["opt_state"] = initial_opt_state(self.method, self.carried, spec, self.programs)
        return saved

    def _resume(self, directory: RunDirectory) -> None:
        """Takes over the newest whole checkpoint, if there is one."""

        def template(finished: int) -> dict[str, Any]:
            for index in range(finished):  # heads appear in the order of the tasks
                tasks = [task for task, _ in self._tasks_at(index)]
                self.carried = add_missing_heads(self.method, self.carried, tasks, self.setting)
            return self._saved(finished)

        saved, records = directory.restore(template)
        if not records:
            return
        for record in records:
            self._add(record)
        stopped = tuple(one for record in records for one in load_stopped(record["stopped"]))
        self.carried = Carried(saved["heads"], saved.get("opt_state"), saved["state"], stopped)
