"""How do time and memory of a task grow with the tasks before it, and with its own size?

    python benchmarks/scaling.py
    python benchmarks/scaling.py --short

First, a stream of equal tasks (4,096 samples, 100 classes, d = 512, 10 epochs): all that a run does
for its 2nd, 4th, ..., 64th task (begin_task, learning, end_task), with 32 protected directions per
modality, and with the method's own rule, by which the rank grows with what was seen. The places of
the stream take turns. Memory is the peak of the process when it first came there, and what the
method carries from task to task.

Then one task with hmcl_ca for growing samples, classes and d, each in a process of its own.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import jax
import optax

from hmcl_jax.continual import Schedule, TrainConfig, make_method
from stage import Stage, make_task
from timing import claim, interleave, median, peak_mib, print_json, print_table, ratio, shown

METHODS = ("hmcl_mr", "hmcl_ca")
FIXED = {"variance": 1e-6, "min_rank": 32}  # the first direction reaches this share
SIZES = {"samples": 4096, "classes": 100, "d": 512}


def along_stream(places: list[int], config: TrainConfig, repeats: int, short: bool) -> list[dict]:
    """Seconds of tasks at these places of a stream, and what memory they came to.

    In the short form the heads learn nothing at the places between, and only one rule is tried.
    """
    rows, shape = [], tuple(SIZES.values())
    rules = {"32": FIXED} if short else {"32": FIXED, "own": {}}
    for name in METHODS:
        for rule, settings in rules.items():
            stage = Stage(make_method(name, settings), config, SIZES["d"])
            sides, before, memory, ranks = {}, {}, {}, {}
            for number in range(1, places[-1] + 1):
                task = make_task(*shape, number)
                if number in places:
                    before[number] = (stage, task)
                    # Bound as defaults, because both names change in the loop.
                    sides[str(number)] = lambda stage=stage, task=task: _all(stage, task)
                    state = optax.tree.get(stage.begin(task), "protection")
                    ranks[number] = max(int(r.max()) for r in state.rank.values())
                    memory[number] = peak_mib()
                # Moments, and so the rank, grow whether the heads learn or not.
                stage = stage.seen(task) if short else stage.learned(task)
            times = interleave(sides, repeats)
            for number, (held, _) in before.items():
                carried = sum(x.nbytes for x in jax.tree.leaves(_carried(held)))
                found = ratio(times, str(number), str(places[0]))
                row = {"method": name, "rule": rule, "task": number, "rank": ranks[number]}
                row |= {"seconds": median(times[str(number)]), **found}
                row |= {"carried_mib": carried / 2**20, "peak_mib": memory[number]}
                rows.append(row)
    return rows


def _all(stage: Stage, task: object) -> object:
    after = stage.learned(task)
    return _carried(after)


def _carried(stage: Stage) -> object:
    return stage.carried.heads, stage.carried.state


def point(sizes: dict[str, int], epochs: int, repeats: int) -> dict:
    """One task of a size, in this process alone."""
    config = TrainConfig(classification=Schedule(epochs, 5e-4))
    task = make_task(sizes["samples"], sizes["classes"], sizes["d"])
    stage = Stage(make_method("hmcl_ca", FIXED), config, sizes["d"]).seen(task)
    times = interleave({"task": lambda: _all(stage, task)}, repeats)
    return {**sizes, "seconds": median(times["task"]), "peak_mib": peak_mib()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--short", action="store_true", help="fewer epochs, places and sizes")
    arguments = parser.parse_args()
    places, epochs = [2, 4, 8, 16, 32, 64], 10
    grid = {
        "samples": [1024, 4096, 16384, 65536],
        "classes": [10, 100, 1000, 4000],
        "d": [128, 256, 512, 1024],
    }
    if arguments.short:
        places, epochs, arguments.repeats = [2, 64], 5, 3
        grid = {name: values[1:3] for name, values in grid.items()}
    sizes = [{**SIZES, name: value} for name, values in grid.items() for value in values]
    sizes = [dict(pairs) for pairs in dict.fromkeys(tuple(x.items()) for x in sizes)]
    # A new process for each point: the peak of memory is that of the process.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        points = [pool.submit(point, x, epochs, 3).result() for x in sizes]
    print_table(
        ["samples", "classes", "d", "s", "peak (MiB)"],
        [[*(p[n] for n in SIZES), p["seconds"], round(p["peak_mib"])] for p in points],
    )
    config = TrainConfig(classification=Schedule(epochs, 5e-4))
    rows = along_stream(places, config, arguments.repeats, arguments.short)
    head = ["method", "rank rule", "task", "rank", "s", f"x task {places[0]}; median [95 %]"]
    print_table(
        [*head, "carried (MiB)", "peak (MiB)"],
        [
            [
                *(r[name] for name in ("method", "rule", "task", "rank", "seconds")),
                *(shown(r), r["carried_mib"], round(r["peak_mib"])),
            ]
            for r in rows
        ],
    )
    claims = [
        claim(
            f"task {r['task']} / task {places[0]}, {r['method']}, rank {r['rule']}",
            r["undisturbed"],
            most=1.1,
        )
        for r in rows
        if r["task"] == places[-1]
    ]
    print_json("scaling", epochs=epochs, stream=rows, sizes=points, claims=claims)


if __name__ == "__main__":
    main()
