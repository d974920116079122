"""Small run folders with results, without training, also with names that mean harm."""

import dataclasses

import numpy as np
from saved_runs import heads_of, save_run

from hmcl_jax.continual.health import Stopped
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.data.store import Store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import write_results

SEEDS = (3, 5)
ATTACK = "window.attacked=1"
HOSTILE = (
    "quotes ' and \" and `",
    f"<script>{ATTACK}</script>",
    f'<img src=x onerror="{ATTACK}">',
    f"</script><script>{ATTACK}</script>",
    f"\"><svg onload='{ATTACK}'>",
    "&amp; &lt; & ]]> -->",
    "\U0001f600 \U0001f43c emoji",
    "\u05e9\u05dc\u05d5\u05dd \u202eover",
    "two\nlines and a\ttab",
    "$x^{2}$ $ \\frac",
    "long" * 40,
    f"javascript:{ATTACK} \ud800 \x00",
)


def small_store(**more) -> Store:
    settings = {"tasks": 4, "classes": 6, "dimension": 8, "train": 20, "test": 24}
    return synthetic_stream(**{**settings, "retrieval_every": 2, **more})


def with_tree_points(store: Store, rng) -> Store:
    """Points for all names of the class trees, and a picture for some samples."""
    tasks = []
    for task in store:
        arrays = dict(task.arrays)
        if task.tree:
            points = rng.normal(size=(len(task.tree_names), store.dimension))
            arrays["tree_features"] = points.astype(np.float32)
        tasks.append(dataclasses.replace(task, arrays=arrays))
    return dataclasses.replace(store, tasks=tuple(tasks))


def hostile_store(rng) -> Store:
    """A stream whose tasks, classes and categories have hostile names."""
    store = with_tree_points(small_store(classes=len(HOSTILE), depth=2), rng)
    tasks = []
    for number, task in enumerate(store.tasks):
        known = dict(zip(task.classes, HOSTILE, strict=False))
        tree = tuple((known.get(c, c), known.get(p, f"{p} <b>&")) for c, p in task.tree)
        tree = tuple((c if c in HOSTILE else f"{c} <b>&", p) for c, p in tree)
        classes = tuple(known[c] for c in task.classes)
        arrays = dict(task.arrays)
        made = dataclasses.replace(task, name=HOSTILE[number + 1], classes=classes, tree=tree)
        if tree:
            points = rng.normal(size=(len(made.tree_names), store.dimension))
            arrays["tree_features"] = points.astype(np.float32)
        tasks.append(dataclasses.replace(made, arrays=arrays))
    names = tuple(task.name for task in tasks)
    orders = {"canonical": names}
    return dataclasses.replace(store, name=HOSTILE[2], tasks=tuple(tasks), orders=orders)


def made_result(store: Store, method: str, seeds, rng, epochs=3) -> StreamResult:
    count = len(store)
    scores = np.where(
        np.tri(count, dtype=bool), rng.uniform(0.2, 0.9, (len(seeds), count, count)), np.nan
    )
    details = []
    for t in range(count):
        row = []
        for i in range(t + 1):
            measures = {"score": scores[:, t, i].tolist()}
            if store.tasks[i].kind == "retrieval":
                for way in ("general_to_specific", "specific_to_general"):
                    for k in (1, 5, 10):
                        measures[f"{way}_r{k}"] = rng.uniform(0, 1, len(seeds)).tolist()
            row.append(measures)
        details.append(row)
    return StreamResult(
        method=method,
        settings={"beta": 0.1, "note": HOSTILE[2]},
        tasks=tuple(task.name for task in store),
        kinds=tuple(task.kind for task in store),
        seeds=tuple(seeds),
        scores=scores,
        details=details,
        losses=rng.uniform(1, 2, (count, len(seeds), epochs)).tolist(),
        seconds=[{"learn": 1.5, "evaluate": 0.5}] * count,
        logs=[{}] * count,
        heads={},
        programs=1,
    )


def stop(store: Store, place: int, seeds=SEEDS) -> Stopped:
    """What is said of a seed that was stopped on the last task."""
    return Stopped(place, seeds[place], store.tasks[-1].name, 2, "gradient", ("image",))


def make_runs(out, store: Store, methods, rng, seeds=SEEDS, finished=None, stopped=None):
    """A folder with runs of some methods over a store; `finished` tasks, all by default.

    `stopped` says by method which places of seeds were stopped on the last task.
    """
    stops = {
        m: [stop(store, place, seeds) for place in (stopped or {}).get(m, ())] for m in methods
    }
    for method in methods:
        steps = range(1, (finished or len(store)) + 1)
        heads = [heads_of(store, seeds, n, rng) for n in steps]
        save_run(out, store, method, seeds, heads, stops[method])
    if finished in (None, len(store)):
        results = {}
        for method in methods:
            made = made_result(store, method, seeds, rng)
            for one in stops[method]:
                made.scores[one.seed_index, -1] = np.nan
            results[method] = dataclasses.replace(made, stopped=tuple(stops[method]))
        write_results(out, results, {"experiment": {"stream": "nowhere"}, "wall_seconds": 1.5})
    return out
