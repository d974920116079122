"""The pocket backbone: base pairs, the two trained towers, and points for pictures and texts."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np

from hmcl_jax.data.pocket_towers import PocketTowers, mix_class_names
from hmcl_jax.evaluation.frozen import PairMeasures, measure_pairs
from pocket import encoders, evaluate, towers
from pocket.pictures import Picture
from pocket.sources import fetch
from pocket.stream import TaskPlan
from pocket.vocabulary import WordNet

Encoded = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Base:
    """Everything that the towers are trained on.

    Attributes:
      pictures: per picture ``features`` and ``logits`` of the encoder, ``mixtures`` of ConSE,
        ``variants`` (several text ids), ``name`` (text id), ``category`` and ``top``, the nearest
        and the most general category (text id or -1), and ``collection`` (index).
      collections: their names.
      texts: all texts.
      embeddings: of the texts.
      chains: rows (noun, ancestor, levels, whether the noun has nouns below it) of WordNet, the
        first two as text ids.
      copies: base pictures left out because a task has them, by collection.
      mean: of the picture features.
      spread: of the picture features.
      class_names: embeddings of the ImageNet classes, for ConSE.
    """

    pictures: dict[str, np.ndarray]
    collections: tuple[str, ...]
    texts: tuple[str, ...]
    embeddings: np.ndarray
    chains: np.ndarray
    copies: dict[str, int]
    mean: np.ndarray
    spread: np.ndarray
    class_names: np.ndarray

    def part(self, held_out: bool) -> "Base":
        """The pictures and text pairs held out for choosing settings (a tenth), or the others.

        By name: no text of a held-out picture names a picture of the other part.
        """

        def chosen(text: int) -> bool:
            return hashlib.sha256(self.texts[text].encode()).digest()[0] % 10 == 0

        rows = np.array([chosen(i) for i in self.pictures["name"]]) == held_out
        chains = np.array([chosen(i) for i in range(len(self.texts))])[self.chains[:, 0]]
        pictures = {key: values[rows] for key, values in self.pictures.items()}
        return dataclasses.replace(self, pictures=pictures, chains=self.chains[chains == held_out])


def prepare(
    cache: Path,
    text: encoders.TextEncoder,
    plans: dict[str, TaskPlan],
    encoded: dict[str, Encoded],
    base: dict[str, list[Picture]],
    base_encoded: dict[str, Encoded],
) -> Base:
    """Base pairs without pictures or near-duplicates of the tasks, and WordNet's text pairs."""
    wordnet = WordNet(fetch("wordnet", cache))
    chains = encoders.imagenet_chains(fetch("imagenet_names", cache), wordnet)
    class_names = np.float16(encoders.imagenet_embeddings(text, chains)).astype(np.float32)
    everything = np.concatenate([e["features"] for e in base_encoded.values()])
    mean, spread = everything.mean(0), everything.std(0) + 1e-6
    seen = {h for e in encoded.values() for h in e["hashes"]}
    task_features = np.concatenate([e["features"] for e in encoded.values()])
    ids: dict[str, int] = {}

    def identify(text: str) -> int:
        return ids.setdefault(text, len(ids))

    rows: dict[str, list] = {
        key: []
        for key in ("features", "logits", "variants", "name", "category", "top", "collection")
    }
    copies = {}
    for number, (collection, found) in enumerate(base.items()):
        e = base_encoded[collection]
        near = evaluate.nearest_cosine(e["features"], task_features) > evaluate.NEAR_DUPLICATE
        ok = ~(near | np.array([h in seen for h in e["hashes"]]))
        copies[collection] = int((~ok).sum())
        for index in np.flatnonzero(ok):
            picture = found[e["kept"][index]]
            words, category = picture.texts, picture.category
            if not words:  # a photograph without words: what the encoder itself sees in it
                chain = chains[int(e["logits"][index].argmax())]
                words, category = (*chain[0], chain[1][0]), tuple(names[0] for names in chain[1:])
            texts = [identify(t) for t in words]
            rows["variants"].append((texts * 3)[:3])
            rows["name"].append(texts[0])
            rows["category"].append(identify(category[0]) if category else -1)
            rows["top"].append(identify(category[-1]) if len(category) > 1 else -1)
            rows["collection"].append(number)
        rows["features"].append(e["features"][ok])
        rows["logits"].append(e["logits"][ok])
    leaves, nodes = evaluated_names(plans)
    hypernyms = [
        (identify(noun), identify(ancestor), levels, inner)
        for noun, ancestor, levels, inner in wordnet.chains(leaves, nodes)
    ]
    stacked = {key: np.concatenate(rows.pop(key)) for key in ("features", "logits")}
    return Base(
        pictures={
            **stacked,
            "mixtures": np.asarray(mix_class_names(stacked["logits"], class_names)),
            **{key: np.array(values) for key, values in rows.items()},
        },
        collections=tuple(base),
        texts=tuple(ids),
        embeddings=text(list(ids)),
        chains=np.array(hypernyms),
        copies=copies,
        mean=mean,
        spread=spread,
        class_names=class_names,
    )


