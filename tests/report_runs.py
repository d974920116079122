"""Small run folders with results, without training, also with names that mean harm."""

import dataclasses

import numpy as np
from saved_runs import heads_of, save_run

from hmcl_jax.continual.health import Stopped
from hmcl_jax.continual.run import StreamResult
from hmcl_jax.data.store import Store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import write_results
from hmcl_jax.report.analyse import analyse
from hmcl_jax.report.tables import RECALL_MEASURES

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
METHODS = ("vanilla", "hmcl_ca", HOSTILE[2])


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


def hostile_store(rng, names=HOSTILE[1:]) -> Store:
    """A stream whose tasks, classes and categories have hostile names."""
    plain = small_store(classes=len(HOSTILE), depth=2)
    tasks = []
    for task, name in zip(plain.tasks, names, strict=False):
        known = dict(zip(task.classes, HOSTILE, strict=False))
        tree = tuple(tuple(known.get(n, f"{n} <b>&") for n in row) for row in task.tree)
        classes = tuple(known[c] for c in task.classes)
        tasks.append(dataclasses.replace(task, name=name, classes=classes, tree=tree))
    orders = {"canonical": tuple(task.name for task in tasks)}
    named = dataclasses.replace(plain, name=HOSTILE[2], tasks=tuple(tasks), orders=orders)
    return with_tree_points(named, rng)


def made_result(store: Store, method: str, seeds, rng, epochs=3) -> StreamResult:
    count = len(store)
    scores = np.where(
        np.tri(count, dtype=bool), rng.uniform(0.2, 0.9, (len(seeds), count, count)), np.nan
    )
    names = {"retrieval": RECALL_MEASURES, "classification": ["score"]}
    details = [
        [{n: rng.uniform(size=len(seeds)).tolist() for n in names[task.kind]} for task in seen]
        for seen in (store.tasks[: t + 1] for t in range(count))
    ]
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


def make_runs(out, store: Store, methods, rng, seeds=SEEDS, stopped=None):
    """A folder with runs; `stopped` has by method the places of seeds that stopped at the end."""
    last = store.tasks[-1].name
    results = {}
    for method in methods:
        places = (stopped or {}).get(method, ())
        stops = [Stopped(i, seeds[i], last, 2, "gradient", ("image",)) for i in places]
        heads = [heads_of(store, seeds, n, rng) for n in range(1, len(store) + 1)]
        save_run(out, store, method, seeds, heads, stops)
        made = made_result(store, method, seeds, rng)
        made.scores[list(places), -1] = np.nan
        results[method] = dataclasses.replace(made, stopped=tuple(stops))
    write_results(out, results, {"experiment": {"stream": "nowhere"}, "wall_seconds": 1.5})
    return out


def hostile_analysis(folder, methods=METHODS, names=HOSTILE[1:], seeds=SEEDS):
    """An analysis of a stream and methods with hostile names."""
    rng = np.random.default_rng(0)
    store = hostile_store(rng, names)
    return analyse([make_runs(folder, store, methods, rng, seeds)], store, pictures=4)
