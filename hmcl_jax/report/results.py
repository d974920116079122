"""Results of a stream: tables in the paper's columns, and the files that hold all numbers."""

import dataclasses
import itertools
import json
import os
import textwrap
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
SAVED = ("scores", "details", "losses", "seconds", "logs", "programs")  # of a StreamResult
CONVENTION = (
    "Percent, mean and sample standard deviation over seeds. BWT is the mean over all T tasks "
    "(the last one's 0 included) of the final minus the immediate score; higher is better."
)
# What reading a damaged file, or one of another kind, may raise.
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
        chosen = np.array(result.kinds) == kind
        return values[:, chosen].mean(axis=1) if chosen.any() else np.full(len(values), np.nan)

    by_column = {
        "Acc": mean(final, "classification"),
        "BWT_A": mean(change, "classification"),
        "R@5": mean(final, "retrieval"),
        "BWT_R5": mean(change, "retrieval"),
        "Overall": overall(R),
        "BWT": backward_transfer(R),
    }
    return {name: 100 * with_stopped(values, finished) for name, values in by_column.items()}


def with_stopped(values: Any, finished: np.ndarray) -> np.ndarray:
    """Numbers of the finished seeds, with NaN in the places of the others."""
    values = np.asarray(values)
    whole = np.full((len(finished), *values.shape[1:]), np.nan, np.result_type(values, np.float32))
    whole[finished] = values
    return whole


def _finished(result: StreamResult) -> np.ndarray:
    """Which seeds were not stopped."""
    return ~np.isin(np.arange(len(result.seeds)), [stop.seed_index for stop in result.stopped])


def without_stopped(result: StreamResult) -> StreamResult:
    """The result without the seeds that were stopped."""
    finished = _finished(result)

    def chosen(values: Sequence[Any]) -> list[Any]:
        return list(itertools.compress(values, finished))

    return dataclasses.replace(
        result,
        seeds=tuple(chosen(result.seeds)),
        scores=result.scores[finished],
        details=[
            [{measure: chosen(values) for measure, values in cell.items()} for cell in row]
            for row in result.details
        ],
        losses=[chosen(losses) for losses in result.losses],
        logs=[{name: chosen(values) for name, values in log.items()} for log in result.logs],
        heads={modality: W[finished] for modality, W in result.heads.items()},
        stopped=(),
    )


def stopped_notes(results: Mapping[str, StreamResult]) -> str:
    """A line for every seed that was stopped, which the tables leave out; may be empty."""
    return "".join(
        f"{name}: {stop}; its table row is over the other {_finished(result).sum()} seeds.\n"
        for name, result in results.items()
        for stop in result.stopped
    )


def mean_std(values: Any, digits: int = 2, scale: float = 1.0) -> str:
    """Mean ± sample deviation over seeds without NaN; the mean alone for one, empty for none."""
    values = scale * np.asarray(values, float)
    values = values[~np.isnan(values)]
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if len(values) else ""
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def method_rows(results: Mapping[str, StreamResult]) -> list[list[str]]:
    """The cells of :func:`markdown_table`, the header first."""
    cells = {name: map(mean_std, columns(result).values()) for name, result in results.items()}
    return [["Method", *COLUMNS], *([name, *row] for name, row in cells.items())]


