"""Our numbers in the form of the paper's tables, one function per kind of table."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.continual import ConfigError, StreamResult
from hmcl_jax.data.store import Store
from hmcl_jax.evaluation import (
    Drift,
    Norms,
    bonferroni,
    hierarchy_scores,
    join_drift,
    measure_drift,
    predict,
)
from hmcl_jax.evaluation.drift import MEASURES
from hmcl_jax.head import apply_head
from hmcl_jax.report import columns
from paper.measured import fit_times, kept, protected_ranks
from paper.plan import Item
from paper.runs import saved
from paper.tables import Number, Table, read_tables, spread
from paper.trees import class_tree

DIRECTIONS = {"T2I": "general_to_specific", "I2T": "specific_to_general"}


@dataclasses.dataclass(frozen=True)
class Found:
    """What a table is made of.

    Attributes:
      item: the table on one stream.
      store: the stream.
      results: by order and name in the table.
      out: folder of the reproduction.
      synsets: file with the synset of every class of ImageNet, one per line, if given.
      wordnet: folder of WordNet, if given.
    """

    item: Item
    store: Store
    results: Mapping[str, Mapping[str, StreamResult]]
    out: Path
    synsets: str | None = None
    wordnet: str | None = None

    @property
    def rows(self) -> Mapping[str, StreamResult]:
        """Results of the only order."""
        return next(iter(self.results.values()))

    @property
    def place(self) -> int:
        """Where the table's seed is among those of the runs; the first if it is not."""
        seeds = next(iter(self.rows.values())).seeds
        seed = self.item.about.get("seed", seeds[0])
        return seeds.index(seed) if seed in seeds else 0


def make_tables(found: Found) -> list[Table]:
    """The tables of an item; the first is the paper's counterpart."""
    made = SHOWS[found.item.about["show"]](found)
    return [
        dataclasses.replace(table, unit="; ".join([table.unit, *_convention(found, table)]))
        for table in made
    ]


def _convention(found: Found, table: Table) -> list[str]:
    """What else a reader must know of a table: of which task, seeds and settings it is."""
    about, show = found.item.about, found.item.about["show"]
    said = []
    if "task" in about:
        name = "task" if show in ("placement", "pullback") else "all columns"
        said.append(f"{name}: of {about['task']}")
    if show == "pullback":
        jobs = next(iter(found.item.jobs.values()))
        said += [
            f"{name}: beta = {jobs[about[key]].settings['beta']}"
            for name, key in (("weaker", "chosen"), ("stronger", "stronger"))
        ]
    if show == "stages":
        said.append(f"seed {next(iter(found.rows.values())).seeds[found.place]}")
    if show == "norms":
        listed = ", ".join(map(str, next(iter(found.rows.values())).seeds))
        said.append(f"seeds {listed} (the paper's: {about['seed']} alone)")
    if show == "time":
        said.append("the paper's is the mean of three backbones")
    return said


def like_paper(
    found: Found, blocks: Mapping[str, Any], names: Sequence[str] = (), place: int = 0
) -> Table:
    """A table with the label, title and units of one of the paper's that the config names."""
    label = found.item.about["tables"][place]
    paper = read_tables().get(label)
    if paper is None:
        return Table(label, found.item.about["title"], "percent", tuple(names), (), blocks)
    return dataclasses.replace(paper, columns=tuple(names) or paper.columns, blocks=blocks)


def show_columns(found: Found) -> list[Table]:
    """The paper's columns; one block per stream, or per order."""
    orders = found.item.about.get("orders", ())
    blocks = {
        (order if order in orders else found.item.stream): {
            label: _columns(result) for label, result in rows.items()
        }
        for order, rows in found.results.items()
    }
    return [like_paper(found, blocks)]


def _columns(result: StreamResult) -> dict[str, Number]:
    return _finite(columns(result).items())


def show_per_task(found: Found) -> list[Table]:
    """The final score of every task."""
    rows = {
        label: {
            task: spread(100 * result.scores[:, -1, place])
            for place, task in enumerate(result.tasks)
        }
        for label, result in found.rows.items()
    }
    names = next(iter(found.rows.values())).tasks
    return [like_paper(found, {found.item.stream: rows}, names)]


