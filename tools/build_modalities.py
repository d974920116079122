"""Builds the two tasks with sounds and with heat pictures that extend pocket16.

    pip install -e '.[pocket-build]'
    python tools/build_modalities.py --cache CACHE --select
    python tools/build_modalities.py --cache CACHE --out pocket_modalities.zip

A maintainer's tool, like build_pocket.py, whose cache it shares. It opens the text tower of
pocket16 in the package, checks that texts are where the shipped store has them, and trains a tower
for each new modality against these texts. With --select it compares settings of the new towers on
names of the base that are held out; the number of steps was chosen so, on both modalities together.
The term that keeps the new radii near those of pictures was added after towers without it had let
them shrink.
"""

import argparse
import dataclasses
import functools
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from build_pocket import captioned, thumbnails, verify
from hmcl_jax import identity_heads, load_pocket
from hmcl_jax.data.pocket_towers import DIM
from hmcl_jax.data.store import Store, Task, write_store
from pocket import encoders, evaluate, extension, modalities
from pocket.sources import credits, fetch
from pocket.texttower import TextTower

SHIPPED = Path(__file__).parent.parent / "hmcl_jax" / "data" / "pocket_modalities.zip"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for downloads and features"
    )
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, help="the store to write, new")
    action.add_argument("--select", action="store_true", help="compare settings of the new towers")
    parser.add_argument("--verify", action="store_true", help="compare with the shipped store")
    arguments = parser.parse_args()
    if arguments.out and arguments.out.exists():
        parser.error(f"--out {arguments.out} exists already")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    cache = arguments.cache.resolve()
    texts, pocket = TextTower(cache), load_pocket()
    texts.check(pocket)
    encoder = encoders.PictureEncoder(cache, fetch("lite0", cache), fetch("lite_code", cache))
    planned = modalities.plan_extensions(cache, encoder, texts.chains)
    found = {name: modalities.Encoding(name, plan, encoder) for name, plan in planned.items()}
    if arguments.select:
        select(found, texts, pocket)
        return
    fingerprint = build(found, texts, pocket, arguments.out)
    print(f"wrote {arguments.out}, fingerprint {fingerprint}")
    if arguments.verify:
        verify(SHIPPED, fingerprint)


def select(found: dict[str, modalities.Encoding], texts: TextTower, pocket: Store) -> None:
    """Trains every candidate on four fifths of the names and scores it on the others."""
    start = extension.Start.of(texts.towers, pocket)
    for name, encoding in found.items():
        pairs = encoding.pairs(texts)
        held = pairs.held_out()
        for settings in extension.CANDIDATES:
            config = dataclasses.replace(encoding.extension.config, **settings)
            tower = extension.Tower(config, pairs.rows(~held), start)
            score = tower.score(pairs.rows(held))
            print(f"{name} {settings}: R@5 {score:.3f} of {held.sum()} held out", flush=True)


def build(found: dict[str, modalities.Encoding], texts: TextTower, pocket: Store, out: Path) -> str:
    """Trains the new towers on their whole bases, scores the tasks and writes the store."""
    tasks, report = {}, {}
    start = extension.Start.of(texts.towers, pocket)
    for name, encoding in found.items():
        config = encoding.extension.config
        pairs = encoding.pairs(texts)
        tower = extension.Tower(config, pairs, start)
        tasks[name] = make_task(name, encoding, tower, texts)
        report[name] = {
            "pairs of the base": len(pairs.inputs),
            "left out": encoding.left_out,
            "tower": dataclasses.asdict(config),
        }
    scored = []
    for name, task in tasks.items():
        heads = identity_heads([task.general, task.specific], DIM)
        zero = evaluate.score(task, heads, pocket.K)
        alone = evaluate.single_task(task, pocket.K, pocket.tau)
        print(f"{name}: chance {task.chance:.3f}, zero-shot {zero:.3f}, single task {alone:.3f}")
        scores = {"zero_shot": round(zero, 4), "single_task": round(alone, 4)}
        scored.append(dataclasses.replace(task, scores=scores))
    for key, value in report.items():
        print(f"{key}: {value}")
    return write_store(
        out,
        scored,
        name="pocket-modalities",
        backbone="efficientnet-lite0 + minilm-l6, four towers into H^512",
        K=pocket.K,
        tau=pocket.tau,
        provenance={
            "texts": f"in the space of {pocket.name}, {pocket.fingerprint}",
            "thermal": "a rendering of pictures (tools/pocket/thermal.py), not a sensor's",
            **{key: json.dumps(value) for key, value in report.items()},
        },
    )


def make_task(
    name: str, encoding: modalities.Encoding, tower: extension.Tower, texts: TextTower
) -> Task:
    """A retrieval task of the store in a new modality."""
    points, plan = encoding.points(tower, texts), encoding.extension.plan
    arrays = {}
    for part, chosen in (("train", encoding.train), ("test", encoding.test)):
        rows = np.flatnonzero(chosen)
        captions = [encoding.samples[i].texts[-1] for i in rows]
        place = functools.partial(texts, prompts=plan.prompts)
        arrays |= captioned(part, points[rows], captions, place)
    arrays |= thumbnails([encoding.samples[i] for i in np.flatnonzero(encoding.test)])
    task = Task(
        name,
        "retrieval",
        "text",
        encoding.extension.modality,
        arrays,
        tree=plan.tree,
        provenance={
            **credits(plan.sources),
            "packages of the tower's base": credits(encoding.extension.sources)["packages"],
        },
    )
    if plan.tree:
        arrays["tree_features"] = texts(list(task.tree_names))
    return task


if __name__ == "__main__":
    main()
