"""How should seeds run side by side: in one vectorised program, in one program after another?

    python benchmarks/seeds.py
    python benchmarks/seeds.py --seeds 1,5 --repeats 7
    python benchmarks/seeds.py --short

Learns one task (10 epochs of 8 minibatches of 256 pairs, d = 512) with several seeds at once by
``vmap``, by ``map`` (one after the other inside one program) and by ``loop`` (one call of a program
per seed), and by ``runs``: one seed after the other, each a run of its own. All take turns in one
process after a warm-up; what is at once is compared with ``runs``.
"""

import argparse
from collections.abc import Callable

import jax
import jax.numpy as jnp
from timing import claim, interleave, median, print_json, print_table, ratio, shown

from hmcl_jax.continual import TrainConfig, make_method
from hmcl_jax.continual.fit import Fitter
from hmcl_jax.continual.method import TaskInfo
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.head import identity_head

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
    task = store.tasks[0]
    config = TrainConfig(batch=256, seed_axis="auto" if axis == "runs" else axis)
    method = make_method(method_name)
    info = TaskInfo(kind, task.general, task.specific, False, store.K, store.tau)
    at_once = 1 if axis == "runs" else seeds
    head = jnp.repeat(identity_head(512)[None], at_once, axis=0)
    params = {"image": head, "text": head}
    state = method.init(params)
    opt_state = jax.vmap(method.transform(config, info).init)(params)
    fitter = Fitter(method, config)

    chosen = [list(range(first, first + at_once)) for first in range(0, seeds, at_once)]
    return lambda: [fitter(params, opt_state, state, task, info, some, 0) for some in chosen]


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
    print_table(
        [
            "kind",
            "seeds",
            *(f"{axis} (s)" for axis in AXES),
            *(f"{axis} x runs" for axis in AXES[:-1]),
        ],
        [
            [r["kind"], r["seeds"], *r["seconds"].values(), *map(shown, r["x_runs"].values())]
            for r in rows
        ],
    )
    chosen = "map" if jax.default_backend() == "cpu" else "vmap"
    claims = [
        claim(f"5 seeds at once ({chosen}) / one after the other, {r['kind']}", value, most=1)
        for r in rows
        if r["seeds"] == 5
        for value in [r["x_runs"][chosen]["undisturbed"]]
    ]
    print_json("seeds", method=arguments.method, rows=rows, claims=claims)


if __name__ == "__main__":
    main()
