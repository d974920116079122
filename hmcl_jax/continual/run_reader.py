"""Reads runs on disk: their identity, and their heads after every task.

Reading takes no lock and writes nothing, so runs that are not finished can be read. All data are
compared with their checksums, and the run with the store.
"""

import ast
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.continual.config import RunError
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
    """The run of one method in a directory."""

    path: Path
    method: str
    settings: Mapping[str, Any]  # of the method
    config: Mapping[str, Any]  # settings that all methods share
    seeds: tuple[int, ...]
    order: tuple[str, ...]  # names of all tasks, in the order of the stream
    dimension: int  # d of the heads

    @property
    def finished(self) -> int:
        """Number of tasks that are finished."""
        return finished_tasks(self.path)

    def stopped(self, finished: int | None = None) -> tuple[Stopped, ...]:
        """The seeds that were stopped in the first tasks, by default in all finished ones."""
        finished = self.finished if finished is None else finished
        records = [read_record(self.path, number) for number in range(1, finished + 1)]
        return tuple(one for record in records for one in load_stopped(record["stopped"]))

    def heads(self, finished: int | None = None) -> dict[str, np.ndarray]:
        """The heads after some task.

        Args:
          finished: number of finished tasks, by default all.

        Returns:
          ``{modality: W}`` with W of shape ``(seeds, d, d + 1)``; NaN for seeds that were stopped.
          Modalities that first occur in later tasks are absent.
        """
        count = len(self.order)
        finished = count if finished is None else finished
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
        stopped = [one.seed_index for one in self.stopped(finished)]
        none = np.isin(np.arange(len(self.seeds)), stopped)[:, None, None]
        return {m: np.where(none, np.nan, W) for m, W in heads.items()}


def read_runs(
    out: str | os.PathLike[str], store: Store, methods: Sequence[str] | None = None
) -> dict[str, SavedRun]:
    """The runs in a folder that :func:`run_stream` has written to.

    Args:
      out: the folder, with one folder per method.
      store: the stream of the runs.
      methods: names. Default: all runs, in the order of ``results.json`` if there is one.

    Returns:
      Runs by method.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, read_runs, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store = synthetic_stream(tasks=2, dimension=8)
      >>> with tempfile.TemporaryDirectory() as out:
      ...     results = run_stream(store, ["vanilla"], [0], TrainConfig(batch=64), out=out)
      ...     print(read_runs(out, store)["vanilla"].heads(finished=1)["text"].shape)
      (1, 8, 9)
    """
    out = Path(out).absolute()
    found = run_names(out)
    runs = {}
    for method in found if methods is None else methods:
        if method not in found:
            raise RunError(
                f"{out} holds no run of {method!r}, only of {', '.join(found)}; "
                "add it with --methods and --resume."
            )
        identity = read_identity(out / method)
        name, fingerprint = identity["store"]["name"], identity["store"]["fingerprint"]
        if fingerprint != store.fingerprint:
            raise RunError(
                f"{out / method} is a run over another store, {name!r} ({fingerprint:.12}), than "
                f"{store.name!r} ({store.fingerprint:.12}); give that store, or run again with "
                "this one and another --out."
            )
        own = {key: identity[key] for key in ("method", "settings", "config")}
        seeds, order = tuple(identity["seeds"]), tuple(identity["order"])
        runs[method] = SavedRun(
            out / method, **own, seeds=seeds, order=order, dimension=store.dimension
        )
    return runs


def run_names(out: str | os.PathLike[str]) -> list[str]:
    """The methods of the runs in a folder, in the order of ``results.json`` if there is one."""
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
