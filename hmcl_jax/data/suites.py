"""The data sets of a published stream: ``suites.toml`` beside this file, and how to open them.

``SUITES["hmcl16"]`` are the 16 data sets of the paper in canonical order, ``ORDERS["hmcl16"]`` its
other orders.
"""

import dataclasses
import os
import tomllib
from pathlib import Path

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, first_few, read_settings
from hmcl_jax.data.image_datasets import Collection, open_collection


@dataclasses.dataclass(frozen=True)
class Expected:
    """A data set of a suite."""

    name: str  # of the task, and of its folder
    title: str  # in the paper
    train: int  # number of training pictures
    test: int
    source: str  # the library of the published data set, and the splits that were taken
    classes: int = 0  # 0 for retrieval
    aliases: tuple[str, ...] = ()  # other names that the folder may have
    # The parts of the published set, see hmcl_jax.data.image_datasets.open_collection.
    train_split: str = "train"
    test_split: str = "test"
    prompts: tuple[str, ...] = ()


def _expected(entry: dict) -> Expected:
    templates = tuple(_PROMPTS.get(entry.pop("prompts", entry["name"]), ()))
    return Expected(**{**entry, "aliases": tuple(entry["aliases"])}, prompts=templates)


_TABLES = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf8"))
_PROMPTS, ORDERS = _TABLES.pop("prompts"), _TABLES.pop("orders")
SUITES = {suite: tuple(map(_expected, entries)) for suite, entries in _TABLES.items()}


def check_counts(collection: Collection, expected: Expected) -> None:
    """Refuses a collection of another size than its data set; names both numbers."""
    kind = "classification" if expected.classes else "retrieval"
    compared = {
        "kind": (kind, collection.kind),
        "classes": (expected.classes, len(collection.classes)),
        "training pictures": (expected.train, len(collection.train.pictures)),
        "test pictures": (expected.test, len(collection.test.pictures)),
    }
    differences = [f"{k}: {a} expected, {b} found" for k, (a, b) in compared.items() if a != b]
    if differences:
        raise IngestError(
            f"{collection.name} is not the {expected.title} of the suite: "
            f"{'; '.join(differences)} (splits {collection.provenance['splits']}). "
            f"It should be {expected.source}; complete it, or state its splits in collection.toml."
        )


def find_collection(root: str | os.PathLike[str], expected: Expected) -> Path:
    """The folder in `root` that has the name of a data set or one of its aliases."""
    names = (expected.name, *expected.aliases)
    folders = [name for name in names if Path(root, name).is_dir()]
    if len(folders) > 1:
        raise IngestError(f"{root} has several folders of {expected.title}: {', '.join(folders)}.")
    if not folders:
        raise IngestError(
            f"{root} has no folder of {expected.title}, one of {', '.join(names)}; it has "
            f"{first_few(Folder(root).listing().folders, 20)}."
        )
    return Path(root, folders[0])


def open_expected(
    root: str | os.PathLike[str], expected: Expected, links: bool = False
) -> Collection:
    """Opens a data set of a suite in the folder `root` of all, with the suite's prompts and sizes.

    If its splits have the expected sizes, they are taken whole; otherwise the protocol's parts of
    the published set are, unless collection.toml states splits.
    """
    path, fit = find_collection(root, expected), "crop" if expected.classes else "squash"

    def opened(splits: dict[str, str] | None) -> Collection:
        prompts = expected.prompts or None
        collection = open_collection(
            path, expected.name, prompts=prompts, fit=fit, splits=splits, links=links
        )
        check_counts(collection, expected)
        return collection

    try:
        return opened(None)
    except IngestError as whole:
        splits = {"train": expected.train_split, "test": expected.test_split}
        stated = "splits" in read_settings(Folder(path, links))
        if stated or splits == {"train": "train", "test": "test"}:
            raise
        try:
            return opened(splits)
        except IngestError as parts:
            raise IngestError(f"{parts}\nTaken whole: {whole}") from None
