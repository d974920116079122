"""For tests of experiments/paper: its command, a user's methods, and results made up."""

import numpy as np

from hmcl_jax.continual import StreamResult
from hmcl_jax.continual.methods import METHODS
from paper import reproduce

HASTE = ["train.classification.epochs=1", "train.retrieval.epochs=1", "train.batch=64"]
SMALL = {"scale": 1e-3, "dim": 8, "most_classes": 4}
FEW = ("coco", "flickr30k")
MINE = """
import dataclasses
from hmcl_jax.continual import Method
from hmcl_jax.continual.methods import Entry

@dataclasses.dataclass(frozen=True)
class Halved(Method):
    share: float = 0.5

    def combine(self, gradients, heads, state, num_minibatches, spec):
        return {m: self.share * g for m, g in gradients[0].items()}

METHODS = {"halved": Entry(Halved(), "half the gradient", "0", "-")}
"""
BROKEN = """
class Broken(Halved):
    def combine(self, gradients, heads, state, num_minibatches, spec):
        raise ValueError("so it is")

METHODS["broken"] = Entry(Broken(), "fails", "0", "-")
"""


def call(monkeypatch, *arguments):
    """Runs the command in this process."""
    monkeypatch.setattr("hmcl_jax.cli.options.keep_programs", lambda on: None)
    for name in ("halved", "broken"):
        METHODS.pop(name, None)  # of an earlier call in this process
    reproduce.main(arguments)


def haste(*more):
    """Options for runs that take no time."""
    return [word for setting in (*HASTE, *more) for word in ("--set", setting)]


def result(final, learned, kinds="ccr", seeds=2):
    """A stream of which the scores at the end and when learned are given, in percent."""
    size = len(kinds)
    scores = np.where(np.tri(size, dtype=bool), learned, np.nan) * np.ones((seeds, 1, 1))
    scores[:, -1] = final + np.arange(seeds)[:, None]  # the next seed is one point higher
    names = {"c": "classification", "r": "retrieval"}
    recalls = {
        f"{way}_r{k}": [0.01 * k + 0.1 * place] * seeds
        for place, way in enumerate(("general_to_specific", "specific_to_general"))
        for k in (1, 5, 10)
    }
    return StreamResult(
        method="m",
        settings={},
        tasks=tuple(f"t{i}" for i in range(size)),
        kinds=tuple(names[kind] for kind in kinds),
        seeds=(42, 123)[:seeds],
        scores=scores / 100,
        details=[[{} if kind == "c" else recalls for kind in kinds]] * size,
        losses=[],
        seconds=[],
        logs=[],
        heads={},
        programs=0,
    )
