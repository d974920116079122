"""Our numbers in the form of the paper's tables, one function per kind of table.

Most come from results of runs; ranks, times, drift and class trees are measured here. What takes
long and is no run (ranks, times) is kept in the folder once measured.
"""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hmcl_jax.continual import ConfigError, StreamResult, TrainConfig, make_method
from hmcl_jax.data.class_trees import IMAGENET_MOVED, read_wordnet, synset_tree
from hmcl_jax.data.store import Store, Task
from hmcl_jax.evaluation import (
    Drift,
    Norms,
    Tree,
    bonferroni,
    hierarchy_scores,
    join_drift,
    make_tree,
    measure_drift,
    predict,
)
from hmcl_jax.evaluation.drift import MEASURES
from hmcl_jax.head import apply_head
from hmcl_jax.protection import protect
from hmcl_jax.report import columns
from hmcl_jax.report.results import write_files
from paper.jobs import saved
from paper.plan import Item, Job
from paper.published import Number, Table, read_tables, spread

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from stage import Stage

MEASURED = "measured"
DIRECTIONS = {"T2I": "general_to_specific", "I2T": "specific_to_general"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """What all tables are made with."""

    stores: Mapping[str, Store]  # by stream
    out: Path  # folder of the reproduction
    users: Collection[str] = ()  # methods of the user's
    same: bool = True  # whether the data are the paper's
    synsets: str | None = None  # file with the synset of every class of ImageNet, one per line
    wordnet: str | None = None  # folder of WordNet


@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a table is made of."""

    item: Item
    results: Mapping[str, Mapping[str, StreamResult]]  # by order and label in the table
    setting: Setting

    @property
    def store(self) -> Store:
        """The stream."""
        return self.setting.stores[self.item.stream]

    @property
    def rows(self) -> Mapping[str, StreamResult]:
        """Results of the only order."""
        return next(iter(self.results.values()))

    @property
    def first(self) -> StreamResult:
        """One of the results; all have the same tasks and seeds."""
        return next(iter(self.rows.values()))

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Jobs of the only order."""
        return next(iter(self.item.jobs.values()))

    @property
    def place(self) -> int:
        """Where the table's seed is among those of the runs; the first if it is not."""
        seeds = self.first.seeds
        seed = self.item.about.get("seed", seeds[0])
        return seeds.index(seed) if seed in seeds else 0

    def table(self, rows: Any, names: Sequence[str] = (), place: int = 0) -> Table:
        """A table of one block, in the form of the paper's that the config names."""
        return like_paper(self, {self.item.stream: rows}, names, place)


def make_tables(inputs: Inputs) -> list[Table]:
    """The tables of an item; the first is the paper's counterpart."""
    made = SHOWS[inputs.item.about["show"]](inputs)
    return [
        dataclasses.replace(table, unit="; ".join([table.unit, *_convention(inputs, table)]))
        for table in made
    ]


def _convention(inputs: Inputs, table: Table) -> list[str]:
    """What else a reader must know of a table: of which task, seeds and settings it is."""
    about, show = inputs.item.about, inputs.item.about["show"]
    said = []
    if "task" in about:
        name = "task" if show in ("placement", "pullback") else "all columns"
        said.append(f"{name}: of {about['task']}")
    if show == "pullback":
        jobs = inputs.jobs
        said += [
            f"{name}: beta = {jobs[about[key]].settings['beta']}"
            for name, key in (("weaker", "chosen"), ("stronger", "stronger"))
        ]
    if show == "stages":
        said.append(f"seed {inputs.first.seeds[inputs.place]}")
    if show == "norms":
        listed = ", ".join(map(str, inputs.first.seeds))
        said.append(f"seeds {listed} (the paper's: {about['seed']} alone)")
    if show == "time":
        said.append("the paper's is the mean of three backbones")
    return said


def like_paper(
    inputs: Inputs, blocks: Mapping[str, Any], names: Sequence[str] = (), place: int = 0
) -> Table:
    """A table with the label, title and units of one of the paper's that the config names."""
    label = inputs.item.about["tables"][place]
    paper = read_tables().get(label)
    if paper is None:
        return Table(label, inputs.item.about["title"], "percent", tuple(names), (), blocks)
    return dataclasses.replace(paper, columns=tuple(names) or paper.columns, blocks=blocks)


def show_columns(inputs: Inputs) -> list[Table]:
    """The paper's columns; one block per stream, or per order."""
    orders = inputs.item.about.get("orders", ())
    blocks = {
        (order if order in orders else inputs.item.stream): {
            label: _columns(result) for label, result in rows.items()
        }
        for order, rows in inputs.results.items()
    }
    return [like_paper(inputs, blocks)]


def _columns(result: StreamResult) -> dict[str, Number]:
    return _finite(columns(result).items())


def _only(row: Mapping[str, Number], *names: str) -> dict[str, Number]:
    return {name: row[name] for name in names if name in row}


def show_per_task(inputs: Inputs) -> list[Table]:
    """The final score of every task."""
    rows = {
        label: {
            task: spread(100 * result.scores[:, -1, place])
            for place, task in enumerate(result.tasks)
        }
        for label, result in inputs.rows.items()
    }
    return [inputs.table(rows, inputs.first.tasks)]


def relative_change(result: StreamResult, place: int) -> np.ndarray:
    """Percent by which the score on each task differs from that at its end, ``(stage, task)``."""
    R = result.scores[place]
    with np.errstate(divide="ignore", invalid="ignore"):
        return 100 * (R / np.diagonal(R) - 1)


def show_stages(inputs: Inputs) -> list[Table]:
    """How far the old tasks are from their task-end scores after every stage, of one seed."""
    far: dict[str, dict[str, Number]] = {}
    signed: dict[str, dict[str, Number]] = {}
    for label, result in inputs.rows.items():
        change = relative_change(result, inputs.place)
        far[label], signed[label] = (  # scores of 0 at a task's end have no relative change
            {
                f"after {t + 1}": spread([kept.mean()])
                for t in range(1, len(c))
                if (kept := c[t, :t][np.isfinite(c[t, :t])]).size
            }
            for c in (np.abs(change), change)
        )
    names = [f"after {t + 1}" for t in range(1, len(inputs.first.tasks))]
    table = inputs.table(far, names)
    unit = "mean absolute change of the old tasks, percent of the score at a task's end"
    table = dataclasses.replace(table, unit=unit, lower=tuple(names))
    title, unit = "The same with signs", "mean change of the old tasks, percent"
    return [table, Table("", title, unit, tuple(names), (), {inputs.item.stream: signed})]


def show_retrieval(inputs: Inputs) -> list[Table]:
    """R@1, R@5 and R@10 in both directions at the end."""
    rows: dict[str, dict[str, Number]] = {}
    for label, result in inputs.rows.items():
        rows[label] = {}
        chosen = inputs.item.about["tasks"] or result.tasks
        for task, kind, cell in zip(result.tasks, result.kinds, result.details[-1], strict=True):
            if kind == "retrieval" and task in chosen:
                for short, direction in DIRECTIONS.items():
                    for k in (1, 5, 10):
                        values = 100 * np.array(cell[f"{direction}_r{k}"])
                        rows[label][f"{task} {short} R@{k}"] = spread(values)
    return [inputs.table(rows, list(next(iter(rows.values()))))]


def show_placement(inputs: Inputs) -> list[Table]:
    """Overall, BWT and the final score of one task."""
    rows = {
        label: {**_only(_columns(result), "Overall", "BWT"), "task": _final(inputs, result)}
        for label, result in inputs.rows.items()
    }
    return [inputs.table(rows)]


def _final(inputs: Inputs, result: StreamResult) -> Number:
    """The final score of the task that the config names."""
    task = inputs.item.about["task"]
    if task not in result.tasks:
        raise ConfigError(f"{inputs.item.stream} has no task {task!r}, only {result.tasks}.")
    return spread(100 * result.scores[:, -1, result.tasks.index(task)])


def show_decay(inputs: Inputs) -> list[Table]:
    """Overall and BWT, one block per weight decay; and without decay BWT by kind of task."""
    blocks: dict[str, dict[str, dict[str, Number]]] = {}
    kinds: dict[str, dict[str, Number]] = {}
    for label, result in inputs.rows.items():
        method, _, decay = label.rpartition("_decay_")
        known = _columns(result)
        blocks.setdefault(f"decay-{decay}", {})[method] = _only(known, "Overall", "BWT")
        if decay == "0":
            kinds[method] = _only(known, "BWT_A", "BWT_R5")
    return [like_paper(inputs, blocks), inputs.table(kinds, place=1)]


def show_pullback(inputs: Inputs) -> list[Table]:
    """The chosen strength relative to a stronger one, what both retain, and all strengths."""
    known = {
        label: {**_columns(result), "task": _final(inputs, result)}
        for label, result in inputs.rows.items()
    }
    chosen, stronger = (known[inputs.item.about[name]] for name in ("chosen", "stronger"))
    weaker = {}
    for name in ("Overall", "Acc", "R@5"):
        if not all(stronger[name].values):
            raise ConfigError(
                f"{name} of {inputs.item.about['stronger']} is 0 with some seed, so nothing is "
                "relative to it; train longer."
            )
        pairs = zip(chosen[name].values, stronger[name].values, strict=True)
        weaker[name] = spread([100 * (a - b) / b for a, b in pairs])
    table = inputs.table({"weaker": weaker})
    both = {"weaker": _only(chosen, "BWT", "task"), "stronger": _only(stronger, "BWT", "task")}
    retained = inputs.table(both, place=1)
    names = ("Acc", "R@5", "Overall", "BWT", "task")
    rows = {label: _only(row, *names) for label, row in known.items()}
    sweep = Table("", "All strengths", "percent", names, (), {inputs.item.stream: rows})
    return [table, retained, sweep]


def measured_drift(
    jobs: Mapping[str, Job], store: Store, out: Path, counts: tuple[int, int]
) -> Drift:
    """Drift of some jobs from their checkpoints, by the names that a table gives them."""
    parts = []
    for label, run in saved(jobs, store, out).items():
        tasks = [store[name] for name in run.order]
        heads = [run.heads(number) for number in range(1, len(tasks) + 1)]
        options: dict[str, Any] = {"kappa": float(run.config.get("kappa", 0.1)), "counts": counts}
        parts.append(measure_drift(label, heads, tasks, run.seeds, K=float(store.K), **options))
    return join_drift(parts)


def _drift(inputs: Inputs, counts: tuple[int, int]) -> Drift:
    """Drift of the seeds of the runs; that of seeds that were stopped is NaN, and left out."""
    drift = measured_drift(inputs.jobs, inputs.store, inputs.setting.out, counts)
    seeds = inputs.first.seeds
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


def show_drift(inputs: Inputs) -> list[Table]:
    """Tests over old tasks for one seed, and the reduction of mean drift over all seeds."""
    drift = _drift(inputs, (inputs.item.about["anchors"], 1))
    others = [method for method in drift.methods if method != "vanilla"]
    seed = drift.seeds[inputs.place]
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
    table = like_paper(inputs, blocks)
    table = dataclasses.replace(table, unit=f"{table.unit}; seed {seed}")
    names = (*MEASURES, "least", "most")
    return [table, inputs.table(rows, names, place=1)]


def show_norms(inputs: Inputs) -> list[Table]:
    """Median ratio of norms by modality, and the number of old tasks whose median is low."""
    drift = _drift(inputs, (1, inputs.item.about["norm_anchors"]))
    rows = {
        method: _finite((name, norms.contraction()[place]) for name, norms in drift.norms.items())
        for place, method in enumerate(drift.methods)
    }
    table = inputs.table(rows, list(drift.norms))
    counts: dict[str, dict[str, Number]] = {method: {} for method in drift.methods}
    for modality, norms in drift.norms.items():
        medians = np.array([norms.task_contraction(task) for task in np.unique(norms.tasks)])
        for place, method in enumerate(drift.methods):
            own = medians[:, place]
            counts[method][f"{modality} tasks"] = spread([len(own)] * own.shape[1])
            for bound in (1, 0.9):
                low = spread(np.sum(own < bound, axis=0))
                counts[method][f"{modality} below {bound:g}"] = low
    return [table, inputs.table(counts, list(next(iter(counts.values()))), place=1)]


def show_hierarchy(inputs: Inputs) -> list[Table]:
    """How far errors are off in the class tree, at the end."""
    task = inputs.store[inputs.item.about["task"]]
    tree = class_tree(task, inputs.setting.synsets, inputs.setting.wordnet)
    arrays, K, rows = task.arrays, inputs.store.K, {}
    labels = np.asarray(arrays["test_labels"])
    for label, result in inputs.rows.items():
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
    return [inputs.table(rows)]


def show_ranks(inputs: Inputs) -> list[Table]:
    """Protected directions after every task but the last."""
    about = inputs.item.about
    key = {"variance": about["variance"], "min_rank": about["min_rank"]}
    ranks = kept(
        inputs.setting.out,
        f"ranks-{inputs.item.stream}",
        {"store": inputs.store.fingerprint, **key},
        lambda: protected_ranks(inputs.store, **key),
    )
    names = [f"after {t + 1}" for t in range(len(inputs.store) - 1)]
    rows = {
        f"rank of {modality}": {n: spread([r]) for n, r in zip(names, values, strict=True)}
        for modality, values in ranks.items()
    }
    return [inputs.table(rows, names)]


def show_time(inputs: Inputs) -> list[Table]:
    """Seconds of one stage, and relative to vanilla: medians of all repeats, and their spread.

    The repeats take turns, so that the ratio is also known for each of them.
    """
    about, jobs = inputs.item.about, inputs.jobs
    key = {name: about[name] for name in ("seed", "stage", "repeats")}
    folders = [job.folder for job in jobs.values()]
    times: Mapping[str, Sequence[float]] = kept(
        inputs.setting.out,
        f"time-{inputs.item.stream}",
        {"store": inputs.store.fingerprint, "jobs": folders, **key, "times": "every repeat"},
        lambda: fit_times(inputs.store, jobs, **key),
    )
    base, rows = np.array(times["vanilla"]), {}
    for label, seconds in times.items():
        ratio = dataclasses.replace(
            spread(np.array(seconds) / base), mean=float(np.median(seconds) / np.median(base))
        )
        taken = dataclasses.replace(spread(seconds), mean=float(np.median(seconds)))
        rows[label] = {"ratio": ratio, "seconds": taken}
    table = inputs.table(rows, ["ratio", "seconds"])
    unit = f"times vanilla; seconds; medians and deviations of {len(base)} repeats"
    return [dataclasses.replace(table, unit=unit)]


SHOWS: Mapping[str, Callable[[Inputs], list[Table]]] = {
    show.__name__.removeprefix("show_"): show
    for show in (
        *(show_columns, show_per_task, show_stages, show_retrieval, show_placement, show_decay),
        *(show_pullback, show_drift, show_norms, show_hierarchy, show_ranks, show_time),
    )
}


# What is measured here and is no run.


def kept(out: Path, name: str, about: Mapping[str, Any], measure: Callable[[], Any]) -> Any:
    """What was measured before under the same conditions, else measured now and written."""
    path = out / MEASURED / f"{name}.json"
    said = json.loads(json.dumps(dict(about)))
    try:
        known = json.loads(path.read_text("utf8"))
        if known["about"] == said:
            return known["found"]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = measure()
    text = json.dumps({"about": said, "found": found}, indent=1) + "\n"
    write_files(path.parent, {path.name: text})
    return found


def protected_ranks(store: Store, variance: float, min_rank: int) -> dict[str, list[int]]:
    """Protected directions of each modality after every task but the last."""
    method = make_method("hmcl_mr", {"variance": variance, "min_rank": min_rank})
    stage = Stage(method, TrainConfig(), store.dimension)
    ranks: dict[str, list[int]] = {modality: [] for modality in stage.carried.heads}
    for name in store.orders["canonical"][:-1]:
        stage = stage.seen(store[name])
        heads = {modality: W[0] for modality, W in stage.carried.heads.items()}
        found = protect(stage.carried.state.shared, heads, variance=variance, min_rank=min_rank)
        for modality, rank in found.rank.items():
            ranks[modality].append(int(rank))
    return ranks


def fit_times(
    store: Store, jobs: Mapping[str, Job], seed: int, stage: int, repeats: int
) -> dict[str, list[float]]:
    """Seconds to learn one task of the stream with each method, of every repetition.

    As in the paper this includes what the task begins and ends with, and no evaluation. Programs
    are compiled before. Methods take turns.
    """
    before = [store[name] for name in store.orders["canonical"][: stage - 1]]
    task = store[store.orders["canonical"][stage - 1]]
    stages = {}
    for label, job in jobs.items():
        there = Stage(make_method(job.method, job.settings), job.train, store.dimension)
        there.setting = dataclasses.replace(there.setting, seeds=(seed,))
        for old in before:
            there = there.learned(old)
        there.learned(task)  # compiles
        stages[label] = there
    seconds: dict[str, list[float]] = {label: [] for label in jobs}
    for _ in range(repeats):
        for label, there in stages.items():
            start = time.perf_counter()
            after = there.learned(task)
            jax.block_until_ready((after.carried.heads, after.carried.state))
            seconds[label].append(time.perf_counter() - start)
    return seconds


def tree_problem(task: Task, given: str | None, wordnet: str | None) -> str | None:
    """Why a task has no class tree; None if it has one."""
    try:
        class_tree(task, given, wordnet)
    except (ConfigError, ValueError, OSError) as error:
        return str(error)
    return None


def class_tree(task: Task, given: str | None, wordnet: str | None) -> Tree:
    """The tree of a task's classes: its own, or WordNet's for the synsets in the file `given`."""
    if task.tree:
        return make_tree(task.tree, task.classes, root="[ROOT]")
    if given is None:
        raise ConfigError(
            f"{task.name} has no class tree; name a file with the synset of each of its "
            f"{len(task.classes)} classes, one per line, in --synsets."
        )
    try:
        synsets = Path(given).read_text("utf8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--synsets {given} cannot be read: {error}.") from error
    if len(synsets) != len(task.classes):
        raise ConfigError(
            f"--synsets {given} has {len(synsets)} synsets, {task.name} has "
            f"{len(task.classes)} classes."
        )
    rows = synset_tree(
        read_wordnet(wordnet),
        synsets,
        parent="longest",
        root="n00001930",
        contract=True,
        moved=IMAGENET_MOVED if len(synsets) == 1000 else None,
    )
    return make_tree(rows, synsets)
