"""How many stored pairs HMCL is worth: Overall against the pairs that replay methods keep.

Runs vanilla, the config's rows of HMCL, and the methods that use pairs of old tasks, with 16 to
1024 of them in all. The settings of a method at a size are those of its row in the config whose
pairs are nearest on the logarithmic axis, such as gem (512) or gem_64; a further row, such as
gem_16, is used as soon as the config has it.

Pairs are counted over the stream. The memories are shared evenly among the tasks seen so far, so a
size below the number of tasks is left out. With one pair per task the memory has no negatives: its
contrastive loss is 0, and what is left is the entailment and what DER++ holds.

- gem, agem, derpp: 0 pairs are vanilla.
- cflat: 0 pairs are C-FLAT whose distillation is over the minibatch alone.
- ewc keeps no pairs. Its number is that of the pairs its Fishers are estimated on, an equal part of
  them at each task's end; 0 pairs are vanilla, and an estimate needs two pairs per task.
"""

import argparse
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.cli.options import split_names, split_numbers, split_seeds
from hmcl_jax.cli.records import (
    Bench,
    Job,
    Record,
    Settings,
    as_text,
    forgetting_and_immediate,
    open_bench,
    overall,
    run_jobs,
)
from hmcl_jax.continual import ConfigError, make_method
from hmcl_jax.continual.experiment import check_order
from hmcl_jax.data.store import Task
from hmcl_jax.report.figures.sweeps import Budget, draw_budget
from hmcl_jax.report.results import markdown_rows, write_files

PAIRS = (16, 32, 64, 128, 256, 512, 1024)
REPLAY = ("gem", "agem", "derpp", "cflat", "ewc")
NOTE = "ewc keeps none; its numbers are the pairs that its Fishers are estimated on"
HMCL = ("hmcl_mr", "hmcl_ca", "hmcl_rotation")


