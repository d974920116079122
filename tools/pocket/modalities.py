"""Which sounds and which heat pictures make the tasks in further modalities, and their bases."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from hmcl_jax.data.pocket_towers import mix_class_names
from pocket import encoders, evaluate, pictures, sounds, stream, thermal
from pocket.backbone import Encoded
from pocket.extension import ExtensionConfig, Pairs, Tower
from pocket.pictures import Picture
from pocket.sources import fetch
from pocket.texttower import Chains, TextTower


@dataclasses.dataclass(frozen=True)
class Extension:
    """A task in a further modality and what its tower is trained on."""

    modality: str  # of the samples
    features: Callable[[np.ndarray], np.ndarray] | None  # of a drawn sample, beside the encoder's
    mixed: bool  # whether ConSE's mixture is given to the tower
    plan: stream.TaskPlan  # of the task
    base: list[Picture]  # drawn in that modality
    sources: tuple[str, ...]  # of the base
    config: ExtensionConfig  # of the tower


def plan_extensions(
    cache: Path, encoder: encoders.PictureEncoder, chains: Chains
) -> dict[str, Extension]:
    """The tasks with sounds and with heat pictures, by name."""
    (fluid,) = fetch("fluidr3", cache).rglob("*.sf2")
    (small,) = fetch("timgm6mb", cache).rglob("*.sf2")
    heard = [*sounds.soundfont(small, 4), *sounds.patches(fetch("freepats", cache), 4)]
    seen = pictures.tuxpaint(fetch("tuxpaint", cache), cartoons=False)
    emojibase = fetch("emojibase", cache)
    groups = ["animals-nature", "food-drink", "travel-places", "objects", "activities"]
    drawn = [
        *_named_photos(cache, encoder, chains, 1000),
        *pictures.openclipart(fetch("openclipart", cache))[::2],
        *pictures.tuxpaint(fetch("tuxpaint", cache), cartoons=True),
        *pictures.emoji(fetch("noto", cache), emojibase, groups, base_part=True),
    ]
    return {
        "instruments": Extension(
            "audio",
            sounds.statistics,
            False,
            stream.retrieval(sounds.soundfont(fluid, 1), ("fluidr3",)),
            heard,
            ("timgm6mb", "freepats"),
            ExtensionConfig(),
        ),
        "thermal-photos": Extension(
            "thermal",
            None,
            True,
            stream.TaskPlan("retrieval", thermal.warmed(seen), ("tuxpaint",)),
            thermal.warmed(drawn),
            ("cifar10", "openclipart", "tuxpaint", "noto", "emojibase"),
            ExtensionConfig(),
        ),
    }


def _named_photos(
    cache: Path, encoder: encoders.PictureEncoder, chains: Chains, most: int
) -> list[Picture]:
    """Photographs without words, named by what the encoder sees in them before they are rendered.

    As for the base of pocket16, whose encoded pictures are used again.
    """
    found = pictures.cifar10_unlabelled(fetch("cifar10", cache), 5000)
    encoded = encoder("base-photos", found)
    named = []
    for row, index in enumerate(encoded["kept"][:most]):
        chain = chains[int(encoded["logits"][row].argmax())]
        words = (*chain[0], chain[1][0])
        named.append(dataclasses.replace(found[index], texts=words, category=tuple(chain[1])))
    return named


class Encoding:
    """The encoded samples of an extension, which are test, train and base, and the base's pairs.

    A base sample that is a near copy of a sample of the task, or bears the name of a test sample,
    is left out.
    """

    def __init__(self, name: str, extension: Extension, encoder: encoders.PictureEncoder) -> None:
        self.extension = extension
        self.task = encoder(name, extension.plan.pictures)
        self.base = encoder(f"base-{name}", extension.base)
        self.samples = [extension.plan.pictures[i] for i in self.task["kept"]]
        found = [extension.base[i] for i in self.base["kept"]]
        self.test = stream.split(extension.plan, self.task["kept"])
        tested = {self.samples[i].texts[0].lower() for i in np.flatnonzero(self.test)}
        near = _copies(self.base, self.task)
        named = np.array([p.texts[0].lower() in tested for p in found])
        self.used = ~near & ~named
        self.train = ~self.test & ~_copies(self.task, _rows(self.task, self.test))
        self.left_out = {
            "base, near copies": int(near.sum()),
            "base, names of test samples": int((named & ~near).sum()),
            "train, near copies": int((~self.test & ~self.train).sum()),
        }
        self.found = [found[i] for i in np.flatnonzero(self.used)]

    def inputs(self, encoded: Encoded, drawn: list[Picture]) -> np.ndarray:
        """What the tower is given of samples."""
        more = self.extension.features
        if more is None:
            return encoded["features"]
        return np.hstack([encoded["features"], np.stack([more(p.draw()) for p in drawn])])

    def given(self, encoded: Encoded, names: jax.Array) -> np.ndarray:
        """ConSE's mixtures, or nothing."""
        if not self.extension.mixed:
            return np.zeros((len(encoded["kept"]), 0))
        mixtures = np.asarray(mix_class_names(encoded["logits"], names))
        return mixtures / np.linalg.norm(mixtures, axis=1, keepdims=True)

    def pairs(self, texts: TextTower) -> Pairs:
        """The base of the tower."""
        ids: dict[str, int] = {}
        variants = []
        for picture in self.found:
            words = [*picture.texts[:3]]
            if picture.category:
                words.append(f"{picture.texts[0]}: {picture.category[0]}")
            numbers = [ids.setdefault(word, len(ids)) for word in words]
            variants.append((numbers * 4)[:4])
        encoded = _rows(self.base, self.used)
        return Pairs(
            self.inputs(encoded, self.found),
            self.given(encoded, texts.towers.class_names),
            np.array(variants),
            texts(list(ids)),
        )

    def points(self, tower: Tower, texts: TextTower) -> np.ndarray:
        """Points of the task's samples."""
        given = self.given(self.task, texts.towers.class_names)
        return tower(self.inputs(self.task, self.samples), given)


def _rows(encoded: Encoded, chosen: np.ndarray) -> Encoded:
    return {key: values[chosen] for key, values in encoded.items()}


def _copies(a: Encoded, b: Encoded) -> np.ndarray:
    """Which samples of `a` are equal or nearly equal to one of `b`."""
    near = evaluate.nearest_cosine(a["features"], b["features"]) > evaluate.NEAR_DUPLICATE
    return near | np.isin(a["hashes"], b["hashes"])