def relative_change(result: StreamResult, place: int) -> np.ndarray:
    """Percent by which the score on each task differs from that at its end, ``(stage, task)``."""
    R = result.scores[place]
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * (R / np.diagonal(R) - 1)


def show_stages(found: Found) -> list[Table]:
    """How far the old tasks are from their task-end scores after every stage, of one seed."""
    far: dict[str, dict[str, Number]] = {}
    signed: dict[str, dict[str, Number]] = {}
    for label, result in found.rows.items():
        change = relative_change(result, found.place)
        far[label], signed[label] = (  # scores of 0 at a task's end have no relative change
            {
                f"after {t + 1}": spread([kept.mean()])
                for t in range(1, len(c))
                if (kept := c[t, :t][np.isfinite(c[t, :t])]).size
            }
            for c in (np.abs(change), change)
        )
    names = [f"after {t + 1}" for t in range(1, len(next(iter(found.rows.values())).tasks))]
    table = like_paper(found, {found.item.stream: far}, names)
    unit = "mean absolute change of the old tasks, percent of the score at a task's end"
    table = dataclasses.replace(table, unit=unit, lower=tuple(names))
    title, unit = "The same with signs", "mean change of the old tasks, percent"
    return [table, Table("", title, unit, tuple(names), (), {found.item.stream: signed})]


def show_retrieval(found: Found) -> list[Table]:
    """R@1, R@5 and R@10 in both directions at the end."""
    rows: dict[str, dict[str, Number]] = {}
    for label, result in found.rows.items():
        rows[label] = {}
        chosen = found.item.about["tasks"] or result.tasks
        for task, kind, cell in zip(result.tasks, result.kinds, result.details[-1], strict=True):
            if kind == "retrieval" and task in chosen:
                for short, direction in DIRECTIONS.items():
                    for k in (1, 5, 10):
                        values = 100 * np.array(cell[f"{direction}_r{k}"])
                        rows[label][f"{task} {short} R@{k}"] = spread(values)
    names = list(next(iter(rows.values())))
    return [like_paper(found, {found.item.stream: rows}, names)]


def show_placement(found: Found) -> list[Table]:
    """Overall, BWT and the final score of one task."""
    rows = {}
    for label, result in found.rows.items():
        known = _columns(result)
        final = _final(found, result)
        rows[label] = {"Overall": known["Overall"], "BWT": known["BWT"], "task": final}
    return [like_paper(found, {found.item.stream: rows})]


def _final(found: Found, result: StreamResult) -> Number:
    """The final score of the task that the config names."""
    task = found.item.about["task"]
    if task not in result.tasks:
        raise ConfigError(f"{found.item.stream} has no task {task!r}, only {result.tasks}.")
    return spread(100 * result.scores[:, -1, result.tasks.index(task)])


def show_decay(found: Found) -> list[Table]:
    """Overall and BWT, one block per weight decay; and without decay BWT by kind of task."""
    blocks: dict[str, dict[str, dict[str, Number]]] = {}
    kinds: dict[str, dict[str, Number]] = {}
    for label, result in found.rows.items():
        method, _, decay = label.rpartition("_decay_")
        known = _columns(result)
        row = {"Overall": known["Overall"], "BWT": known["BWT"]}
        blocks.setdefault(f"decay-{decay}", {})[method] = row
        if decay == "0":
            kinds[method] = {name: known[name] for name in ("BWT_A", "BWT_R5") if name in known}
    return [like_paper(found, blocks), like_paper(found, {found.item.stream: kinds}, place=1)]


def show_pullback(found: Found) -> list[Table]:
    """The chosen strength relative to a stronger one, what both retain, and all strengths."""
    known = {
        label: {**_columns(result), "task": _final(found, result)}
        for label, result in found.rows.items()
    }
    chosen, stronger = (known[found.item.about[name]] for name in ("chosen", "stronger"))
    weaker = {}
    for name in ("Overall", "Acc", "R@5"):
        if not all(stronger[name].values):
            raise ConfigError(
                f"{name} of {found.item.about['stronger']} is 0 with some seed, so nothing is "
                "relative to it; train longer."
            )
        pairs = zip(chosen[name].values, stronger[name].values, strict=True)
        weaker[name] = spread([100 * (a - b) / b for a, b in pairs])
    table = like_paper(found, {found.item.stream: {"weaker": weaker}})
    both = {
        label: {name: row[name] for name in ("BWT", "task")}
        for label, row in (("weaker", chosen), ("stronger", stronger))
    }
    retained = like_paper(found, {found.item.stream: both}, place=1)
    names = ("Acc", "R@5", "Overall", "BWT", "task")
    rows = {label: {name: row[name] for name in names} for label, row in known.items()}
    sweep = Table("", "All strengths", "percent", names, (), {found.item.stream: rows})
    return [table, retained, sweep]


