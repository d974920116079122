"""How many stored pairs HMCL is worth: Overall against the pairs that replay methods keep.

The settings of a method at a size are those of its row in the config whose pairs are nearest on the
logarithmic axis, such as gem (512) or gem_64; a further row, such as gem_16, is used as soon as the
config has it.

The memories are shared evenly among the tasks seen so far, so a size below the number of tasks is
left out. With one pair per task the memory has no negatives: its contrastive loss is 0.

0 pairs are vanilla, for cflat its distillation over the minibatch alone. ewc keeps no pairs: its
number is that of the pairs its Fishers are estimated on, at least two at each task's end.
"""

import argparse
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.cli.records import Job, Record, Settings, Study, scores
from hmcl_jax.continual import ConfigError, make_method
from hmcl_jax.continual.experiment import check_order
from hmcl_jax.data.store import Task
from hmcl_jax.report.figures.sweeps import Budget, draw_budget
from hmcl_jax.report.results import markdown_rows, mean_std

PAIRS = (16, 32, 64, 128, 256, 512, 1024)
REPLAY = ("gem", "agem", "derpp", "cflat", "ewc")
NOTE = "ewc keeps none; its numbers are the pairs that its Fishers are estimated on"
HMCL = ("hmcl_mr", "hmcl_ca", "hmcl_rotation")


def sweep(options: argparse.Namespace) -> None:
    """Runs what is missing, and writes after every size."""
    methods = list(dict.fromkeys(options.methods or REPLAY))
    sizes = sorted(set(options.pairs or PAIRS))
    if wrong := [name for name in methods if name not in REPLAY]:
        raise ConfigError(f"--methods must be among {', '.join(REPLAY)}, got {wrong[0]!r}.")
    if sizes[0] < 1:
        raise ConfigError(f"--pairs must be whole numbers of at least 1, got {sizes[0]}.")
    study = Study(options, "replay_budget", ["vanilla", *HMCL, *methods], options.seeds)
    tasks = check_order(study.store, study.order)
    jobs = make_jobs(study.experiment.settings, methods, sizes, len(tasks))
    study.run(jobs, functools.partial(write, study, tasks))