def sweep(options: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every size."""
    methods, sizes = read_options(options)
    bench = open_bench(options, ["vanilla", *HMCL, *methods], split_seeds(options.seeds))
    tasks = check_order(bench.store, bench.order)
    jobs = make_jobs(bench.experiment.settings, methods, sizes, len(tasks))
    out = Path(options.out)
    write_all = functools.partial(write, out, bench, tasks)
    run_jobs(bench, jobs, out / "replay_budget.json", options.resume, write_all)
    print(f"wrote {out}/replay_budget.json, .md, .png and .svg")


def read_options(options: argparse.Namespace) -> tuple[list[str], list[int]]:
    """The methods and sizes of the command line."""
    methods = split_names("--methods", options.methods) or list(REPLAY)
    for name in methods:
        if name not in REPLAY:
            raise ConfigError(f"--methods must be among {', '.join(REPLAY)}, got {name!r}.")
    sizes = split_numbers("--pairs", options.pairs) or list(PAIRS)
    for size in sizes:
        if not isinstance(size, int) or size < 1:
            raise ConfigError(f"--pairs must be whole numbers of at least 1, got {size!r}.")
    return list(dict.fromkeys(methods)), sorted(set(sizes))


def make_jobs(
    settings: Mapping[str, Settings], methods: Sequence[str], sizes: Sequence[int], tasks: int
) -> list[Job]:
    """All that is run: the lines first, then the curves."""
    own = [row for row, table in settings.items() if table.get("method", row) in HMCL]
    lines = [row for row in (*HMCL, *own) if row in own or not own]
    jobs = [
        _job(row, "", row, settings.get(row, {}), 0) for row in dict.fromkeys(["vanilla", *lines])
    ]
    for method in methods:
        rows = rows_of(settings, method, tasks)
        if method == "cflat":
            row, table = rows[min(rows)]
            jobs.append(_job("cflat: 0", method, row, {**table, "memory": 0}, 0))
        for size in sizes:
            memory = memory_of(method, size, tasks)
            if memory is not None:
                row, table = nearest(rows, size)
                given = {**table, "memory": memory}
                jobs.append(_job(f"{method}: {size}", method, row, given, size))
    return jobs


def _job(label: str, curve: str, row: str, given: Settings, pairs: int) -> Job:
    """A point of the curve of a replay method, or a line if there is no curve."""
    return Job(label, row, given, [{}], {"curve": curve, "row": row, "pairs": pairs})


def rows_of(
    settings: Mapping[str, Settings], method: str, tasks: int
) -> dict[int, tuple[str, Settings]]:
    """Rows of the config by the pairs they keep, the first of equal ones."""
    found: dict[int, tuple[str, Settings]] = {}
    rows = {row: table for row, table in settings.items() if table.get("method", row) == method}
    for row, table in (rows or {method: {}}).items():
        memory = make_method(row, table).settings()["memory"]
        if memory:
            found.setdefault(memory * tasks if method == "ewc" else memory, (row, table))
    return found or {PAIRS[-1]: (method, {})}


def memory_of(method: str, pairs: int, tasks: int) -> int | None:
    """The method's setting for so many pairs in all, None if they are too few."""
    if method == "ewc":
        return pairs // tasks if pairs >= 2 * tasks else None
    return pairs if pairs >= tasks else None


def nearest(rows: Mapping[int, Any], pairs: int) -> Any:
    """The row whose pairs are nearest on a logarithmic axis, the smaller of two."""
    return rows[min(sorted(rows), key=lambda own: abs(math.log2(own / pairs)))]


def crossing(pairs: Sequence[int], scores: np.ndarray, level: float) -> float:
    """The fewest pairs at which a curve reaches a level.

    Args:
      pairs: rising; 0 may be the first.
      scores: at these.
      level: to reach.

    Returns:
      Interpolated in log2 of the pairs. 0 if the curve is there without pairs, half the fewest if
      it is there with these, inf if nowhere.
    """
    curve = list(zip(pairs, scores, strict=True))
    if curve[0][0] == 0 and curve.pop(0)[1] >= level:
        return 0.0
    if curve[0][1] >= level:
        return curve[0][0] / 2
    for (fewer, low), (more, high) in itertools.pairwise(curve):
        if high >= level:
            share = (level - low) / (high - low)
            return float(fewer * (more / fewer) ** share)
    return math.inf


def in_words(value: float, pairs: Sequence[int], short: bool = False) -> str:
    """A crossing in words."""
    fewest, most = min(filter(None, pairs)), max(pairs)
    if value > most:
        return f">{most}" if short else f"more than {most}"
    if 0 < value < fewest:
        return f"<{fewest}" if short else f"fewer than {fewest}"
    return f"{value:.0f}"


def curves_of(found: Mapping[str, Record]) -> tuple[list[Budget], dict[str, np.ndarray]]:
    """Curves and lines that can be drawn; points where a seed diverged are left out."""
    whole = {
        label: overall(record)[0]
        for label, record in found.items()
        if np.isfinite(overall(record)).all()
    }
    lines = {label: whole[label] for label in whole if not found[label]["curve"]}
    vanilla = lines.pop("vanilla", None)
    curves = []
    for method in dict.fromkeys(record["curve"] for record in found.values()):
        own = {
            found[label]["pairs"]: scores
            for label, scores in whole.items()
            if method and found[label]["curve"] == method
        }
        if method and method != "cflat" and own and vanilla is not None:
            own[0] = vanilla
        if own:
            sizes = sorted(own)
            curves.append(Budget(method, sizes, np.stack([own[size] for size in sizes])))
    return curves, lines


def worth(curves: Sequence[Budget], lines: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """For every curve and line: the crossing of the means, and those of the seeds."""
    found: dict[str, dict[str, Any]] = {}
    for curve in curves:
        if not any(curve.pairs):
            continue
        found[curve.label] = {}
        for line, level in lines.items():
            mean = curve.overall.mean(axis=1)
            at = crossing(curve.pairs, mean, level.mean())
            seeds = [
                crossing(curve.pairs, *pair) for pair in zip(curve.overall.T, level, strict=True)
            ]
            text = in_words(at, curve.pairs)
            if len(seeds) > 1:
                low, high = (in_words(end(seeds), curve.pairs, short=True) for end in (min, max))
                text += f" ({low} to {high})"
            # Beyond its crossing a curve need not stay above.
            reached = [size >= at for size in curve.pairs]
            again = any(mean[reached] < level.mean())
            found[curve.label][line] = {
                "pairs": at if at == 0 or min(filter(None, curve.pairs)) <= at < math.inf else None,
                "text": text,
                "seeds": [in_words(value, curve.pairs, short=True) for value in seeds],
                "falls_again": bool(again),
            }
    return found


def write(out: Path, bench: Bench, tasks: Sequence[Task], found: Mapping[str, Record]) -> str:
    """All files, each whole or not at all; gives the tables."""
    curves, lines = curves_of(found)
    values = worth(curves, lines)
    text = f"{worth_table(values, lines)}\n\n{point_table(found, tasks)}"
    texts = {
        "replay_budget.json": as_text(bench.about, found, worth=values),
        "replay_budget.md": text + "\n",
    }
    write_files(out, texts)
    pictures = [out / f"replay_budget.{ending}" for ending in ("png", "svg")]
    draw_budget(curves, lines, pictures, NOTE if "ewc" in values else "")
    return text


def worth_table(values: Mapping[str, Mapping[str, Any]], lines: Mapping[str, np.ndarray]) -> str:
    """A row for every replay method, a column for every row of HMCL."""
    rows = [["Method", *(f"{line} ({level.mean():.2f})" for line, level in lines.items())]]
    for method, own in values.items():
        rows.append([method, *(own[x]["text"] + "*" * own[x]["falls_again"] for x in lines)])
    title = "Pairs at which a method's Overall reaches that of HMCL (least and largest over seeds):"
    parts = [title, markdown_rows(rows)]
    if "ewc" in values:
        parts.append(f"{NOTE[0].upper()}{NOTE[1:]}.")
    if any(own[line]["falls_again"] for own in values.values() for line in lines):
        parts.append("\\* With more pairs it falls below again.")
    return "\n\n".join(parts)


def point_table(found: Mapping[str, Record], tasks: Sequence[Task]) -> str:
    """All points: pairs, their share of the training pairs, and scores."""
    whole = sum(task.size("train") for task in tasks)
    rows = [["Method", "Pairs", "Share", "Row", "Overall", "BWT"]]
    for label, record in found.items():
        forgetting, immediate = (x[0] for x in forgetting_and_immediate(record))
        scores = []
        for values in (immediate - forgetting, -forgetting):
            spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
            scores.append(f"{np.mean(values):.2f}{spread}")
        pairs, name = record["pairs"], record["curve"] or label
        rows.append([name, str(pairs), f"{100 * pairs / whole:.2f} %", record["row"], *scores])
    title = f"All points ({whole} training pairs, {len(tasks)} tasks; settings are the row's):"
    return f"{title}\n\n{markdown_rows(rows)}"
