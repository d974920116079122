"""Results of a stream: tables in the paper's columns, and the files that hold all numbers."""

import dataclasses
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax import _files
from hmcl_jax._versions import versions
from hmcl_jax.continual import RunError, StreamResult
from hmcl_jax.continual.health import load_stopped
from hmcl_jax.evaluation import backward_transfer, is_complete, overall
from hmcl_jax.evaluation.statistics import seed_mean

COLUMNS = {
    "Acc": "top-1 of the classification tasks after the last task",
    "BWT_A": "their final minus immediate score",
    "R@5": "R@5, mean of both directions, of the retrieval tasks after the last task",
    "BWT_R5": "their final minus immediate score",
    "Overall": "mean of all final scores",
    "BWT": "mean over all tasks, the last one's 0 included, of final minus immediate score",
}
FILES = ("results.json", "table.md", "table.tex")
CONVENTION = (
    "Percent, mean and sample standard deviation over seeds. BWT is the mean over all T tasks "
    "(the last one's 0 included) of the final minus the immediate score; higher is better."
)
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OSError)


def columns(result: StreamResult) -> dict[str, np.ndarray]:
    """The paper's columns in percent, each ``(seeds,)``.

    NaN for a kind that does not occur, and for a seed that was stopped.
    """
    finished = _finished(result)
    R = result.scores[finished]
    final = R[:, -1, :]
    change = final - np.diagonal(R, axis1=1, axis2=2)

    def mean(values: np.ndarray, kind: str) -> np.ndarray:
        chosen = np.array([k == kind for k in result.kinds])
        return values[:, chosen].mean(axis=1) if chosen.any() else np.full(len(values), np.nan)

    by_column = {
        "Acc": mean(final, "classification"),
        "BWT_A": mean(change, "classification"),
        "R@5": mean(final, "retrieval"),
        "BWT_R5": mean(change, "retrieval"),
        "Overall": overall(R),
        "BWT": backward_transfer(R),
    }
    return {
        name: 100 * _with_stopped(np.asarray(values), finished)
        for name, values in by_column.items()
    }


def _finished(result: StreamResult) -> np.ndarray:
    """Which seeds came to the end."""
    return ~np.isin(np.arange(len(result.seeds)), [stop.seed_index for stop in result.stopped])


def _with_stopped(values: np.ndarray, finished: np.ndarray) -> np.ndarray:
    whole = np.full(len(finished), np.nan)
    whole[finished] = values
    return whole


def without_stopped(result: StreamResult) -> StreamResult:
    """The result without the seeds that were stopped."""
    if not result.stopped:
        return result
    finished = np.flatnonzero(_finished(result)).tolist()

    def chosen(values: Sequence[Any]) -> list[Any]:
        return [values[index] for index in finished]

    return dataclasses.replace(
        result,
        seeds=tuple(chosen(result.seeds)),
        scores=result.scores[finished],
        details=[
            [{measure: chosen(values) for measure, values in cell.items()} for cell in row]
            for row in result.details
        ],
        losses=[chosen(losses) if losses else losses for losses in result.losses],
        logs=[{name: chosen(values) for name, values in log.items()} for log in result.logs],
        heads={modality: W[np.array(finished, int)] for modality, W in result.heads.items()},
        stopped=(),
    )


def stopped_notes(results: Mapping[str, StreamResult]) -> str:
    """A line for every seed that was stopped, which the tables leave out; may be empty."""
    lines = [
        f"{name}: {stop}; its table row is over the other {_finished(result).sum()} seeds.\n"
        for name, result in results.items()
        for stop in result.stopped
    ]
    return "".join(lines)


def mean_std(values: Any, digits: int = 2, scale: float = 1.0) -> str:
    """Mean and sample standard deviation over seeds, as text.

    Args:
      values: one per seed; NaN for one that was stopped.
      digits: behind the point.
      scale: that they are multiplied with.

    Returns:
      The text; the mean alone for one seed, empty for none.

    Example:
      >>> from hmcl_jax.report.results import mean_std
      >>> print(mean_std([0.5, 0.7], scale=100), mean_std([0.5]))
      60.00 ± 14.14 0.50
    """
    values = scale * np.asarray(values, float)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if len(values) else ""
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def method_rows(results: Mapping[str, StreamResult]) -> list[list[str]]:
    """The cells of :func:`markdown_table`, the header first."""
    rows = [["Method", *COLUMNS]]
    rows += [[name, *map(mean_std, columns(r).values())] for name, r in results.items()]
    return rows


def markdown_table(results: Mapping[str, StreamResult]) -> str:
    """A Markdown table with one row per method."""
    return markdown_rows(method_rows(results))


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells, the header first; columns but the first are right-aligned."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(rows[0]), f"|{rule}|", *map(line, rows[1:])])


