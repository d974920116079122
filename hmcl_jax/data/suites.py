"""The data sets of a published stream: names, sizes, splits and prompts.

``SUITES["hmcl16"]`` are the 16 data sets of the paper (its table of data sets) in canonical order,
``ORDERS["hmcl16"]`` its other orders. Sizes are those of MERU's evaluation catalogue, whose splits
are partly shares of the published training sets (`Expected.train_split`).

Prompts are settings of the protocol, in the style of the captions that MERU was trained on. Those
of mnist, clevr, pcam and sst2 are CLIP's published templates; they have not been compared with
MERU's own file. Class names are the collection's (classnames.txt). The paper's protocol has 998
distinct names for the 1,000 classes of ImageNet, and CLEVR's counts in the order 10, 3, 4, ..., 9.
"""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from hmcl_jax.data.collection import Collection, IngestError, shown
from hmcl_jax.data.folder import Folder
from hmcl_jax.data.ingest import open_collection
from hmcl_jax.data.settings import read_settings

ARTICLES = ("a", "the")
SEEN_AS = ("photo", "painting", "sculpture", "sketch", "tattoo", "rendition", "drawing", "doodle")
MADE_OF = ("plastic", "toy", "embroidered", "cartoon", "plushie", "origami")
QUALITIES = ("blurry", "black and white", "low contrast", "high contrast", "bad", "good")
REDDIT = ("bad photo of the", "origami", "photo of the large", "photo of the small")


def _cifar(article: str) -> tuple[str, ...]:
    plain = tuple(f"a {word} photo of {article} {{}}." for word in QUALITIES)
    sizes = tuple(f"a photo of {article} {size} {{}}." for size in ("small", "big"))
    return (f"a photo of {article} {{}}.", *plain, *sizes)


def _caltech(article: str) -> tuple[str, ...]:
    seen = tuple(f"a {word} of {article} {{}}." for word in SEEN_AS)
    made = tuple(f"{article} {word} {{}}." for word in MADE_OF)
    arts = tuple(f"{word} of {article} {{}}." for word in ("art", "graffiti"))
    return (*seen, *made, f"{article} {{}} in a video game.", *arts)


