"""How should seeds run side by side: in one vectorised program, in one program after another?

    python benchmarks/seeds.py
    python benchmarks/seeds.py --seeds 1,5 --repeats 7
    python benchmarks/seeds.py --short

Learns one task (10 epochs of 8 minibatches of 256 pairs, d = 512) with several seeds at once by
``vmap``, by ``map`` (one after the other inside one program) and by ``loop`` (one call of a program
per seed), and by ``runs``: one seed after the other, each a run of its own. All take turns in one
process after a warm-up; what is at once is compared with ``runs``.

Last, whole commands: `hmcl run` on the embedded stream with five seeds at once and
with one after the other, compiled programs kept from a first start.
"""

import argparse
import tempfile
from collections.abc import Callable

import jax

from hmcl_jax.continual import Carried, Setting, TrainConfig, learn_task, make_method
from hmcl_jax.continual.programs import Programs
from hmcl_jax.data.synthetic import synthetic_stream
from timing import claim, interleave, median, print_json, print_table, ratio, shown, time_run

AXES = ("vmap", "map", "loop", "runs")


def learner(axis: str, kind: str, seeds: int, method_name: str) -> Callable[[], object]:
    """A function that learns the task once."""
    store = synthetic_stream(
        tasks=1,
        classes=100,
        dimension=512,
        train=2048,
        test=8,
        retrieval_every=int(kind == "retrieval"),
    )
    config = TrainConfig(batch=256, seed_axis="auto" if axis == "runs" else axis)
    method = make_method(method_name)
    programs = Programs(config)
    at_once = 1 if axis == "runs" else seeds
    settings = [
        Setting(store.K, store.tau, tuple(range(first, first + at_once)), config)
        for first in range(0, seeds, at_once)
    ]
    return lambda: [
        learn_task(method, Carried(), [(store.tasks[0], 0)], setting, programs)
        for setting in settings
    ]


def whole_runs(method: str, seeds: list[int]) -> dict[str, float]:
    """Seconds of the command for all seeds at once, and of one command after the other."""
    with tempfile.TemporaryDirectory() as folder:

        def run(name: str, some: list[int]) -> float:
            words = ["--methods", method, "--seeds", ",".join(map(str, some))]
            return time_run(words, f"{folder}/caches", f"{folder}/{name}")[0]

        run("first", seeds)  # compiles; the others load its programs
        run("first-single", seeds[:1])
        at_once = run("at-once", seeds)
        return {"at once": at_once, "one by one": sum(run(str(s), [s]) for s in seeds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="1,2,5,10", help="numbers of seeds, with commas")
    parser.add_argument("--kinds", default="classification,retrieval", help="of the task")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--method", default="hmcl_ca")
    parser.add_argument("--short", action="store_true", help="5 seeds, classification, 2 repeats")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.seeds, arguments.kinds, arguments.repeats = "5", "classification", 2
    rows = []
    for kind in arguments.kinds.split(","):
        for seeds in (int(n) for n in arguments.seeds.split(",")):
            learners = {axis: learner(axis, kind, seeds, arguments.method) for axis in AXES}
            times = interleave(learners, arguments.repeats)
            seconds = {axis: median(values) for axis, values in times.items()}
            ratios = {axis: ratio(times, axis, "runs") for axis in AXES[:-1]}
            rows.append({"kind": kind, "seeds": seeds, "seconds": seconds, "x_runs": ratios})
    header = [*(f"{axis} (s)" for axis in AXES), *(f"{axis} x runs" for axis in AXES[:-1])]
    print_table(
        ["kind", "seeds", *header],
        [
            [r["kind"], r["seeds"], *r["seconds"].values(), *map(shown, r["x_runs"].values())]
            for r in rows
        ],
    )
    whole = {} if arguments.short else whole_runs(arguments.method, [42, 123, 456, 789, 1024])
    if whole:
        print_table(["five whole runs", "s"], [list(row) for row in whole.items()])
    # What seed_axis="auto" chooses.
    chosen = "map" if jax.default_backend() == "cpu" else "vmap"
    claims = [
        claim(f"5 seeds at once ({chosen}) / one after the other, {r['kind']}", value, most=1)
        for r in rows
        if r["seeds"] == 5
        for value in [r["x_runs"][chosen]["undisturbed"]]
    ]
    if whole:
        quotient = whole["at once"] / whole["one by one"]
        claims.append(claim("whole runs: at once / one by one", quotient, most=1))
    print_json("seeds", method=arguments.method, rows=rows, whole=whole, claims=claims)


if __name__ == "__main__":
    main()
