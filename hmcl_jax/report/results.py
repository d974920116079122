"""Results of a stream as tables in the paper's columns, and as files."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax import _files
from hmcl_jax._versions import versions
from hmcl_jax.continual.errors import RunError
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.evaluation import backward_transfer, overall

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


def columns(result: StreamResult) -> dict[str, np.ndarray]:
    """The paper's columns in percent, each ``(seeds,)``.

    NaN for a kind that does not occur, and for a seed that was stopped.
    """
    going = _going(result)
    R = result.scores[going]
    final, immediate = R[:, -1, :], np.diagonal(R, axis1=1, axis2=2)

    def mean(values: np.ndarray, kind: str) -> np.ndarray:
        chosen = np.array([k == kind for k in result.kinds])
        return values[:, chosen].mean(axis=1) if chosen.any() else np.full(len(values), np.nan)

    gap = final - immediate
    found = {
        "Acc": mean(final, "classification"),
        "BWT_A": mean(gap, "classification"),
        "R@5": mean(final, "retrieval"),
        "BWT_R5": mean(gap, "retrieval"),
        "Overall": overall(R),
        "BWT": backward_transfer(R),
    }
    whole = {name: np.full(len(going), np.nan) for name in found}
    for name, values in found.items():
        whole[name][going] = 100 * np.asarray(values)
    return whole


def without_stopped(result: StreamResult) -> StreamResult:
    """A result over the seeds that came to the end alone.

    Args:
      result: of a run, or read.

    Returns:
      The same without its stopped seeds, nor any word on them.
    """
    if not result.stopped:
        return result
    going = np.flatnonzero(_going(result)).tolist()

    def chosen(values: Sequence[Any]) -> list[Any]:
        return [values[place] for place in going]

    return dataclasses.replace(
        result,
        seeds=tuple(chosen(result.seeds)),
        scores=result.scores[going],
        details=[
            [{measure: chosen(values) for measure, values in cell.items()} for cell in row]
            for row in result.details
        ],
        losses=[chosen(losses) if losses else losses for losses in result.losses],
        logs=[{name: chosen(values) for name, values in log.items()} for log in result.logs],
        heads={modality: W[np.array(going, int)] for modality, W in result.heads.items()},
        stopped=(),
    )


def _going(result: StreamResult) -> np.ndarray:
    """Which seeds came to the end."""
    stopped = [found.seed_index for found in result.stopped]
    return ~np.isin(np.arange(len(result.seeds)), stopped)


def stopped_notes(results: Mapping[str, StreamResult]) -> str:
    """A line for every seed that was stopped, which the tables leave out; may be empty."""
    lines = [
        f"{name}: {found}; its table row is over the other {int(_going(result).sum())} seeds.\n"
        for name, result in results.items()
        for found in result.stopped
    ]
    return "".join(lines)


def _cells(result: StreamResult, plus_minus: str) -> list[str]:
    cells = []
    for values in columns(result).values():
        values = values[_going(result)]
        if np.isnan(values).any() or not len(values):
            cells.append("")
        elif len(values) == 1:
            cells.append(f"{values[0]:.2f}")
        else:
            cells.append(f"{values.mean():.2f}{plus_minus}{values.std(ddof=1):.2f}")
    return cells


def _mean(result: StreamResult, column: str) -> float:
    values = columns(result)[column][_going(result)]
    return -np.inf if np.isnan(values).any() or not len(values) else float(values.mean())


def markdown_table(results: Mapping[str, StreamResult]) -> str:
    """A Markdown table with one row per method."""
    return markdown_rows(method_rows(results))


def method_rows(results: Mapping[str, StreamResult]) -> list[list[str]]:
    """The cells of :func:`markdown_table`, the header first."""
    return [
        ["Method", *COLUMNS],
        *([name, *_cells(result, " ± ")] for name, result in results.items()),
    ]


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table of cells, the header first; all but the first column stand to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        return f"| {' | '.join(cells)} |"

    rule = "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])])
    return "\n".join([line(rows[0]), f"|{rule}|", *map(line, rows[1:])])


def latex_table(results: Mapping[str, StreamResult]) -> str:
    """The table as a LaTeX ``tabular`` for ``booktabs``; the best of each column is bold."""
    best = {
        column: max(results, key=lambda name: _mean(results[name], column)) for column in COLUMNS
    }
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
    for name, result in results.items():
        cells = []
        for column, cell in zip(COLUMNS, _cells(result, r"\pm"), strict=True):
            if cell and best[column] == name:
                cell = rf"\mathbf{{{cell}}}"
            cells.append(f"${cell}$" if cell else "--")
        lines.append(" & ".join([name.replace("_", r"\_"), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def as_json(results: Mapping[str, StreamResult], about: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that was measured, as plain data; NaN is null."""

    def plain(values: np.ndarray) -> Any:
        return [
            plain(v) if isinstance(v, np.ndarray) and v.ndim else (None if v != v else float(v))
            for v in values
        ]

    methods = {}
    for name, result in results.items():
        methods[name] = {
            "settings": dict(result.settings),
            "stopped": [dataclasses.asdict(found) for found in result.stopped],
            "scores": plain(result.scores),
            "columns": {column: plain(values) for column, values in columns(result).items()},
            "details": _files.without_nan(result.details),
            "losses": _files.without_nan(result.losses),
            "seconds": result.seconds,
            "logs": _files.without_nan(result.logs),
            "programs": result.programs,
        }
    first = next(iter(results.values()))
    return {
        "about": dict(about),
        "convention": CONVENTION,
        "columns": COLUMNS,
        "versions": versions(),
        "tasks": list(first.tasks),
        "kinds": list(first.kinds),
        "seeds": list(first.seeds),
        "methods": methods,
    }


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
        if not path.exists():
            continue
        if not resume:
            raise RunError(f"{path} exists already; choose another --out, or go on with --resume.")
        if not path.is_file():
            raise RunError(f"{path} is not a file; choose another --out.")
    path = Path(out) / "results.json"
    if path.exists():
        try:
            known = set(json.loads(path.read_text("utf8"))["methods"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
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
    notes = stopped_notes(results)
    commented = "".join(f"% {line}\n" for line in notes.splitlines())
    contents = {
        "table.md": f"{markdown_table(results)}\n\n{CONVENTION}\n{notes}",
        "table.tex": f"% {CONVENTION}\n{commented}{latex_table(results)}\n",
        "results.json": _files.json_text(as_json(results, about)),
    }
    return write_files(out, contents)


def write_files(out: str | Path, contents: Mapping[str, str]) -> list[Path]:
    """Writes texts by file name into a folder, each whole or not at all."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in contents.items():
        _files.write_whole(out / name, text)
        written.append(out / name)
    return written
