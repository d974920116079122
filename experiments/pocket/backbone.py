"""The pocket backbone: base pairs, the two trained towers, and points for pictures and texts."""

import dataclasses
import functools
import hashlib
from pathlib import Path

import jax
import numpy as np

from hmcl_jax import lorentz
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
      pictures: per picture ``features``, ``conse``, ``variants`` (several text ids), ``name`` (text
        id), ``category`` (text id or -1) and ``collection`` (index).
      collections: their names.
      texts: all texts.
      embeddings: of the texts.
      pairs: (child, parent) text ids from WordNet.
      copies: base pictures left out because a task has them, by collection.
      mean: of the picture features.
      spread: of the picture features.
      names: embeddings of the ImageNet classes, for ConSE.
    """

    pictures: dict[str, np.ndarray]
    collections: tuple[str, ...]
    texts: tuple[str, ...]
    embeddings: np.ndarray
    pairs: np.ndarray
    copies: dict[str, int]
    mean: np.ndarray
    spread: np.ndarray
    names: np.ndarray

    def part(self, held_out: bool) -> "Base":
        """The pictures and text pairs held out for choosing settings (a tenth), or the others.

        By name: no text of a held-out picture names a picture of the other part.
        """

        def chosen(text: int) -> bool:
            return hashlib.sha256(self.texts[text].encode()).digest()[0] % 10 == 0

        rows = np.array([chosen(i) for i in self.pictures["name"]]) == held_out
        pairs = np.array([chosen(child) for child, _ in self.pairs]) == held_out
        pictures = {key: values[rows] for key, values in self.pictures.items()}
        return dataclasses.replace(self, pictures=pictures, pairs=self.pairs[pairs])


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
    names = encoders.imagenet_embeddings(text, chains)
    everything = np.concatenate([e["features"] for e in base_encoded.values()])
    mean, spread = everything.mean(0), everything.std(0) + 1e-6
    seen = {h for e in encoded.values() for h in e["hashes"]}
    task_features = np.concatenate([e["features"] for e in encoded.values()])
    ids: dict[str, int] = {}

    def identify(text: str) -> int:
        return ids.setdefault(text, len(ids))

    rows: dict[str, list] = {
        key: [] for key in ("features", "conse", "variants", "name", "category", "collection")
    }
    copies = {}
    for number, (collection, found) in enumerate(base.items()):
        e = base_encoded[collection]
        near = evaluate.nearest_cosine(e["features"], task_features) > evaluate.NEAR_DUPLICATE
        ok = ~(near | np.array([h in seen for h in e["hashes"]]))
        copies[collection] = int((~ok).sum())
        for index in np.flatnonzero(ok):
            picture = found[e["kept"][index]]
            words, category = picture.texts, picture.category[:1]
            if not words:  # a photograph without words: what the encoder itself sees in it
                chain = chains[int(e["logits"][index].argmax())]
                words, category = [*chain[0], chain[1][0]], chain[1]
            texts = [identify(t) for t in words]
            rows["variants"].append((texts * 3)[:3])
            rows["name"].append(texts[0])
            rows["category"].append(identify(category[0]) if category else -1)
            rows["collection"].append(number)
        rows["features"].append((e["features"][ok] - mean) / spread)
        rows["conse"].append(encoders.conse(e["logits"][ok], names))
    used = {name.lower() for plan in plans.values() for row in plan.tree for name in row}
    used |= {name.lower() for plan in plans.values() for name in plan.classes}
    pairs = [(identify(c), identify(p)) for c, p in wordnet.pairs(used)[::3]]
    stacked = {key: np.concatenate(rows.pop(key)) for key in ("features", "conse")}
    return Base(
        pictures={
            **{key: values.astype(np.float32) for key, values in stacked.items()},
            **{key: np.array(values) for key, values in rows.items()},
        },
        collections=tuple(base),
        texts=tuple(ids),
        embeddings=text(list(ids)),
        pairs=np.array(pairs),
        copies=copies,
        mean=mean,
        spread=spread,
        names=names,
    )


class Backbone:
    """Two towers, trained on a base."""

    def __init__(
        self, base: Base, text: encoders.TextEncoder, config: towers.TowerConfig | None = None
    ) -> None:
        self.base, self.text = base, text
        self.config = config or towers.TowerConfig()
        self.params = towers.train(self.config, base.pictures, base.embeddings, base.pairs)
        self.tau = float(np.exp(-min(float(self.params["scale"]), np.log(100.0))))
        self._picture = jax.jit(functools.partial(towers.picture_tangent, config=self.config))
        self._text = jax.jit(functools.partial(towers.text_tangent, config=self.config))

    def pictures(self, e: Encoded) -> np.ndarray:
        """Points of encoded pictures, float16."""
        features = ((e["features"] - self.base.mean) / self.base.spread).astype(np.float32)
        return self._points(features, encoders.conse(e["logits"], self.base.names))

    def _points(self, features: np.ndarray, conse: np.ndarray) -> np.ndarray:
        tangent = self._picture(self.params, features=features, conse=conse.astype(np.float32))
        return np.asarray(lorentz.exp_map0(tangent, self.config.K)).astype(np.float16)

    def texts(self, texts: list[str], prompts: tuple[str, ...] = ("{}",)) -> np.ndarray:
        """Points of texts, prompts averaged in the tangent space, float16."""
        tangents = [
            self._text(self.params, texts=self.text([p.format(t) for t in texts])) for p in prompts
        ]
        mean = np.mean([np.asarray(t) for t in tangents], axis=0)
        return np.asarray(lorentz.exp_map0(mean, self.config.K)).astype(np.float16)

    def held_out(self, held: Base) -> dict[str, float]:
        """R@5 both ways between held-out pictures and their names, and how texts are ordered."""
        scores = {}
        for number, collection in enumerate(held.collections):
            rows = np.flatnonzero(held.pictures["collection"] == number)
            found, names = np.unique(held.pictures["name"][rows], return_inverse=True)
            general = self.texts([held.texts[i] for i in found])
            specific = self._points(held.pictures["features"][rows], held.pictures["conse"][rows])
            pairs = np.stack([np.arange(len(rows)), names], axis=1)
            distances = evaluate.distances(general, specific, self.config.K)
            scores[collection] = evaluate.recall(distances, pairs)
        scores["mean"] = float(np.mean(list(scores.values())))
        child, parent = (
            np.linalg.norm(self.texts([held.texts[i] for i in held.pairs[:, k]]), axis=1)
            for k in (0, 1)
        )
        scores["parents nearer"] = float(np.mean(parent < child))
        return scores