def measured_drift(jobs: Mapping[str, Any], store: Store, out: Path, counts: tuple) -> Drift:
    """Drift of some jobs from their checkpoints, by the names that a table gives them."""
    parts = []
    for label, run in saved(jobs, store, out).items():
        tasks = [store[name] for name in run.order]
        heads = [run.heads(number) for number in range(1, len(tasks) + 1)]
        options = {"kappa": float(run.config.get("kappa", 0.1)), "counts": counts}
        parts.append(measure_drift(label, heads, tasks, run.seeds, K=float(store.K), **options))
    return join_drift(parts)


def of_seeds(drift: Drift, seeds: Sequence[int]) -> Drift:
    """Drift of some of its seeds; that of seeds that were stopped is NaN."""
    places = [drift.seeds.index(seed) for seed in seeds]
    norms = {
        modality: Norms(n.tasks, n.before[:, places], n.after[:, places])
        for modality, n in drift.norms.items()
    }
    values, cones = drift.values[:, places], drift.cones[:, places]
    return dataclasses.replace(drift, seeds=tuple(seeds), values=values, cones=cones, norms=norms)


def _finite(columns: Iterable[tuple[str, np.ndarray]]) -> dict[str, Number]:
    """Numbers over seeds, without columns in which one is not finite."""
    return {name: spread(values) for name, values in columns if np.isfinite(values).all()}


def show_drift(found: Found) -> list[Table]:
    """Tests over old tasks for one seed, and the reduction of mean drift over all seeds."""
    jobs, anchors = next(iter(found.item.jobs.values())), found.item.about["anchors"]
    drift = measured_drift(jobs, found.store, found.out, (anchors, 1))
    drift = of_seeds(drift, next(iter(found.rows.values())).seeds)
    others = [method for method in drift.methods if method != "vanilla"]
    seed = drift.seeds[found.place]
    blocks: dict[str, dict[str, dict[str, Number]]] = {name: {} for name in MEASURES}
    for method in others:
        tests = drift.compare(method, "vanilla", seed)
        for name, test in zip(MEASURES, tests, strict=True):
            blocks[name][method] = {
                "lower": spread([test.positive]),
                "tasks": spread([len(drift.tasks)]),
                "p": spread([test.p]),
                "adjusted": spread([bonferroni(test.p, len(MEASURES))]),
            }
    reduction = 100 * drift.reduction("vanilla")
    rows = {
        method: _finite(zip(MEASURES, reduction[drift.methods.index(method)].T, strict=True))
        for method in others
    }
    variants = [drift.methods.index(m) for m in ("hmcl_mr", "hmcl_ca") if m in others]
    if variants:
        picks = (("least", np.min), ("most", np.max))
        rows["both"] = _finite((n, pick(reduction[variants], axis=(0, 2))) for n, pick in picks)
    table = like_paper(found, blocks)
    table = dataclasses.replace(table, unit=f"{table.unit}; seed {seed}")
    names = (*MEASURES, "least", "most")
    return [table, like_paper(found, {found.item.stream: rows}, names, place=1)]