def markdown_table(results: Mapping[str, StreamResult]) -> str:
    """A Markdown table with one row per method."""
    return markdown_rows(method_rows(results))


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells, the header first; columns but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in rows)
    header, *body = (f"| {' | '.join(cells)} |" for cells in padded)
    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([header, f"|{rule}|", *body])


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
        written = [name.replace("_", r"\_")]
        for cell, winner in zip(cells, best, strict=True):
            cell = cell.replace(" ± ", r"\pm")
            bold = rf"\mathbf{{{cell}}}" if winner == number else cell
            written.append(f"${bold}$" if cell else "--")
        lines.append(" & ".join(written) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def check_results(out: str | Path, methods: Collection[str], resume: bool) -> None:
    """Refuses a folder in which writing results would overwrite something else.

    Args:
      out: the folder.
      methods: names of those whose results are to be written.
      resume: whether results of these methods may be replaced.
    """
    for path in (Path(out) / name for name in FILES):
        if path.exists() and not resume:
            raise RunError(f"{path} exists already; choose another --out, or use --resume.")
        if path.exists() and not path.is_file():
            raise RunError(f"{path} is not a file; choose another --out.")
    path = Path(out) / "results.json"
    if not path.exists():
        return
    try:
        known = set(json.loads(path.read_text("utf8"))["methods"])
    except UNREADABLE as error:
        raise RunError(
            f"{path} is damaged, or not of a run; delete it, and --resume writes it again from the "
            "checkpoints, or choose another --out."
        ) from error
    if lost := sorted(known.difference(methods)):
        raise RunError(
            f"{path} also holds {', '.join(lost)}, which would be lost; name them in --methods as "
            "well, or choose another --out."
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
        "about": about,
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
                **{key: getattr(result, key) for key in SAVED},
            }
            for name, result in results.items()
        },
    }
    notes = stopped_notes(results)
    commented = textwrap.indent(f"{CONVENTION}\n{notes}", "% ")
    contents = {
        "table.md": f"{markdown_table(results)}\n\n{CONVENTION}\n{notes}",
        "table.tex": f"{commented}{latex_table(results)}\n",
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


class SavedResults(NamedTuple):
    """The contents of ``results.json``."""

    path: Path
    stream: str | None  # the ``--stream`` of the run
    about: Mapping[str, Any]  # config, store and times
    versions: Mapping[str, str]  # of the packages that made the results
    results: Mapping[str, StreamResult]  # by method, without heads
    wrong: Mapping[str, str]  # by method with incomplete scores: a sentence with the remedy


def read_results(folder: str | os.PathLike[str]) -> SavedResults:
    """Reads ``results.json`` in a folder of runs; an error says how to make it again."""
    path = Path(folder) / "results.json"
    remedy = f"run `hmcl run --out {folder}` again with --resume"
    if not path.is_file():
        raise RunError(f"{path} is missing: the runs are not finished; {remedy}.")
    try:
        content = json.loads(path.read_text("utf8"))
        shared = {key: tuple(content[key]) for key in ("tasks", "kinds", "seeds")}
        methods = content["methods"].items()
        results = {name: _result(name, entry, shared) for name, entry in methods}
        about, packages = dict(content.get("about", {})), dict(content.get("versions", {}))
        stream = about.get("experiment", {}).get("stream")
    except UNREADABLE as error:
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise RunError(
            f"{path} is damaged or of another kind: {reason}; delete it and {remedy}."
        ) from error
    wrong = {
        name: f"{path}: scores of {name} are not complete; {remedy}."
        for name, result in results.items()
        if not is_complete(result.scores[_finished(result)]).all()
    }
    results = {name: result for name, result in results.items() if name not in wrong}
    return SavedResults(path, stream, about, packages, results, wrong)


def _result(name: str, entry: Mapping[str, Any], shared: Mapping[str, Any]) -> StreamResult:
    seeds, tasks = len(shared["seeds"]), len(shared["tasks"])

    def numbers(key: str, values: Any, *shape: int) -> np.ndarray:
        array = np.array(values, np.float64)  # null becomes NaN
        if array.shape[: len(shape)] != shape:
            raise ValueError(f"{key} of {name} must have shape {shape}, got {array.shape}")
        return array

    def by_task(key: str) -> list[Any]:
        values = entry.get(key) or [{}] * tasks
        if len(values) != tasks:
            raise ValueError(f"{key} of {name} must have {tasks} entries, got {len(values)}")
        return values

    def by_name(key: str, values: Mapping[str, Any]) -> dict[str, list[Any]]:
        return {what: numbers(key, one, seeds).tolist() for what, one in values.items()}

    return StreamResult(
        method=name,
        settings=dict(entry.get("settings") or {}),
        scores=numbers("scores", entry["scores"], seeds, tasks, tasks),
        details=[[by_name("details", cell) for cell in row] for row in by_task("details")],
        losses=[numbers("losses", row, seeds).tolist() if row else [] for row in by_task("losses")],
        seconds=[dict(row) for row in by_task("seconds")],
        logs=[by_name("logs", row) for row in by_task("logs")],
        heads={},
        programs=int(entry.get("programs") or 0),
        stopped=load_stopped(entry.get("stopped") or [], f"stopped of {name}"),
        **shared,
    )
