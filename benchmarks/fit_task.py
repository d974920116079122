"""What does HMCL add to the time of learning a task?

    python benchmarks/fit_task.py
    python benchmarks/fit_task.py --minibatches 1252 --repeats 5     # the whole stage; 2.6 GB
    python benchmarks/fit_task.py --short

One epoch with one optimizer step, in the shape of the paper's ImageNet stage: d = 512, 1,000
classes, minibatches of 1024, two modalities with 32 protected directions each. The real stage has
1,252 minibatches per step; fewer make the correction weigh more. All methods take turns, vanilla
twice: the ratio of the two says how large the noise is. A correction is small beside the noise, so
it is also timed alone, and so is what a task begins with.

Then the smallest task of the embedded stream, with the settings of ``make stream`` and with all
that a task begins and ends with: there the correction weighs most.
"""

import argparse
import functools
import tomllib
from pathlib import Path

import jax
import optax

import hmcl_jax
from hmcl_jax.continual import Schedule, TrainConfig, make_method
from hmcl_jax.transform import HmclProjectState, TaskAnchorState, hmcl_project, task_anchor
from stage import Stage, make_task
from timing import claim, interleave, median, per_call, print_json, print_table, ratio, shown

POCKET = Path(__file__).parents[1] / "experiments" / "configs" / "pocket.toml"
DIM, CLASSES, BATCH, RANK = 512, 1000, 1024, 32
LIMITS = {"hmcl_mr": 1.01, "hmcl_ca": 1.02, "hmcl_rotation": 1.03}
SMALL_LIMITS = {"hmcl_mr": 1.15, "hmcl_ca": 1.15, "hmcl_rotation": 1.25}


def correction(variant: str, opt_state: object, params: dict) -> object:
    """The projection and the anchor alone, of one seed, without AdamW."""
    tx = optax.chain(hmcl_project(variant), task_anchor(0.05))
    nodes = jax.tree.leaves(
        opt_state, is_leaf=lambda x: isinstance(x, HmclProjectState | TaskAnchorState)
    )
    ours = [x for x in nodes if isinstance(x, HmclProjectState | TaskAnchorState)]
    state = jax.tree.map(lambda x: x[0], tuple(ours))
    one = {m: W[0] for m, W in params.items()}
    delta = {m: 1e-4 * jax.random.normal(jax.random.key(0), W.shape) for m, W in one.items()}
    update = jax.jit(tx.update)
    return lambda: update(delta, state, one)


def small_tasks(repeats: int) -> tuple[dict, list]:
    """Seconds of learning the smallest task of the embedded stream, as ratios to vanilla's."""
    config = tomllib.loads(POCKET.read_text("utf8"))
    store = hmcl_jax.load_pocket()
    first, second = store.tasks[:2]
    task = min(store, key=lambda task: task.size("train"))
    sides = {}
    methods = {name: config["methods"][name] for name in ("vanilla", *SMALL_LIMITS)}
    # The defaults cost more: an anchor, and a basis of its own for each modality. No bound is set.
    methods |= {f"{name}, defaults": {} for name in SMALL_LIMITS}
    for side, settings in methods.items():
        method = make_method(side.split(",")[0], settings)
        stage = Stage(method, TrainConfig(**config["train"]), store.dimension, seeds=5)
        sides[side] = functools.partial(stage.seen(first).seen(second).learn, task)
    times = interleave(sides, repeats)
    found = {
        side: {"seconds": median(times[side]), **ratio(times, side, "vanilla")} for side in sides
    }
    print_table(
        [task.name, "s", "x vanilla; median [95 %]"],
        [[side, found[side]["seconds"], shown(found[side])] for side in sides],
    )
    claims = [
        claim(f"{task.name}: {side} / vanilla", found[side]["undisturbed"], most=most)
        for side, most in SMALL_LIMITS.items()
    ]
    return found, claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minibatches", type=int, default=64, help="of an epoch; really 1252")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--short", action="store_true", help="8 minibatches, 6 repeats")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.minibatches, arguments.repeats = 8, 6
    config = TrainConfig(classification=Schedule(1, 5e-4), batch=BATCH, device_memory=float(2**14))
    task = make_task(arguments.minibatches * BATCH, CLASSES, DIM)
    old = make_task(8 * BATCH, CLASSES, DIM, seed=1)
    fits, begins, corrections, ranks = {}, {}, {}, {}
    for side in ("vanilla", "vanilla again", *LIMITS):
        name = side.split()[0]
        # A share this small is reached by the first direction: the rank is min_rank.
        settings = {} if name == "vanilla" else {"variance": 1e-6, "min_rank": RANK}
        stage = Stage(make_method(name, settings), config, DIM).seen(old)
        opt_state = stage.begin(task)
        fits[side] = lambda stage=stage, opt_state=opt_state: stage.fit(task, opt_state)
        if name != "vanilla":
            begins[side] = lambda stage=stage: stage.begin(task)
            variant = name.removeprefix("hmcl_")
            corrections[side] = correction(variant, opt_state, stage.carried.heads)
            ranks[side] = optax.tree.get(opt_state, "protection").rank["image"].item()
    assert set(ranks.values()) == {RANK}, ranks
    alone = per_call(corrections, max(10, arguments.repeats))
    begun = interleave(begins, 3)
    epochs = interleave(fits, arguments.repeats)
    found, rows, claims = {}, [], []
    base = median(epochs["vanilla"])
    for side in fits:
        found[side] = {"epoch_seconds": median(epochs[side]), **ratio(epochs, side, "vanilla")}
        cells = ["", "", ""]
        if side in alone:
            seconds, start = median(alone[side]), median(begun[side])
            found[side] |= {"correction_seconds": seconds, "share": seconds / base}
            found[side] |= {"begin_task_seconds": start}
            cells = [1e3 * seconds, f"{100 * seconds / base:.3f} %", 1e3 * start]
        rows.append([side, median(epochs[side]), shown(found[side], 4), *cells])
    header = ["side", "epoch (s)", "x vanilla; median [95 %]", "correction (ms)", "of an epoch"]
    print_table([*header, "begin_task (ms)"], rows)
    for side, most in LIMITS.items():
        claims.append(claim(f"{side} / vanilla", found[side]["undisturbed"], most=most))
        # What the share of the correction, measured alone, makes of it.
        share = 1 + found[side]["share"]
        claims.append(claim(f"1 + share of the correction of {side}", share, most=most))
    shape = {"d": DIM, "classes": CLASSES, "batch": BATCH, "rank": RANK}
    shape |= {"minibatches": arguments.minibatches, "repeats": arguments.repeats}
    small, small_claims = small_tasks(arguments.repeats)
    claims += small_claims
    print_json("fit_task", shape=shape, sides=found, small_tasks=small, claims=claims)


if __name__ == "__main__":
    main()