def show_norms(found: Found) -> list[Table]:
    """Median ratio of norms by modality, and the number of old tasks whose median is low."""
    jobs, count = next(iter(found.item.jobs.values())), found.item.about["norm_anchors"]
    drift = measured_drift(jobs, found.store, found.out, (1, count))
    drift = of_seeds(drift, next(iter(found.rows.values())).seeds)
    rows = {
        method: _finite((name, norms.contraction()[place]) for name, norms in drift.norms.items())
        for place, method in enumerate(drift.methods)
    }
    table = like_paper(found, {found.item.stream: rows}, list(drift.norms))
    counts: dict[str, dict[str, Number]] = {method: {} for method in drift.methods}
    for modality, norms in drift.norms.items():
        medians = np.array([norms.task_contraction(task) for task in np.unique(norms.tasks)])
        for place, method in enumerate(drift.methods):
            own = medians[:, place]
            counts[method][f"{modality} tasks"] = spread([len(own)] * own.shape[1])
            for bound in (1, 0.9):
                low = spread(np.sum(own < bound, axis=0))
                counts[method][f"{modality} below {bound:g}"] = low
    names = list(next(iter(counts.values())))
    return [table, like_paper(found, {found.item.stream: counts}, names, place=1)]


def show_hierarchy(found: Found) -> list[Table]:
    """How far errors are off in the class tree, at the end."""
    task = found.store[found.item.about["task"]]
    tree = class_tree(task, found.synsets, found.wordnet)
    arrays, K, rows = task.arrays, found.store.K, {}
    labels = np.asarray(arrays["test_labels"])
    for label, result in found.rows.items():
        guesses = []
        for place in range(len(result.seeds)):
            general, specific = (result.heads[m][place] for m in (task.general, task.specific))
            prototypes = apply_head(general, np.asarray(arrays["prototypes"], general.dtype), K)
            samples = apply_head(specific, np.asarray(arrays["test_features"], general.dtype), K)
            guesses.append(np.asarray(predict(prototypes, samples, K=K)))
        scores = hierarchy_scores(tree, np.stack(guesses), labels)
        rows[label] = {
            name: spread(np.asarray(values) * (100 if name == "top1" else 1))
            for name, values in scores.items()
        }
    return [like_paper(found, {found.item.stream: rows})]


def show_ranks(found: Found) -> list[Table]:
    """Protected directions after every task but the last."""
    about = found.item.about
    key = {"variance": about["variance"], "min_rank": about["min_rank"]}
    ranks = kept(
        found.out,
        f"ranks-{found.item.stream}",
        {"store": found.store.fingerprint, **key},
        lambda: protected_ranks(found.store, **key),
    )
    names = [f"after {t + 1}" for t in range(len(found.store) - 1)]
    rows = {
        f"rank of {modality}": {n: spread([r]) for n, r in zip(names, values, strict=True)}
        for modality, values in ranks.items()
    }
    return [like_paper(found, {found.item.stream: rows}, names)]


def show_time(found: Found) -> list[Table]:
    """Seconds of one stage, and relative to vanilla: medians of all repeats, and their spread.

    The repeats take turns, so that the ratio is also known for each of them.
    """
    about, jobs = found.item.about, next(iter(found.item.jobs.values()))
    key = {name: about[name] for name in ("seed", "stage", "repeats")}
    folders = [job.folder for job in jobs.values()]
    times: Mapping[str, Sequence[float]] = kept(
        found.out,
        f"time-{found.item.stream}",
        {"store": found.store.fingerprint, "jobs": folders, **key, "found": "every repeat"},
        lambda: fit_times(found.store, jobs, **key),
    )
    base, rows = np.array(times["vanilla"]), {}
    for label, seconds in times.items():
        ratio = dataclasses.replace(
            spread(np.array(seconds) / base), mean=float(np.median(seconds) / np.median(base))
        )
        taken = dataclasses.replace(spread(seconds), mean=float(np.median(seconds)))
        rows[label] = {"ratio": ratio, "seconds": taken}
    table = like_paper(found, {found.item.stream: rows}, ["ratio", "seconds"])
    unit = f"times vanilla; seconds; medians and deviations of {len(base)} repeats"
    return [dataclasses.replace(table, unit=unit)]


SHOWS: Mapping[str, Callable[[Found], list[Table]]] = {
    "columns": show_columns,
    "per_task": show_per_task,
    "stages": show_stages,
    "retrieval": show_retrieval,
    "placement": show_placement,
    "decay": show_decay,
    "pullback": show_pullback,
    "drift": show_drift,
    "norms": show_norms,
    "hierarchy": show_hierarchy,
    "ranks": show_ranks,
    "time": show_time,
}
