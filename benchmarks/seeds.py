"""How should seeds run side by side: in one vectorised program, in one program after another?

    python benchmarks/seeds.py
    python benchmarks/seeds.py --seeds 1,2,5,10 --repeats 7

Learns one task (10 epochs of 8 minibatches of 256 pairs, d = 512) with several seeds at once by
``vmap`` and by ``map`` (one after the other inside one program), and by ``loop`` (one program per
seed). The three take turns in one process after a warm-up; medians are compared with `loop`.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import TrainConfig, make_method
from hmcl_jax.continual.fit import Fitter
from hmcl_jax.continual.method import TaskInfo
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.head import identity_head

AXES = ("vmap", "map", "loop")


def learner(axis: str, kind: str, seeds: int, method_name: str) -> object:
    """A function that learns the task once and waits for it."""
    store = synthetic_stream(
        tasks=1,
        classes=100,
        dimension=512,
        train=2048,
        test=8,
        retrieval_every=int(kind == "retrieval"),
    )
    task = store.tasks[0]
    config = TrainConfig(batch=256, seed_axis=axis)
    method = make_method(method_name)
    info = TaskInfo(kind, task.general, task.specific, False, store.K, store.tau)
    head = jnp.repeat(identity_head(512)[None], seeds, axis=0)
    params = {"image": head, "text": head}
    state = method.init(params)
    opt_state = jax.vmap(method.transform(config, info).init)(params)
    fitter = Fitter(method, config)

    def learn() -> None:
        found = fitter(params, opt_state, state, task, info, list(range(seeds)), 0)
        jax.block_until_ready(found)

    return learn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", default="1,5", help="numbers of seeds, separated by commas")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--method", default="hmcl_ca")
    arguments = parser.parse_args()
    rows = []
    for kind in ("classification", "retrieval"):
        for seeds in (int(n) for n in arguments.seeds.split(",")):
            learners = {axis: learner(axis, kind, seeds, arguments.method) for axis in AXES}
            times: dict[str, list[float]] = {axis: [] for axis in AXES}
            for repeat in range(arguments.repeats + 1):
                for axis, learn in learners.items():
                    start = time.perf_counter()
                    learn()
                    if repeat:  # the first is the warm-up
                        times[axis].append(time.perf_counter() - start)
            medians = {axis: float(np.median(values)) for axis, values in times.items()}
            rows.append({"kind": kind, "seeds": seeds, "seconds": medians})
            shown = "  ".join(
                f"{axis} {medians[axis]:6.2f} s ({medians[axis] / medians['loop']:.2f} x loop)"
                for axis in AXES
            )
            print(f"{kind:15s} {seeds:3d} seeds  {shown}", flush=True)
    about = {"jax": jax.__version__, "backend": jax.default_backend(), "method": arguments.method}
    print(json.dumps({**about, "rows": rows}))


if __name__ == "__main__":
    main()
