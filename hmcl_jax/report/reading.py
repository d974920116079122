"""Reads what :func:`hmcl_jax.report.write_results` has written, for analyses."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.continual.checkpoint import RunError
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.evaluation import is_complete


@dataclasses.dataclass(frozen=True, eq=False)
class SavedResults:
    """The results of some methods on a stream.

    Attributes:
      path: of the file.
      about: config, store and times, as they were written.
      versions: of the packages that made them.
      results: by method, without heads.
    """

    path: Path
    about: Mapping[str, Any]
    versions: Mapping[str, str]
    results: Mapping[str, StreamResult]


def read_results(folder: str | os.PathLike[str]) -> SavedResults:
    """The results in a folder of runs.

    Args:
      folder: that holds ``results.json``.

    Returns:
      A :class:`SavedResults`.

    Raises:
      RunError: if the file is not there, or is not what it should be; it says what to do.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.report import write_results
      >>> from hmcl_jax.report.reading import read_results
      >>> store, out = synthetic_stream(tasks=2, dimension=8), tempfile.TemporaryDirectory()
      >>> found = run_stream(store, ["vanilla"], [0], TrainConfig(batch=64))
      >>> _ = write_results(out.name, found, {})
      >>> print(read_results(out.name).results["vanilla"].scores.shape)
      (1, 2, 2)
      >>> out.cleanup()
    """
    path = Path(folder) / "results.json"
    remedy = f"run experiments/run_stream.py --out {folder} again with --resume"
    if not path.is_file():
        raise RunError(f"{path} is not there: the runs are not finished; {remedy}.")
    try:
        found = json.loads(path.read_text("utf8"))
        about, versions = dict(found.get("about", {})), dict(found.get("versions", {}))
        shared = {
            "tasks": tuple(map(str, found["tasks"])),
            "kinds": tuple(map(str, found["kinds"])),
            "seeds": tuple(map(int, found["seeds"])),
        }
        results = {
            str(name): _result(str(name), entry, shared) for name, entry in found["methods"].items()
        }
        if not results:
            raise ValueError("it names no method")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        what = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RunError(f"{path} is damaged or of another kind ({what}); {remedy}.") from error
    return SavedResults(path, about, versions, results)


def _result(name: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> StreamResult:
    seeds, tasks = len(shared["seeds"]), len(shared["tasks"])
    scores = np.array(entry["scores"], float)  # None is NaN
    if scores.shape != (seeds, tasks, tasks) or len(shared["kinds"]) != tasks:
        raise ValueError(f"scores of {name} must have shape {(seeds, tasks, tasks)}")
    if not is_complete(scores).all():
        raise ValueError(f"scores of {name} are not complete")
    blank: list[Any] = [{} for _ in range(tasks)]
    lists: dict[str, Any] = {
        key: list(entry.get(key) or blank) for key in ("details", "losses", "logs", "seconds")
    }
    for key, values in lists.items():
        if len(values) != tasks:
            raise ValueError(f"{key} of {name} must have {tasks} entries, got {len(values)}")
    return StreamResult(
        method=name,
        settings=dict(entry.get("settings") or {}),
        scores=scores,
        heads={},
        programs=int(entry.get("programs") or 0),
        **lists,
        **shared,
    )
