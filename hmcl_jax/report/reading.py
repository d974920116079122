"""Reads what :func:`hmcl_jax.report.write_results` has written, for analyses."""

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.continual.errors import RunError
from hmcl_jax.continual.health import read_stopped
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.continual.task_record import FORMS, in_short, mapping, numbers, with_nan
from hmcl_jax.evaluation import is_complete

SHARED = {"tasks": str, "kinds": str, "seeds": int}
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError)


@dataclasses.dataclass(frozen=True, eq=False)
class SavedResults:
    """The results of some methods on a stream.

    Attributes:
      path: of the file.
      about: config, store and times, as they were written.
      versions: of the packages that made them.
      results: by method, without heads.
      wrong: by method, what is wrong with scores that are not in `results`, and what to do.
    """

    path: Path
    about: Mapping[str, Any]
    versions: Mapping[str, str]
    results: Mapping[str, StreamResult]
    wrong: Mapping[str, str] = dataclasses.field(default_factory=dict)


def read_results(folder: str | os.PathLike[str]) -> SavedResults:
    """The results in a folder of runs.

    Args:
      folder: that holds ``results.json``.

    Returns:
      A :class:`SavedResults`.

    Raises:
      RunError: if the file is not there, or is not what it should be; it says what to do. Scores of
        one method that lack some numbers are left out, and the others are read.

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
    wrong = {}
    try:
        found = json.loads(path.read_text("utf8"))
        about, versions = (mapping(key, found.get(key, {})) for key in ("about", "versions"))
        shared = {key: _listed(key, found[key], kind) for key, kind in SHARED.items()}
        if len(shared["kinds"]) != len(shared["tasks"]):
            raise ValueError(f"{len(shared['kinds'])} kinds of {len(shared['tasks'])} tasks")
        results = {}
        for name, entry in mapping("methods", found["methods"]).items():
            results[name] = _result(name, mapping(name, entry), shared)
        if not results:
            raise ValueError("it names no method")
    except (*DAMAGE, OSError) as error:
        plain = type(error) in (ValueError, TypeError)
        what = f"{'' if plain else type(error).__name__ + ': '}{error}".partition("\n")[0]
        raise RunError(f"{path} is damaged or of another kind: {what}; {remedy}.") from error
    for name, result in list(results.items()):
        stopped = [one.seed_index for one in result.stopped]
        if not is_complete(np.delete(result.scores, stopped, axis=0)).all():
            wrong[name] = f"{path}: scores of {name} are not complete; {remedy}."
            del results[name]
    return SavedResults(path, about, versions, results, wrong)


def stream_of(folder: str | os.PathLike[str]) -> str | None:
    """The stream that results say they are of, also if their numbers are damaged.

    Args:
      folder: that holds ``results.json``.

    Returns:
      What ``--stream`` was, or None if the file does not say it.
    """
    try:
        found = json.loads((Path(folder) / "results.json").read_text("utf8"))
        stream = found["about"]["experiment"]["stream"]
    except (*DAMAGE, OSError):
        return None
    return stream if isinstance(stream, str) else None


def _listed(name: str, values: Any, kind: type) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise TypeError(f"{name} must be a list of {kind.__name__}, got {in_short(values)}")
    return tuple(values)


def _result(name: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> StreamResult:
    seeds, tasks = len(shared["seeds"]), len(shared["tasks"])
    scores = numbers(f"scores of {name}", entry["scores"], (seeds, tasks, tasks))
    blank: list[Any] = [{} for _ in range(tasks)]
    lists: dict[str, Any] = {}
    for key in ("details", "losses", "logs", "seconds"):
        values = entry.get(key) or blank
        if not isinstance(values, list) or len(values) != tasks:
            raise ValueError(f"{key} of {name} must be a list of {tasks} entries")
        for t, held in enumerate(values):
            if held:
                FORMS[key](f"{key} of {name}, task {t + 1},", held, seeds, t)
        lists[key] = values if key == "seconds" else with_nan(values)
    stopped = read_stopped(
        f"stopped of {name}", entry.get("stopped") or [], shared["seeds"], shared["tasks"]
    )
    return StreamResult(
        method=name,
        settings=mapping(f"settings of {name}", entry.get("settings") or {}),
        scores=scores,
        heads={},
        programs=int(entry.get("programs") or 0),
        stopped=stopped,
        **lists,
        **shared,
    )