def evaluated_names(plans: dict[str, TaskPlan]) -> tuple[set[str], set[str]]:
    """Classes and leaves of the tasks' trees, and all nodes of these trees, in lower case."""
    nodes = {name.lower() for plan in plans.values() for row in plan.tree for name in row}
    inner = {parent.lower() for plan in plans.values() for _, parent in plan.tree}
    classes = {name.lower() for plan in plans.values() for name in plan.classes}
    return (nodes - inner) | classes, nodes


class Backbone:
    """Two towers, trained on a base.

    Attributes:
      base: what they were trained on.
      text: the encoder of texts.
      config: settings of the training.
      towers: as the package holds them.
      tau: the learned temperature.
    """

    def __init__(
        self, base: Base, text: encoders.TextEncoder, config: towers.TowerConfig | None = None
    ) -> None:
        self.base, self.text = base, text
        self.config = config or towers.TowerConfig()
        standard = np.float32((base.pictures["features"] - base.mean) / base.spread)
        params = towers.train(
            self.config, base.pictures | {"features": standard}, base.embeddings, base.chains
        )
        self.tau = towers.temperature(params)
        kept = {side: params[side] for side in ("text", "picture")}
        prepared = (base.mean, base.spread, base.class_names)
        self.towers = towers.rounded(
            PocketTowers(kept, *(np.float32(x) for x in prepared), K=self.config.K)
        )

    def pictures(self, e: Encoded) -> np.ndarray:
        """Points of encoded pictures, float16."""
        return np.asarray(self.towers.pictures(e["features"], e["logits"])).astype(np.float16)

    def texts(self, texts: list[str], prompts: tuple[str, ...] = ("{}",)) -> np.ndarray:
        """Points of texts, prompts averaged in the tangent space, float16."""
        return place_texts(self.towers, self.text, texts, prompts)

    def held_out(self, held: Base) -> tuple[PairMeasures, float]:
        """Measures of held-out pictures and their names, and R@5, the mean over collections."""
        found, names = np.unique(held.pictures["name"], return_inverse=True)
        general = self.texts([held.texts[i] for i in found])
        specific = self.pictures(held.pictures)
        pairs = np.stack([np.arange(len(names)), names], axis=1)
        scores = []
        for number in np.unique(held.pictures["collection"]):
            rows = np.flatnonzero(held.pictures["collection"] == number)
            used, column = np.unique(names[rows], return_inverse=True)
            far = evaluate.distances(general[used], specific[rows], self.config.K)
            scores.append(evaluate.recall(far, np.stack([np.arange(len(rows)), column], axis=1)))
        return measure_pairs(general, specific, pairs, self.config.K), float(np.mean(scores))


def place_texts(
    towers: PocketTowers,
    encoder: encoders.TextEncoder,
    texts: list[str],
    prompts: tuple[str, ...] = ("{}",),
) -> np.ndarray:
    """Points of texts, prompts averaged in the tangent space, float16."""
    embeddings = np.stack([encoder([p.format(t) for t in texts]) for p in prompts])
    return np.asarray(towers.texts(embeddings)).astype(np.float16)
