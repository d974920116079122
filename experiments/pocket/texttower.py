"""The text tower of pocket16: trained again with its pictures once, then kept in the cache."""

import functools
from pathlib import Path

import jax
import numpy as np

from hmcl_jax import lorentz
from hmcl_jax.data.store import Store
from pocket import encoders, towers
from pocket.sources import fetch
from pocket.vocabulary import WordNet

Chains = list[list[list[str]]]
PARTS = ("text", "length")
ROUNDING = 1e-3  # of float16; MiniLM's last bits depend on which texts it is given together


class TextTower:
    """Texts to points, as pocket16 has them.

    Attributes:
      names: embeddings of the ImageNet classes, for ConSE.
      chains: names of these classes and of those above.
      tau: temperature that was learned with the towers.
    """

    def __init__(self, cache: Path) -> None:
        path = cache / "text_tower.npz"
        if not path.exists():
            _train(cache, path)
        self.encoder = encoders.TextEncoder(fetch("minilm", cache), cache)  # knows what was trained
        wordnet = WordNet(fetch("wordnet", cache))
        self.chains: Chains = encoders.imagenet_chains(fetch("imagenet_names", cache), wordnet)
        self.names = encoders.imagenet_embeddings(self.encoder, self.chains)
        self.config = towers.TowerConfig()
        with np.load(path, allow_pickle=False) as kept:
            self.params = {
                part: {key: kept[f"{part}_{key}"] for key in ("w1", "b1", "w2", "b2")}
                for part in PARTS
            }
            self.tau = float(kept["tau"])
        self._tangent = jax.jit(functools.partial(towers.text_tangent, config=self.config))

    def __call__(self, texts: list[str], prompts: tuple[str, ...] = ("{}",)) -> np.ndarray:
        """Points of texts, prompts averaged in the tangent space, float16."""
        tangents = [
            self._tangent(self.params, texts=self.encoder([p.format(t) for t in texts]))
            for p in prompts
        ]
        mean = np.mean([np.asarray(t) for t in tangents], axis=0)
        return np.asarray(lorentz.exp_map0(mean, self.config.K)).astype(np.float16)

    def check(self, pocket: Store) -> None:
        """Raises if texts are not where the shipped store has them."""
        for task in pocket:
            if not task.tree:
                continue
            apart = np.abs(np.float32(self(list(task.tree_names))) - task.arrays["tree_features"])
            if apart.max() > ROUNDING:
                raise ValueError(
                    f"The texts of {task.name} are not where {pocket.name} has them; remove "
                    "text_tower.npz from the cache and use the versions it was built with."
                )
        if self.tau != pocket.tau:
            raise ValueError(f"tau must be that of {pocket.name}, {pocket.tau}, got {self.tau}.")


def _train(cache: Path, path: Path) -> None:
    """Trains both towers as build_pocket.py does, and keeps the one of the texts."""
    from build_pocket import Material

    from pocket.backbone import Backbone

    material = Material(cache)
    backbone = Backbone(material.base, material.text)
    kept = {
        f"{part}_{key}": np.asarray(values)
        for part in PARTS
        for key, values in backbone.params[part].items()
    }
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, tau=backbone.tau, **kept)
    partial.replace(path)