def make_jobs(
    settings: Mapping[str, Settings], methods: Sequence[str], sizes: Sequence[int], tasks: int
) -> list[Job]:
    """All that is run: first the lines, which keep no pairs, then the curves of the methods."""

    def job(label: str, curve: str, row: str, given: Settings, pairs: int) -> Job:
        return Job(label, row, [given], {"curve": curve, "row": row, "pairs": pairs})

    hmcl = [row for row, table in settings.items() if table.get("method", row) in HMCL]
    hmcl.sort(key=lambda row: row not in HMCL)
    jobs = [job(row, "", row, settings.get(row, {}), 0) for row in ("vanilla", *(hmcl or HMCL))]
    for method in methods:
        rows = rows_of(settings, method, tasks)
        if method == "cflat":
            row, table = rows[min(rows)]
            jobs.append(job("cflat: 0", method, row, {**table, "memory": 0}, 0))
        for size in sizes:
            # EWC has a memory per task, and estimates nothing from a single pair.
            memory, least = (size // tasks, 2 * tasks) if method == "ewc" else (size, tasks)
            if size >= least:
                # The row whose pairs are nearest on a logarithmic axis, the smaller of two.
                nearest = min(sorted(rows), key=lambda pairs: abs(math.log2(pairs / size)))
                row, table = rows[nearest]
                given = {**table, "memory": memory}
                jobs.append(job(f"{method}: {size}", method, row, given, size))
    return jobs


def rows_of(
    settings: Mapping[str, Settings], method: str, tasks: int
) -> dict[int, tuple[str, Settings]]:
    """Rows of the config by the pairs they keep, the first of equal ones."""
    rows = {row: table for row, table in settings.items() if table.get("method", row) == method}
    found: dict[int, tuple[str, Settings]] = {}
    for row, table in (rows or {method: {}}).items():
        if memory := make_method(row, table).settings()["memory"]:
            found.setdefault(memory * tasks if method == "ewc" else memory, (row, table))
    return found or {PAIRS[-1]: (method, {})}


def crossing(pairs: Sequence[int], scores: np.ndarray, level: float) -> float:
    """The fewest pairs at which a curve of rising sizes reaches a level.

    Interpolated in log2: 0 if it does without pairs, half the fewest if with these, inf if never.
    """
    reached = np.flatnonzero(scores >= level)
    if not len(reached):
        return math.inf
    at = int(reached[0])
    if pairs[at] == min(filter(None, pairs)) or pairs[at] == 0:
        return pairs[at] / 2  # there is no smaller size to interpolate from
    share = (level - scores[at - 1]) / (scores[at] - scores[at - 1])
    return float(pairs[at - 1] * (pairs[at] / pairs[at - 1]) ** share)


def in_words(value: float, pairs: Sequence[int]) -> str:
    """A crossing in words."""
    fewest, most = min(filter(None, pairs)), max(pairs)
    if value > most:
        return f">{most}"
    return f"<{fewest}" if 0 < value < fewest else f"{value:.0f}"


def curves_of(records: Mapping[str, Record]) -> tuple[list[Budget], dict[str, np.ndarray]]:
    """Curves and lines that can be drawn; points where a seed diverged are left out."""
    lines: dict[str, np.ndarray] = {}
    curves: dict[str, dict[int, np.ndarray]] = {}
    for label, record in records.items():
        overall = scores(record)[2][0]
        if np.isfinite(overall).all():
            if record["curve"]:
                curves.setdefault(record["curve"], {})[record["pairs"]] = overall
            else:
                lines[label] = overall
    vanilla = lines.pop("vanilla", None)
    drawn = []
    for method, own in curves.items():
        if method != "cflat" and vanilla is not None:
            own[0] = vanilla
        drawn.append(Budget(method, sorted(own), np.stack([own[size] for size in sorted(own)])))
    return drawn, lines


def worth(curves: Sequence[Budget], lines: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """For every curve and line: the crossing of the means, and those of the seeds."""
    return {
        curve.label: {line: _worth(curve, level) for line, level in lines.items()}
        for curve in curves
        if any(curve.pairs)
    }


def _worth(curve: Budget, level: np.ndarray) -> dict[str, Any]:
    pairs, mean = curve.pairs, curve.overall.mean(axis=1)
    at = crossing(pairs, mean, level.mean())
    seeds = [crossing(pairs, *own) for own in zip(curve.overall.T, level, strict=True)]
    text = in_words(at, pairs)
    if len(seeds) > 1:
        text += f" ({in_words(min(seeds), pairs)} to {in_words(max(seeds), pairs)})"
    exact = at == 0 or min(filter(None, pairs)) <= at < math.inf
    return {
        "pairs": at if exact else None,
        "text": text,
        "seeds": [in_words(value, pairs) for value in seeds],
        # Beyond its crossing a curve need not stay above.
        "falls_again": bool(np.any(mean[np.array(pairs) >= at] < level.mean())),
    }


def write(study: Study, tasks: Sequence[Task], records: Mapping[str, Record]) -> str:
    """Writes numbers, then the tables and the pictures of them; returns the tables."""
    curves, lines = curves_of(records)
    values = worth(curves, lines)
    text = f"{worth_table(values, lines)}\n\n{point_table(records, tasks)}"
    study.save(records, text, worth=values)
    pictures = [study.out / f"replay_budget.{ending}" for ending in ("png", "svg")]
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


def point_table(records: Mapping[str, Record], tasks: Sequence[Task]) -> str:
    """All points: pairs, their share of the training pairs, and scores."""
    whole = sum(task.size("train") for task in tasks)
    rows = [["Method", "Pairs", "Share", "Row", "Overall", "BWT"]]
    for label, record in records.items():
        _, (forgetting,), (overall,) = scores(record)
        pairs, name = record["pairs"], record["curve"] or label
        whole_row = np.isfinite(overall).all()  # `mean_std` would leave out seeds that diverged
        cells = [mean_std(x) if whole_row else "nan" for x in (overall, -forgetting)]
        rows.append([name, str(pairs), f"{100 * pairs / whole:.2f} %", record["row"], *cells])
    title = f"All points ({whole} training pairs, {len(tasks)} tasks; settings are the row's):"
    return f"{title}\n\n{markdown_rows(rows)}"
