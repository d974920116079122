"""What will be done, and what it may cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hmcl_jax.data.store import Store
from hmcl_jax.report.results import markdown_rows
from paper.plan import Item, Job
from paper.runs import finished

# Measured on the pocket stream, on one core: 1.3 s for 13,931 pairs, 14 s for 64 checkpoints.
RANK_SECONDS = 1e-4
CHECKPOINT_SECONDS = 0.22
GUESS = "a guess from the pocket stream on 2 idle cores, without compiling"


def plan_table(
    items: Sequence[Item], jobs: Mapping[str, Job], stores: Mapping[str, Store], out: Path
) -> str:
    """All runs: which tables need them, how far they are, what they may cost; and what else.

    Args:
      items: tables that can be made.
      jobs: their runs, by folder.
      stores: by stream.
      out: folder of the reproduction.
    """
    parts, total = [], 0.0
    if jobs:
        rows = [["Run", "for", "tasks done", "minutes left"]]
        for folder, job in jobs.items():
            users = [item.name for item in items if folder in {j.folder for j in item.needed}]
            count = len(stores[job.stream].orders[job.order])
            done = finished(job, out)
            left = job.seconds(stores[job.stream]) * (1 - done / count) / 60
            total += left
            rows.append([folder, ", ".join(dict.fromkeys(users)), f"{done}/{count}", f"{left:.1f}"])
        parts.append(markdown_rows(rows))
    parts.append(f"{len(jobs)} runs, about {total:.0f} minutes left ({GUESS}).")
    besides = [text for item in items if (text := measured_besides(item, stores[item.stream]))]
    if besides:
        parts.append("\n".join(["Besides, once the runs are there:", *besides]))
    return "\n\n".join(parts)


def measured_besides(item: Item, store: Store) -> str | None:
    """What a table measures that is no run, and how long that may take; None if nothing."""
    about, labels = item.about, ", ".join(next(iter(item.jobs.values()), {}))
    tasks = [store[name] for name in store.orders["canonical"]]
    show, where = about["show"], f"- {item.name} on {item.stream}:"
    if show == "time":
        stage, repeats = about["stage"], about["repeats"]
        seconds = 0.0
        for job in item.jobs["canonical"].values():
            before = sum(job.task_seconds(task) for task in tasks[: stage - 1])
            seconds += before + (repeats + 1) * job.task_seconds(tasks[stage - 1])
        return (
            f"{where} learns the first {stage - 1} tasks once and task {stage} "
            f"({tasks[stage - 1].name}) {repeats + 1} times with each of {labels}, one seed, and "
            f"times it; about {seconds / 60:.1f} minutes, and needs an idle machine. Kept once "
            "measured."
        )
    if show == "ranks":
        rows = sum(task.size("train") for task in tasks[:-1])
        return (
            f"{where} second moments of the features of {rows:,} training pairs and their "
            f"eigenvalues after each of {len(tasks) - 1} tasks; no training, "
            f"{rows * RANK_SECONDS + 1:.0f} seconds or so. Kept once measured."
        )
    if show in ("drift", "norms"):
        count = about["anchors" if show == "drift" else "norm_anchors"]
        heads = len(tasks) * len(item.needed)
        return (
            f"{where} reads {heads} checkpoints ({labels}; all steps of these runs must be there) "
            f"and applies them to {count} anchors of each old task; no training, "
            f"{heads * CHECKPOINT_SECONDS + 1:.0f} seconds or so. Not kept."
        )
    if show == "hierarchy":
        return (
            f"{where} predicts {store[about['task']].size('test'):,} samples of {about['task']} "
            f"with each of {labels}, all seeds; no training, seconds."
        )
    return None
