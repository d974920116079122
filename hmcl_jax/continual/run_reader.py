"""Reads runs on disk, for analyses: their identity, and their heads after every task.

Reading takes no lock and writes nothing, so runs that are not finished can be read. All data are
compared with their checksums, as for a resume, and with the store that the run names.
"""

import ast
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax import _checks
from hmcl_jax.continual.errors import RunError
from hmcl_jax.continual.health import Stopped, read_stopped
from hmcl_jax.continual.run_directory import (
    RUN,
    STEPS,
    finished_tasks,
    read_identity,
    read_record,
    read_step,
)
from hmcl_jax.data.store import Store

HEADS = "state['heads']["


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """The run of one method, as it lies on disk.

    Attributes:
      path: its directory.
      method: its name.
      settings: of the method.
      config: shared settings, as plain data; see :class:`hmcl_jax.continual.TrainConfig`.
      seeds: of the run.
      order: names of all tasks, in the order of the stream.
      dimension: d of the heads.
    """

    path: Path
    method: str
    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    seeds: tuple[int, ...]
    order: tuple[str, ...]
    dimension: int

    @property
    def finished(self) -> int:
        """Number of tasks that are finished."""
        return finished_tasks(self.path)

    def stopped(self, finished: int | None = None) -> tuple[Stopped, ...]:
        """The seeds that were stopped (:mod:`hmcl_jax.continual.health`).

        Args:
          finished: in the first so many tasks. Default: all that are finished.

        Raises:
          RunError: if the record of a task is damaged.
        """
        finished = self.finished if finished is None else finished
        try:
            return tuple(
                one
                for number in range(1, finished + 1)
                for one in read_stopped(
                    "stopped",
                    read_record(self.path, number)["stopped"],
                    self.seeds,
                    self.order,
                )
            )
        except (KeyError, ValueError) as error:
            if isinstance(error, RunError):
                raise
            raise RunError(
                f"{self.path} does not say which seeds were stopped: {error}; run again with "
                "another --out."
            ) from error

    def heads(self, finished: int | None = None) -> dict[str, np.ndarray]:
        """The heads after some task.

        Args:
          finished: number of finished tasks: 1 is the end of the first. Default: all.

        Returns:
          ``{modality: W}`` with W of shape ``(seeds, d, d + 1)``, as they were saved; NaN for
          seeds that had been stopped. A modality that no task has had until then is not there.

        Raises:
          RunError: if the step is missing or damaged; it says what to run again.
        """
        count = len(self.order)
        finished = count if finished is None else finished
        _checks.integer("finished", finished, 1)
        if finished > count:
            raise ValueError(f"finished must be at most {count}, all tasks, got {finished}.")
        step = self.path / STEPS / str(finished)
        if not step.is_dir():
            if self.finished < finished:
                remedy = f"{self.finished} of {count} tasks are finished; run"
            else:
                remedy = f"delete the later ones in {step.parent} and run"
            raise RunError(
                f"Step {finished} of {self.method} is not there: {remedy} again with --resume."
            )
        arrays = {
            name[len(HEADS) : -1]: array
            for name, array in read_step(self.path, finished).items()
            if name.startswith(HEADS)
        }
        shape = (len(self.seeds), self.dimension, self.dimension + 1)
        shapes = {array.shape for array in arrays.values()}
        if shapes != {shape}:
            raise RunError(
                f"{step} must hold heads of shape {shape}, got {sorted(shapes) or 'none'}; run "
                "again with another --out."
            )
        if stopped := [one.seed_index for one in self.stopped(finished)]:
            arrays = {name: np.array(array) for name, array in arrays.items()}
            for array in arrays.values():
                array[stopped] = np.nan
        return {ast.literal_eval(name): arrays[name] for name in sorted(arrays)}


def read_runs(
    out: str | os.PathLike[str], store: Store, methods: Sequence[str] | None = None
) -> dict[str, SavedRun]:
    """The runs in a folder that :func:`run_stream` has written to.

    Args:
      out: the folder, with one folder per method.
      store: the stream that the runs are of.
      methods: names. Default: all that are there, in the order of ``results.json`` if there is one.

    Returns:
      Runs by method.

    Raises:
      RunError: if there is no such run, or if it is of another store.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, read_runs, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store, out = synthetic_stream(tasks=2, dimension=8), tempfile.TemporaryDirectory()
      >>> results = run_stream(store, ["vanilla"], [0], TrainConfig(batch=64), out=out.name)
      >>> run = read_runs(out.name, store)["vanilla"]
      >>> print(run.order, {m: W.shape for m, W in run.heads(finished=1).items()})
      ('task1', 'task2') {'image': (1, 8, 9), 'text': (1, 8, 9)}
      >>> out.cleanup()
    """
    _checks.instance("store", store, Store, "a Store")
    out = Path(out).absolute()
    found = run_names(out)
    if methods is None:
        methods = found
    elif isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, got the string {methods!r}.")
    for method in methods:
        if method not in found:
            raise RunError(
                f"{out} holds no run of {method!r}, only of {', '.join(found)}; "
                "add it with --methods and --resume."
            )
    return {method: _read_run(out / method, store) for method in methods}


def run_names(out: str | os.PathLike[str]) -> list[str]:
    """The methods of the runs in a folder, without reading them.

    Args:
      out: the folder, with one folder per method.

    Returns:
      Names, in the order of ``results.json`` if there is one.

    Raises:
      RunError: if there is no run.
    """
    out = Path(out)
    if (out / RUN).is_file():
        raise RunError(f"{out} is the run of one method; give the folder above it.")
    found = [path.parent.name for path in sorted(out.glob(f"*/{RUN}"))]
    if not found:
        raise RunError(f"{out} holds no run; make one with `hmcl run --out {out}`.")
    listed = _listed(out)
    return sorted(found, key=lambda m: listed.index(m) if m in listed else len(listed))


def _listed(out: Path) -> list[str]:
    """The methods in the order in which they were asked for, as far as that is known."""
    try:
        return list(json.loads((out / "results.json").read_text("utf8"))["methods"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # the runs are what counts; they may still be going on


def _read_run(path: Path, store: Store) -> SavedRun:
    identity = read_identity(path)
    try:
        fingerprint, name = identity["store"]["fingerprint"], identity["store"]["name"]
        run = SavedRun(
            path=path,
            method=str(identity["method"]),
            settings=dict(identity["settings"]),
            config=dict(identity["config"]),
            seeds=tuple(identity["seeds"]),
            order=tuple(identity["order"]),
            dimension=store.dimension,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(
            f"{path / RUN} is not of a run over a stream; give a folder of `hmcl run`."
        ) from error
    if fingerprint != store.fingerprint:
        raise RunError(
            f"{path} is a run over another store, {name!r} ({str(fingerprint)[:12]}), than "
            f"{store.name!r} ({store.fingerprint[:12]}); give that store, or run again with "
            "this one and another --out."
        )
    if run.method != path.name:
        raise RunError(f"{path / RUN} is of a run of {run.method!r}; give a folder of `hmcl run`.")
    known = {task.name for task in store}
    if wrong := [name for name in run.order if name not in known]:
        raise RunError(f"{path / RUN} names {wrong[0]!r}, which is no task of the store.")
    kappa = run.config.get("kappa", 0.1)
    if isinstance(kappa, bool) or not isinstance(kappa, int | float):
        raise RunError(f"{path / RUN} says that kappa is {kappa!r}, which is no number.")
    return run
