"""Which runs the tables need, whether a store has what they need, and what that may cost.

Tables are configs of experiments/configs/paper, read for the streams at hand. A run is identified
by what it computes (stream, order, method, settings, seeds), not by the name that a table gives it,
so that tables share runs.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError, TrainConfig, make_method
from hmcl_jax.continual.config import read_toml
from hmcl_jax.continual.experiment import apply_variant, read_experiment
from hmcl_jax.continual.learner import own_config
from hmcl_jax.data.store import Store, Task
from hmcl_jax.report.results import markdown_rows

CONFIGS = Path(__file__).parent.parent / "configs" / "paper"
NAMES = (
    *("main", "per_task", "stages", "orders", "modalities", "retrieval", "drift", "norms"),
    *("hierarchy", "ranks", "placement", "decay", "pullback", "time"),
)
OF_PAPER = ("vanilla", "ewc", "gem", "cflat", "dns", "hmcl_mr", "hmcl_ca")
# Seconds per training pair, epoch and seed of vanilla, and how many times that other methods take;
# measured on the pocket stream with 2 cores.
PAIR_SECONDS = 3.4e-5
TIMES = {"ewc": 1.1, "gem": 2.4, "cflat": 9.0, "dns": 1.2, "hmcl_rotation": 1.5}
GUESS = "a guess from the pocket stream on 2 idle cores, without compiling"


@dataclasses.dataclass(frozen=True)
class Job:
    """One method on one stream, all seeds."""

    stream: str  # its name, such as meru-l
    order: str  # of the tasks, a name in the store
    method: str
    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    train: TrainConfig  # with the settings that are others for this method

    @property
    def folder(self) -> str:
        """Where its checkpoints are, below the folder of all runs."""
        said: dict[str, Any] = {
            "settings": make_method(self.method, self.settings).described(),
            "train": dataclasses.asdict(self.train),
            "seeds": self.seeds,
        }
        for layout in ("seed_axis", "device_memory", "mesh"):  # do not change results
            del said["train"][layout]
        digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
        return f"{self.stream}/{self.order}/{self.method}-{digest[:10]}"

    def seconds(self, store: Store) -> float:
        """A guess of how long it takes, from the size of the stream."""
        tasks = (store[name] for name in store.orders[self.order])
        return len(self.seeds) * sum(self.task_seconds(task) for task in tasks)

    def task_seconds(self, task: Task) -> float:
        """A guess of how long one seed takes to learn a task."""
        work = task.size("train") * self.train.schedule(task.kind).epochs
        return PAIR_SECONDS * TIMES.get(self.method, 1.0) * work


@dataclasses.dataclass(frozen=True)
class Item:
    """One table or figure on one stream."""

    name: str  # of its config
    stream: str
    about: Mapping[str, Any]  # the config's table [paper]
    jobs: Mapping[str, Mapping[str, Job]]  # by order and by the label of the method in the table

    @property
    def needed(self) -> list[Job]:
        """All jobs whose results are looked at; none for what measures by itself."""
        if self.about["show"] in ("ranks", "time"):
            return []
        return [job for labels in self.jobs.values() for job in labels.values()]


def read_item(
    name: str,
    stream: str,
    overrides: Sequence[str] = (),
    extra: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
) -> Item:
    """One of NAMES on one stream, with single settings, methods and seeds of the user's on top."""
    about = about_of(name, stream)
    owner = about.get("of", name)
    if owner == name and about["show"] == "ranks":  # needs features only
        return Item(name, stream, about, {})
    experiment = read_experiment(
        CONFIGS / f"{owner}.toml",
        overrides,
        variant=stream,
        stream=stream,
        seeds=list(seeds) if seeds else None,
    )
    labels = list(experiment.methods)
    if "methods" in about:
        labels = [m for m in labels if m in about["methods"] or m not in OF_PAPER]
    tables: dict[str, Mapping[str, Any]] = {m: experiment.settings.get(m, {}) for m in labels}
    if about["show"] == "decay":  # one block per weight decay
        endings = list(dict.fromkeys(label.rpartition("_decay_")[2] for label in labels))
        tables |= {
            f"{method}_decay_{ending}": {
                **experiment.settings.get(method, {}),
                "method": method,
                "train": {"weight_decay": float(ending)} if float(ending) else {},
            }
            for ending in endings
            for method in extra
        }
    else:
        tables |= {method: experiment.settings.get(method, {}) for method in extra}
    jobs: dict[str, dict[str, Job]] = {}
    for order in about.get("orders", [experiment.order]):
        jobs[order] = {}
        for label, table in tables.items():
            settings = {k: v for k, v in table.items() if k not in ("method", "train")}
            method = str(table.get("method", label))
            train = own_config(experiment.train, make_method(label, table))
            jobs[order][label] = Job(stream, order, method, settings, experiment.seeds, train)
    return Item(name, stream, about, jobs)


def about_of(name: str, stream: str | None = None) -> dict[str, Any]:
    """A config's table ``[paper]``, on one stream, with what it inherits from the runs it uses."""
    if name not in NAMES:
        raise ConfigError(f"NAME must be one of {', '.join(NAMES)}, got {name!r}.")
    table = read_toml(CONFIGS / f"{name}.toml")
    known = table.get("variants", {})
    about = apply_variant(table, stream if stream in known else None, "").get("paper", {})
    inherited = about_of(about["of"]) if "of" in about else {}
    kept = {key: inherited[key] for key in ("streams", "pocket") if key in inherited}
    return {"pocket": "pocket", **kept, **about}