PROMPTS: Mapping[str, tuple[str, ...]] = {
    "aircraft": tuple(f"a photo of {article} {{}}, a type of aircraft." for article in ARTICLES),
    "caltech101": tuple(prompt for article in ARTICLES for prompt in _caltech(article)),
    "imagenet": (
        "i took a picture : itap of a {}.",
        *(f"pics : a {words} {{}}." for words in REDDIT),
        "pics : a {} in a video game.",
        "pics : art of the {}.",
    ),
    "cifar10": tuple(prompt for article in ARTICLES for prompt in _cifar(article)),
    "cifar100": tuple(prompt for article in ARTICLES for prompt in _cifar(article)),
    "clevr": ("a photo of {} objects.",),
    "country211": (
        "a photo i took in {}.",
        "a photo i took while visiting {}.",
        "a photo from my home country of {}.",
        "a photo from my visit to {}.",
        "a photo showing the country of {}.",
    ),
    "dtd": tuple(
        f"pics : {this}{{}} {word}."
        for this in ("", "this ")
        for word in ("texture", "pattern", "thing")
    ),
    "eurosat": tuple(
        f"a centered satellite photo of {article}{{}}." for article in ("", "a ", "the ")
    ),
    "food101": ("food : {}.", "food porn : {}."),
    "mnist": ('a photo of the number: "{}".',),
    "flowers102": ("flowers : {}.",),
    "pcam": ("this is a photo of {}.",),
    "sst2": ("a {} review of a movie.",),
}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What a data set of a suite must be.

    Attributes:
      name: of the task, and of its folder.
      title: in the paper.
      kind: ``"classification"`` or ``"retrieval"``.
      classes: their number; 0 for retrieval.
      train: number of training pictures.
      test: number of test pictures.
      source: which library's data set and splits these are.
      aliases: other names that the folder may have.
      train_split: what to take of the published set for training, see
        :func:`hmcl_jax.data.ingest.open_collection`.
      test_split: the same for testing.
    """

    name: str
    title: str
    kind: str
    classes: int
    train: int
    test: int
    source: str
    aliases: tuple[str, ...] = ()
    train_split: str = "train"
    test_split: str = "test"

    @property
    def prompts(self) -> tuple[str, ...]:
        """Templates with ``{}`` for the class name; empty for retrieval."""
        return PROMPTS.get(self.name, ())

    @property
    def fit(self) -> str:
        """Classification crops pictures to a square, retrieval squashes them."""
        return "crop" if self.kind == "classification" else "squash"

    @property
    def splits(self) -> dict[str, str]:
        """What to take of the published set."""
        return {"train": self.train_split, "test": self.test_split}


def _classes(
    name: str,
    title: str,
    classes: int,
    train: int,
    test: int,
    source: str,
    *aliases: str,
    train_split: str = "train",
    test_split: str = "test",
) -> Expected:
    kind = "classification"
    return Expected(
        name, title, kind, classes, train, test, source, aliases, train_split, test_split
    )


def _captions(name: str, title: str, train: int, test: int, source: str, *aliases: str) -> Expected:
    return Expected(name, title, "retrieval", 0, train, test, source, aliases)


SUITES: Mapping[str, tuple[Expected, ...]] = {
    "hmcl16": (
        _classes(
            *("aircraft", "FGVC Aircraft", 100, 3_334, 3_333),
            "torchvision FGVCAircraft (variants): train, test",
            *("fgvc_aircraft", "wds_fgvc_aircraft"),
        ),
        _classes(
            *("caltech101", "Caltech-101", 102, 2_448, 6_084),
            "tfds caltech101: train[:80%], test",
            *("wds_caltech101", "wds_vtab-caltech101"),
            train_split="train[:80%]",
        ),
        _classes(
            *("imagenet", "ImageNet-1K", 1_000, 1_281_167, 50_000),
            "ILSVRC 2012 in class folders: train, val",
            *("imagenet1k", "wds_imagenet1k"),
        ),
        _classes(
            *("cifar10", "CIFAR-10", 10, 45_000, 10_000),
            "tfds cifar10: train[:90%], test",
            *("wds_cifar10", "wds_vtab-cifar10"),
            train_split="train[:90%]",
        ),
        _classes(
            *("cifar100", "CIFAR-100", 100, 45_000, 10_000),
            "tfds cifar100: train[:90%], test",
            *("wds_cifar100", "wds_vtab-cifar100"),
            train_split="train[:90%]",
        ),
        _classes(
            *("clevr", "CLEVR", 8, 4_500, 5_000),
            "tfds clevr (object counts): train[:4500], validation[:5000]",
            *("wds_clevr_count_all", "wds_vtab-clevr_count_all"),
            train_split="train[:4500]",
            test_split="test[:5000]",
        ),
        _captions(
            *("coco", "COCO", 118_287, 5_000),
            "COCO captions 2017: train2017, val2017",
            *("mscoco_captions", "wds_mscoco_captions"),
        ),
        _classes(
            *("country211", "Country211", 211, 31_650, 21_100),
            "torchvision Country211: train, test",
            "wds_country211",
        ),
        _classes(
            *("dtd", "DTD", 47, 1_880, 1_880),
            "tfds dtd: train, test",
            *("wds_dtd", "wds_vtab-dtd"),
        ),
        _classes(
            *("eurosat", "EuroSAT", 10, 5_000, 5_000),
            "tfds eurosat: train[:5000], train[10000:15000]",
            *("wds_eurosat", "wds_vtab-eurosat"),
            train_split="train[:5000]",
            test_split="train[10000:15000]",
        ),
        _captions(
            *("flickr30k", "Flickr30K", 29_000, 1_000),
            "Karpathy's dataset_flickr30k.json: train, test",
            "wds_flickr30k",
        ),
        _classes(
            *("food101", "Food-101", 101, 68_175, 25_250),
            "tfds food101: train[:90%], validation",
            "wds_food101",
            train_split="train[:90%]",
        ),
        _classes(
            *("mnist", "MNIST", 10, 48_000, 10_000),
            "tfds mnist: train[:80%], test",
            *("wds_mnist", "wds_vtab-mnist"),
            train_split="train[:80%]",
        ),
        _classes(
            *("flowers102", "Flowers-102", 102, 1_020, 6_149),
            "tfds oxford_flowers102: train, test",
            *("oxford_flowers102", "wds_flowers", "wds_vtab-flowers"),
        ),
        _classes(
            *("pcam", "PCAM", 2, 262_144, 32_768),
            "tfds patch_camelyon: train, test",
            *("patch_camelyon", "wds_pcam", "wds_vtab-pcam"),
        ),
        _classes(
            *("sst2", "SST-2", 2, 6_920, 1_821),
            "torchvision RenderedSST2: train, test",
            *("renderedsst2", "wds_renderedsst2"),
        ),
    ),
}
ORDERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "hmcl16": {
        "seq2": (
            *("flickr30k", "mnist", "pcam", "food101", "eurosat", "caltech101", "sst2", "coco"),
            *("flowers102", "cifar10", "clevr", "aircraft", "dtd", "cifar100", "country211"),
            "imagenet",
        ),
        "seq3": (
            *("dtd", "imagenet", "clevr", "cifar10", "flickr30k", "pcam", "flowers102", "eurosat"),
            *("coco", "cifar100", "country211", "aircraft", "mnist", "food101", "caltech101"),
            "sst2",
        ),
    },
}


def check_counts(collection: Collection, expected: Expected, scale: float = 1.0) -> None:
    """Refuses a collection that is not as large as its data set must be.

    Args:
      collection: that has been opened.
      expected: of it.
      scale: share of the pictures that must be there, for trials with less data.

    Raises:
      IngestError: with everything that differs, both numbers each.
    """
    wanted: dict[str, tuple[object, object]] = {
        "kind": (expected.kind, collection.kind),
        "classes": (expected.classes, len(collection.classes)),
        "training pictures": (scaled(expected.train, scale), len(collection.train.pictures)),
        "test pictures": (scaled(expected.test, scale), len(collection.test.pictures)),
    }
    differences = [
        f"{what}: {right} expected, {found} found"
        for what, (right, found) in wanted.items()
        if right != found
    ]
    if differences:
        raise IngestError(
            f"{collection.name} is not the {expected.title} of the suite: "
            f"{'; '.join(differences)} (splits {collection.provenance.get('splits', 'unknown')}). "
            f"It should be {expected.source}; complete it, or state its splits in collection.toml."
        )


def scaled(count: int, scale: float) -> int:
    """A number of pictures at a scale, at least 1.

    Args:
      count: at scale 1.
      scale: positive.

    Returns:
      The nearest number.

    Example:
      >>> from hmcl_jax.data.suites import scaled
      >>> scaled(45_000, 1e-3), scaled(1_020, 1e-4)
      (45, 1)
    """
    if not 0 < scale <= 1:
        raise ValueError(f"scale must be in (0, 1], got {scale}.")
    return max(1, round(count * scale))


def find_collection(root: str | os.PathLike[str], expected: Expected) -> Path:
    """Finds the folder of a data set by its name or one of its aliases.

    Args:
      root: the folder that holds all data sets.
      expected: of the data set.

    Returns:
      Its folder.

    Raises:
      IngestError: if there is none, or more than one.
    """
    names = (expected.name, *expected.aliases)
    found = [name for name in names if Path(root, name).is_dir()]
    if len(found) > 1:
        raise IngestError(f"{root} has several folders of {expected.title}: {', '.join(found)}.")
    if not found:
        there = Folder(root).listing().folders
        raise IngestError(
            f"{root} has no folder of {expected.title}, one of {', '.join(names)}; it has "
            f"{shown(there, 20) or 'none'}."
        )
    return Path(root, found[0])


def open_expected(
    root: str | os.PathLike[str], expected: Expected, scale: float = 1.0, links: bool = False
) -> Collection:
    """Opens a data set of a suite, with the suite's prompts and sizes.

    If its splits have the expected sizes, they are taken whole; otherwise the protocol's parts of
    the published set are, unless collection.toml says what to take.

    Args:
      root: the folder that holds all data sets.
      expected: of the data set.
      scale: share of the pictures that must be there, for trials with less data.
      links: whether symbolic links that leave the folder are followed.

    Returns:
      The collection.

    Raises:
      IngestError: if it cannot be opened or its counts differ, naming them.
    """
    path = find_collection(root, expected)

    def opened(splits: Mapping[str, str] | None) -> Collection:
        prompts = expected.prompts or None
        collection = open_collection(
            *(path, expected.name), prompts=prompts, fit=expected.fit, splits=splits, links=links
        )
        check_counts(collection, expected, scale)
        return collection

    try:
        return opened(None)
    except IngestError as whole:
        plain = expected.splits == {"train": "train", "test": "test"}
        if plain or read_settings(Folder(path, links)).splits is not None:
            raise
        try:
            return opened(expected.splits)
        except IngestError as parts:
            raise IngestError(f"{parts}\nTaken whole: {whole}") from None