def latex_table(results: Mapping[str, StreamResult]) -> str:
    """The table as a LaTeX ``tabular`` for ``booktabs``; the best of each column is bold."""
    means = [[seed_mean(values) for values in columns(r).values()] for r in results.values()]
    best = np.nan_to_num(means, nan=-np.inf).argmax(axis=0)
    lines = [
        r"\begin{tabular}{lcccccc}",
        r"\toprule",
        r"& \multicolumn{2}{c}{Classification} & \multicolumn{2}{c}{Retrieval}"
        r" & \multicolumn{2}{c}{Overall} \\",
        r"\cmidrule(lr){2-3}\cmidrule(lr){4-5}\cmidrule(lr){6-7}",
        r"Method & Acc $\uparrow$ & BWT$_{\mathrm{A}}$ $\uparrow$ & R@5 $\uparrow$"
        r" & BWT$_{\mathrm{R5}}$ $\uparrow$ & Performance $\uparrow$ & BWT $\uparrow$ \\",
        r"\midrule",
    ]
    for number, (name, *cells) in enumerate(method_rows(results)[1:]):
        written = []
        for column, cell in enumerate(cells):
            cell = cell.replace(" ± ", r"\pm")
            if cell and best[column] == number:
                cell = rf"\mathbf{{{cell}}}"
            written.append(f"${cell}$" if cell else "--")
        lines.append(" & ".join([name.replace("_", r"\_"), *written]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def check_results(out: str | Path, methods: Collection[str], resume: bool) -> None:
    """Refuses a folder in which writing results would overwrite something else.

    Args:
      out: the folder.
      methods: names of those whose results are to be written.
      resume: whether results of these methods may be replaced.

    Raises:
      RunError: naming the file and what to do.
    """
    for name in FILES:
        path = Path(out) / name
        if path.exists() and not resume:
            raise RunError(f"{path} exists already; choose another --out, or use --resume.")
        if path.exists() and not path.is_file():
            raise RunError(f"{path} is not a file; choose another --out.")
    path = Path(out) / "results.json"
    if path.exists():
        try:
            known = set(json.loads(path.read_text("utf8"))["methods"])
        except UNREADABLE as error:
            raise RunError(f"{path} is not of a run of this kind; choose another --out.") from error
        if lost := sorted(known.difference(methods)):
            raise RunError(
                f"{path} also holds {', '.join(lost)}, which would be lost; name them in "
                "--methods as well, or choose another --out."
            )


def write_results(
    out: str | Path, results: Mapping[str, StreamResult], about: Mapping[str, Any]
) -> list[Path]:
    """Writes ``results.json``, ``table.md`` and ``table.tex``, each whole or not at all.

    Args:
      out: the folder.
      results: by method.
      about: config, store and whatever else should stand beside the numbers.

    Returns:
      The files.
    """
    first = next(iter(results.values()))
    numbers = {
        "about": dict(about),
        "convention": CONVENTION,
        "columns": COLUMNS,
        "versions": versions(),
        "tasks": first.tasks,
        "kinds": first.kinds,
        "seeds": first.seeds,
        "methods": {
            name: {
                "settings": dict(result.settings),
                "stopped": [dataclasses.asdict(stop) for stop in result.stopped],
                "columns": columns(result),
                **{
                    key: getattr(result, key)
                    for key in ("scores", "details", "losses", "seconds", "logs", "programs")
                },
            }
            for name, result in results.items()
        },
    }
    notes = stopped_notes(results)
    commented = "".join(f"% {line}\n" for line in notes.splitlines())
    contents = {
        "table.md": f"{markdown_table(results)}\n\n{CONVENTION}\n{notes}",
        "table.tex": f"% {CONVENTION}\n{commented}{latex_table(results)}\n",
        "results.json": _files.json_text(numbers),
    }
    return write_files(out, contents)


def write_files(out: str | Path, contents: Mapping[str, str]) -> list[Path]:
    """Writes texts by file name into a folder, each whole or not at all."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        _files.write_whole(out / name, text)
    return [out / name for name in contents]


@dataclasses.dataclass(frozen=True, eq=False)
class SavedResults:
    """The results of some methods on a stream, read from ``results.json``.

    Attributes:
      path: of the file.
      about: config, store and times, as they were written.
      versions: of the packages that made them.
      results: by method, without heads.
      wrong: by method that is not in `results`: what is wrong with its scores, and the remedy.
    """

    path: Path
    about: Mapping[str, Any]
    versions: Mapping[str, str]
    results: Mapping[str, StreamResult]
    wrong: Mapping[str, str]


def read_results(folder: str | os.PathLike[str]) -> SavedResults:
    """Reads the results in a folder of runs.

    Args:
      folder: that holds ``results.json``.

    Returns:
      A :class:`SavedResults`. Methods whose scores lack some numbers are left out.

    Raises:
      RunError: if the file is missing or damaged; it says what to do.

    Example:
      >>> import tempfile
      >>> from hmcl_jax.continual import TrainConfig, run_stream
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> from hmcl_jax.report.results import read_results, write_results
      >>> store, out = synthetic_stream(tasks=2, dimension=8), tempfile.TemporaryDirectory()
      >>> results = run_stream(store, ["vanilla"], [0], TrainConfig(batch=64))
      >>> _ = write_results(out.name, results, {})
      >>> print(read_results(out.name).results["vanilla"].scores.shape)
      (1, 2, 2)
      >>> out.cleanup()
    """
    path = Path(folder) / "results.json"
    remedy = f"run `hmcl run --out {folder}` again with --resume"
    if not path.is_file():
        raise RunError(f"{path} is missing: the runs are not finished; {remedy}.")
    try:
        content = json.loads(path.read_text("utf8"))
        about, packages = (_table(key, content.get(key, {})) for key in ("about", "versions"))
        shared = {
            key: _listed(key, content[key], kind)
            for key, kind in {"tasks": str, "kinds": str, "seeds": int}.items()
        }
        if len(shared["kinds"]) != len(shared["tasks"]):
            raise ValueError(f"{len(shared['kinds'])} kinds of {len(shared['tasks'])} tasks")
        entries = _table("methods", content["methods"])
        results = {name: _result(name, _table(name, e), shared) for name, e in entries.items()}
        if not results:
            raise ValueError("it names no method")
    except UNREADABLE as error:
        kind = "" if type(error) in (ValueError, TypeError) else f"{type(error).__name__}: "
        what = f"{kind}{error}".partition("\n")[0]
        raise RunError(f"{path} is damaged or of another kind: {what}; {remedy}.") from error
    wrong = {
        name: f"{path}: scores of {name} are not complete; {remedy}."
        for name, result in results.items()
        if not is_complete(result.scores[_finished(result)]).all()
    }
    results = {name: result for name, result in results.items() if name not in wrong}
    return SavedResults(path, about, packages, results, wrong)


def stream_of(folder: str | os.PathLike[str]) -> str | None:
    """The stream that results were made on, even if their numbers are damaged.

    Args:
      folder: that holds ``results.json``.

    Returns:
      The value of ``--stream``, or None if the file does not say it.
    """
    try:
        content = json.loads((Path(folder) / "results.json").read_text("utf8"))
        stream = content["about"]["experiment"]["stream"]
    except UNREADABLE:
        return None
    return stream if isinstance(stream, str) else None


def _result(name: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> StreamResult:
    seeds, tasks = len(shared["seeds"]), len(shared["tasks"])

    def by_task(key: str) -> list[Any]:
        values = entry.get(key) or [{}] * tasks
        if not isinstance(values, list) or len(values) != tasks:
            raise ValueError(f"{key} of {name} must be a list of {tasks} entries")
        return values

    def series(what: str, values: Any) -> list[Any]:
        """One number, or one list of numbers, for each seed."""
        nested = isinstance(values, list) and bool(values) and isinstance(values[0], list)
        shape = (seeds, None) if nested else (seeds,)
        return _numbers(f"{what} of {name}", values, shape).tolist()

    def many_series(what: str, values: Any) -> dict[str, list[Any]]:
        listed = _table(f"{what} of {name}", values).items()
        return {key: series(f"{key} in {what}", value) for key, value in listed}

    for t, row in enumerate(by_task("details")):
        if row and (not isinstance(row, list) or len(row) != t + 1):
            raise ValueError(f"details of {name}, task {t + 1}, must be a list of {t + 1} entries")
    return StreamResult(
        method=name,
        settings=_table(f"settings of {name}", entry.get("settings") or {}),
        scores=_numbers(f"scores of {name}", entry["scores"], (seeds, tasks, tasks)),
        details=[[many_series("details", cell) for cell in row] for row in by_task("details")],
        losses=[series("losses", row) if row else [] for row in by_task("losses")],
        seconds=[
            {key: float(_numbers(f"seconds of {name}", value, ())) for key, value in row.items()}
            for row in by_task("seconds")
        ],
        logs=[many_series("logs", row) for row in by_task("logs")],
        heads={},
        programs=int(entry.get("programs") or 0),
        stopped=load_stopped(entry.get("stopped") or [], f"stopped of {name}"),
        **shared,
    )


def _listed(name: str, values: Any, kind: type) -> tuple[Any, ...]:
    if not isinstance(values, list) or not all(type(value) is kind for value in values):
        raise TypeError(f"{name} must be a list of {kind.__name__}, got {values!r:.40}")
    return tuple(values)


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, got {value!r:.40}")
    return value


def _numbers(name: str, values: Any, shape: tuple[int | None, ...]) -> np.ndarray:
    """Numbers as float64, NaN for null; None in the shape stands for any length."""
    array = np.array(values, object)
    fits = array.ndim == len(shape) and all(
        wanted in (None, length) for wanted, length in zip(shape, array.shape, strict=True)
    )
    if not fits or not all(value is None or type(value) in (int, float) for value in array.flat):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be numbers of shape ({wanted}), got {values!r:.40}")
    return array.astype(np.float64)
