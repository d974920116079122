"""What needs no run of its own: ranks from features, the time of one stage. Kept once measured."""

import dataclasses
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from hmcl_jax.continual import TrainConfig, make_method
from hmcl_jax.data.store import Store
from hmcl_jax.protection import protect
from hmcl_jax.report.results import write_files
from paper.plan import Job

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from stage import Stage

MEASURED = "measured"


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
