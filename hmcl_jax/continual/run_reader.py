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
from hmcl_jax.continual.health import Stopped, load_stopped
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
        """
        finished = self.finished if finished is None else finished
        records = [read_record(self.path, number) for number in range(1, finished + 1)]
        return tuple(one for record in records for one in load_stopped(record["stopped"]))

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
            raise RunError(
                f"Step {finished} of {self.method} is missing; {self.finished} of {count} tasks "
                f"are finished. Delete later steps in {step.parent}, if any, and run again "
                "with --resume."
            )
        heads = {
            ast.literal_eval(name[len(HEADS) : -1]): array
            for name, array in sorted(read_step(self.path, finished).items())
            if name.startswith(HEADS)
        }
        stopped = np.isin(
            range(len(self.seeds)), [one.seed_index for one in self.stopped(finished)]
        )
        return {m: np.where(stopped[:, None, None], np.nan, W) for m, W in heads.items()}


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
    """The methods of the runs in a folder, in the order of ``results.json`` if there is one.

    Raises:
      RunError: if there is no run.
    """
    out = Path(out)
    if (out / RUN).is_file():
        raise RunError(f"{out} is the run of one method; give the folder above it.")
    found = [path.parent.name for path in sorted(out.glob(f"*/{RUN}"))]
    if not found:
        raise RunError(f"{out} holds no run; make one with `hmcl run --out {out}`.")
    try:
        listed = list(json.loads((out / "results.json").read_text("utf8"))["methods"])
    except (OSError, ValueError, KeyError, TypeError):
        listed = []  # the runs are what counts; they may not be finished
    return sorted(found, key=lambda m: listed.index(m) if m in listed else len(listed))


def _read_run(path: Path, store: Store) -> SavedRun:
    identity = read_identity(path)
    try:
        fingerprint, name = identity["store"]["fingerprint"], identity["store"]["name"]
        shared = {key: identity[key] for key in ("method", "settings", "config")}
        seeds, order = tuple(identity["seeds"]), tuple(identity["order"])
    except (KeyError, TypeError) as error:
        raise RunError(
            f"{path / RUN} is not of a run over a stream; give a folder of `hmcl run`."
        ) from error
    if fingerprint != store.fingerprint:
        raise RunError(
            f"{path} is a run over another store, {name!r} ({fingerprint:.12}), than "
            f"{store.name!r} ({store.fingerprint:.12}); give that store, or run again with "
            "this one and another --out."
        )
    return SavedRun(path=path, **shared, seeds=seeds, order=order, dimension=store.dimension)
