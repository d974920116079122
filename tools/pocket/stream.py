"""Which pictures make which task, and what the base for the backbone is."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np

from pocket import pictures, vocabulary
from pocket.pictures import Picture
from pocket.sources import fetch


@dataclasses.dataclass(frozen=True)
class TaskPlan:
    """What a task is made of."""

    kind: str  # "classification" or "retrieval"
    pictures: list[Picture]  # of train and test
    sources: tuple[str, ...]  # names of the sources
    classes: tuple[str, ...] = ()  # class names, for classification
    labels: tuple[str, ...] = ()  # class name of each picture, for classification
    tree: tuple[tuple[str, str], ...] = ()  # (child, parent) rows
    prompts: tuple[str, ...] = ("{}",)  # templates for class names or captions


def _classification(
    found: list[Picture], names: list[str], sources: tuple[str, ...], tree: list, **more
) -> TaskPlan:
    return TaskPlan(
        "classification",
        found,
        sources,
        classes=tuple(dict.fromkeys(names)),
        labels=tuple(names),
        tree=tuple(tree),
        **more,
    )


def _by_name(found: list[Picture], sources: tuple[str, ...], tree: list, **more) -> TaskPlan:
    return _classification(found, [p.texts[0] for p in found], sources, tree, **more)


def retrieval(found: list[Picture], sources: tuple[str, ...]) -> TaskPlan:
    """A plan with a tree of names and categories."""
    rows: dict[str, str] = {}
    for picture in found:
        chain = (picture.texts[0], *picture.category)
        for child, parent in itertools.pairwise(chain):
            if child != parent:
                rows.setdefault(child, parent)
    return TaskPlan("retrieval", found, sources, tree=tuple(sorted(rows.items())))


def plan_tasks(cache: Path) -> dict[str, TaskPlan]:
    """All tasks in canonical order."""
    folders = {name: fetch(name, cache) for name in _TASK_SOURCES}
    wordnet = vocabulary.WordNet(fetch("wordnet", cache))
    emojibase = folders["emojibase"]

    def sketches(task: str, names: list[str], each: int) -> TaskPlan:
        found = pictures.quickdraw(folders["quickdraw"], names, each)
        tree = wordnet.tree(names, vocabulary.DOMAINS[task])
        prompts = ("{}", "a drawing of a {}")
        return _by_name(found, ("quickdraw", "wordnet"), tree, prompts=prompts)

    def emoji(art: str, groups: list[str]) -> list[Picture]:
        return pictures.emoji(folders[art], emojibase, groups, base_part=False)

    def grouped(found: list[Picture], sources: tuple[str, ...], least: int) -> TaskPlan:
        names = [p.category[0] for p in found]
        common = {name for name in names if names.count(name) >= least}
        found = [p for p in found if p.category[0] in common]
        names = [p.category[0] for p in found]
        tree = {p.category[0]: p.category[1] for p in found if len(p.category) > 1}
        return _classification(found, names, sources, sorted(tree.items()))

    return {
        "cifar10": _by_name(
            pictures.cifar10(folders["cifar10"], 2500, 1000),
            ("cifar10",),
            vocabulary.CIFAR10_TREE,
            prompts=("{}", "a photo of a {}"),
        ),
        "tux-photos": retrieval(
            pictures.tuxpaint(folders["tuxpaint"], cartoons=False), ("tuxpaint",)
        ),
        "qd-animals": sketches("qd-animals", vocabulary.ANIMALS, 40),
        "fashion": _by_name(
            pictures.idx_set(folders["fashion"], vocabulary.FASHION, 2000, 1000, 224, False),
            ("fashion",),
            vocabulary.FASHION_TREE,
            prompts=("{}", "a photo of a {}"),
        ),
        "noto-nature": retrieval(
            emoji("noto", ["animals-nature", "food-drink"]), ("noto", "emojibase")
        ),
        "word-pictures": grouped(
            pictures.word_pictures(folders["art4apps"]), ("art4apps",), least=10
        ),
        "qd-food-plants": sketches("qd-food-plants", vocabulary.FOOD_AND_PLANTS, 40),
        "game-icons": retrieval(
            pictures.game_icons(folders["gameicons"], 2000, base_part=False), ("gameicons",)
        ),
        "twemoji-places": retrieval(emoji("twemoji", ["travel-places"]), ("twemoji", "emojibase")),
        "qd-vehicles-structures": sketches(
            "qd-vehicles-structures", vocabulary.VEHICLES_AND_STRUCTURES, 40
        ),
        "openmoji-objects": retrieval(
            emoji("openmoji", ["objects", "activities"]), ("openmoji", "emojibase")
        ),
        "fluent-groups": grouped(
            emoji("fluent", ["animals-nature", "food-drink", "travel-places", "objects"]),
            ("fluent", "emojibase"),
            least=8,
        ),
        "fluent-people": retrieval(
            emoji("fluent", ["people-body", "smileys-emotion"]), ("fluent", "emojibase")
        ),
        "mnist": _by_name(
            pictures.idx_set(folders["mnist"], vocabulary.DIGITS, 1500, 1000, 176, True),
            ("mnist",),
            [],
            prompts=("the number {}", "the digit {}"),
        ),
        "qd-things": sketches("qd-things", vocabulary.THINGS, 30),
        "flags": retrieval(pictures.flags(folders["flags"]), ("flags",)),
    }


_TASK_SOURCES = (
    *("cifar10", "mnist", "fashion", "quickdraw", "tuxpaint", "noto", "openmoji", "fluent"),
    *("twemoji", "emojibase", "gameicons", "flags", "art4apps"),
)


def plan_base(cache: Path) -> dict[str, list[Picture]]:
    """Collections that only the backbone is trained on."""
    quickdraw = fetch("quickdraw", cache)
    used = {
        *vocabulary.ANIMALS,
        *vocabulary.FOOD_AND_PLANTS,
        *vocabulary.VEHICLES_AND_STRUCTURES,
        *vocabulary.THINGS,
    }
    leftover = [name for name in pictures.quickdraw_classes(quickdraw) if name not in used]
    emojibase = fetch("emojibase", cache)
    groups = [
        *("animals-nature", "food-drink", "travel-places", "objects", "activities"),
        *("people-body", "smileys-emotion"),
    ]
    base = {
        "openclipart": pictures.openclipart(fetch("openclipart", cache)),
        "mdi": pictures.mdi(fetch("mdi", cache), 4000),
        "lucide": pictures.lucide(fetch("lucide", cache), 1900),
        "photos": pictures.cifar10_unlabelled(fetch("cifar10", cache), 5000),
        "tux-cartoons": pictures.tuxpaint(fetch("tuxpaint", cache), cartoons=True),
        "game-icons": pictures.game_icons(fetch("gameicons", cache), 2000, base_part=True),
        "qd-leftover": pictures.quickdraw(quickdraw, leftover, 60),
    }
    for art in ("noto", "openmoji", "fluent", "twemoji"):
        base[art] = pictures.emoji(fetch(art, cache), emojibase, groups, base_part=True)
    return base


def split(plan: TaskPlan, kept: np.ndarray, seed: int = 0) -> np.ndarray:
    """True for the test part of the kept pictures.

    As the source says where it does; else two thirds train, and in retrieval by name, so that
    no name of a test picture was seen in training.
    """
    chosen = [plan.pictures[i] for i in kept]
    if chosen[0].split:
        return np.array([p.split == "test" for p in chosen])
    rng = np.random.default_rng(seed)
    if plan.kind == "retrieval":
        names = sorted({p.texts[0] for p in chosen})
        test = set(rng.permutation(names)[: len(names) // 3].tolist())
        return np.array([p.texts[0] in test for p in chosen])
    labels = np.array([plan.labels[i] for i in kept])
    is_test = np.zeros(len(kept), bool)
    for name in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == name))
        is_test[rows[: max(1, round(len(rows) / 3))]] = True
    return is_test
