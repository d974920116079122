"""Stores in the layout of the paper's streams (tasks, classes, orders), with made-up points."""

import dataclasses

from hmcl_jax.data.store import write_store
from hmcl_jax.data.suites import ORDERS, SUITES
from hmcl_jax.data.synthetic import synthetic_stream


def hmcl16_store(path, backbone, scale=0.01, dim=512, most_classes=1000, seed=0, only=None):
    """The 16 tasks of the paper, or `only` some, in its three orders.

    Pictures are a share of the paper's, `scale`; classes are limited for haste.
    """
    sizes = (scale, dim, most_classes, seed)
    tasks = [_task(entry.name, entry, sizes) for entry in SUITES["hmcl16"]]
    return _write(path, backbone, tasks, ORDERS["hmcl16"], only)


def modalities_store(path, backbone, scale=0.01, dim=512, most_classes=1000, seed=1, only=None):
    """The stream with an audio and a thermal task, without ImageNet; see :func:`hmcl16_store`."""
    entries = {entry.name: entry for entry in SUITES["hmcl16"]}
    sizes = (scale, dim, most_classes, seed)
    tasks = [_task(name, entry, sizes) for name, entry in entries.items() if name != "imagenet"]
    tasks.insert(4, _task("sounds", entries["coco"], sizes, "audio"))
    tasks.insert(9, _task("heat", entries["coco"], sizes, "thermal"))
    return _write(path, f"{backbone}-modalities", tasks, {}, only)


def _task(name, entry, sizes, specific="image"):
    scale, dim, most_classes, seed = sizes
    stream = synthetic_stream(
        tasks=1,
        classes=min(entry.classes or 8, most_classes),
        dimension=dim,
        train=max(1, round(entry.train * scale)),
        test=max(1, round(entry.test * scale)),
        retrieval_every=int(not entry.classes),
        seed=seed,
    )
    return dataclasses.replace(stream.tasks[0], name=name, specific=specific)


def _write(path, name, tasks, orders, only):
    tasks = [task for task in tasks if only is None or task.name in only]
    names = [task.name for task in tasks]
    orders = {key: [n for n in order if n in names] for key, order in orders.items()}
    write_store(path, tasks, name=name, backbone=name, K=10.0, tau=0.07, orders=orders)
    return path
