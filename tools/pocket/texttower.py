"""The text tower of pocket16, from the package, with the frozen encoder below it."""

from pathlib import Path

import numpy as np

from hmcl_jax.data.pocket_towers import load_pocket_towers
from hmcl_jax.data.store import Store
from pocket import encoders
from pocket.backbone import place_texts
from pocket.sources import fetch
from pocket.vocabulary import WordNet

Chains = list[list[list[str]]]
ROUNDING = 2e-3  # of int8; MiniLM's last bits depend on which texts it is given together


class TextTower:
    """Texts to points, as pocket16 has them.

    Attributes:
      towers: of pocket16.
      encoder: of texts.
      chains: names of the ImageNet classes and of those above.
    """

    def __init__(self, cache: Path) -> None:
        self.towers = load_pocket_towers()
        self.encoder = encoders.TextEncoder(fetch("minilm", cache), cache)
        wordnet = WordNet(fetch("wordnet", cache))
        self.chains: Chains = encoders.imagenet_chains(fetch("imagenet_names", cache), wordnet)

    def __call__(self, texts: list[str], prompts: tuple[str, ...] = ("{}",)) -> np.ndarray:
        """Points of texts, prompts averaged in the tangent space, float16."""
        return place_texts(self.towers, self.encoder, texts, prompts)

    def check(self, pocket: Store) -> None:
        """Raises if texts are not where the shipped store has them."""
        for task in pocket:
            if not task.tree:
                continue
            apart = np.abs(np.float32(self(list(task.tree_names))) - task.arrays["tree_features"])
            if apart.max() > ROUNDING:
                raise ValueError(
                    f"The texts of {task.name} are not where {pocket.name} has them: "
                    "pocket_towers.npz and pocket16.zip must be of one build."
                )