def streams_of(name: str, stores: Mapping[str, str], pocket: bool) -> tuple[list[str], list[str]]:
    """The streams that a table can be made for, and those whose stores are missing.

    With `pocket` an embedded stream stands in for all of the paper's.
    """
    about = about_of(name)
    if pocket:
        return [about["pocket"]], []
    there = [stream for stream in about["streams"] if stream in stores]
    return there, [stream for stream in about["streams"] if stream not in stores]


def known_streams() -> list[str]:
    """All names that --store may give a path for."""
    return list(dict.fromkeys(s for name in NAMES for s in about_of(name)["streams"]))


def unique(items: Iterable[Item]) -> dict[str, Job]:
    """The jobs that some tables need, each once, by folder."""
    return {job.folder: job for item in items for job in item.needed}


# What a table needs of a store, checked before anything is trained.

SIDES = {"image", "text"}  # benchmarks/stage.py knows no others
REMEDY = "`hmcl extract --suite hmcl16` makes stores with all that tables need"
LEAST = {"stages": 2, "drift": 2, "norms": 2, "ranks": 2}


def missing_for(item: Item, store: Store) -> str | None:
    """Why a table cannot be made from a store, and what to do; None if it can.

    The class tree of `hierarchy` is checked by :func:`paper.measured.class_tree`.
    """
    show, about, where = item.about["show"], item.about, f"the store {store.name!r}"
    least = {**LEAST, "time": about.get("stage", 1)}.get(show, 1)
    for order in item.jobs or ("canonical",):
        if order not in store.orders:
            known = ", ".join(store.orders)
            return f"{where} has no order {order!r}, only {known}; write it, too ({REMEDY})."
        tasks = [store[name] for name in store.orders[order]]
        names, kinds = ", ".join(task.name for task in tasks), {task.kind for task in tasks}
        wanted = about.get("tasks") or names.split(", ")
        used = tasks[: about["stage"] if show == "time" else -1]
        others = {m for task in used for m in (task.general, task.specific)} - SIDES
        if len(tasks) < least:
            return (
                f"it needs at least {least} tasks, {where} has {len(tasks)} in its order "
                f"{order!r}; add tasks ({REMEDY})."
            )
        if "task" in about and about["task"] not in names.split(", "):
            return f"{where} has no task {about['task']!r}, only {names}; add it ({REMEDY})."
        if show == "pullback" and len(kinds) < 2:
            return (
                f"it compares classification with retrieval, {where} has only {kinds.pop()} "
                f"tasks; add others ({REMEDY})."
            )
        if show == "retrieval" and not any(t.kind == show and t.name in wanted for t in tasks):
            return f"{where} has no retrieval task among {', '.join(wanted)}; add one ({REMEDY})."
        if show in ("ranks", "time") and others:
            return (
                f"it is measured with image and text alone, {where} has tasks with "
                f"{', '.join(sorted(others))}; give a store without them."
            )
    if show == "hierarchy" and store[about["task"]].kind != "classification":
        return f"{about['task']} in {where} is no classification task; give a store where it is."
    return None


# What a plan may cost.


def plan_table(
    items: Sequence[Item], stores: Mapping[str, Store], finished: Callable[[Job], int]
) -> str:
    """All runs: which tables need them, how far they are, what they may cost; and what else."""
    jobs = unique(items)
    rows, total = [["Run", "for", "tasks done", "minutes left"]], 0.0
    for folder, job in jobs.items():
        users = [item.name for item in items if folder in {j.folder for j in item.needed}]
        count, done = len(stores[job.stream].orders[job.order]), finished(job)
        left = job.seconds(stores[job.stream]) * (1 - done / count) / 60
        total += left
        rows.append([folder, ", ".join(dict.fromkeys(users)), f"{done}/{count}", f"{left:.1f}"])
    parts = [markdown_rows(rows)] if jobs else []
    parts.append(f"{len(jobs)} runs, about {total:.0f} minutes left ({GUESS}).")
    works = ((item, extra_work(item, stores[item.stream])) for item in items)
    if more := [f"- {item.name} on {item.stream}: {work}" for item, work in works if work]:
        parts.append("\n".join(["Besides, once the runs are there:", *more]))
    return "\n\n".join(parts)


def extra_work(item: Item, store: Store) -> str:
    """What a table measures besides its runs; empty if nothing."""
    about, labels = item.about, ", ".join(next(iter(item.jobs.values()), {}))
    tasks = [store[name] for name in store.orders["canonical"]]
    if about["show"] == "time":
        stage, repeats = about["stage"], about["repeats"]
        seconds = 0.0
        for job in item.jobs["canonical"].values():
            # Once each of the tasks before, then compiling, then all repeats.
            before, last = map(job.task_seconds, tasks[: stage - 1]), tasks[stage - 1]
            seconds += sum(before) + (repeats + 1) * job.task_seconds(last)
        return (
            f"learns task {stage} ({tasks[stage - 1].name}) {repeats + 1} times with each of "
            f"{labels}, one seed; about {seconds / 60:.1f} minutes on an idle machine. Kept once "
            "measured."
        )
    if about["show"] == "ranks":
        rows = sum(task.size("train") for task in tasks[:-1])
        return f"moments of {rows:,} training pairs, a second per 10,000. Kept once measured."
    if about["show"] in ("drift", "norms"):
        count = about["anchors" if about["show"] == "drift" else "norm_anchors"]
        return f"moves {count} anchors of each old task through all checkpoints of {labels}."
    if about["show"] == "hierarchy":
        rows = store[about["task"]].size("test")
        return f"predicts {rows:,} samples of {about['task']} with each of {labels}, all seeds."
    return ""
