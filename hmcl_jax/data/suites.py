"""The data sets of a published stream: ``suites.toml`` beside this file, and how to open them.

``SUITES["hmcl16"]`` are the 16 data sets of the paper in canonical order, ``ORDERS["hmcl16"]`` its
other orders.
"""

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from hmcl_jax.data.collection_toml import read_settings
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, first_few
from hmcl_jax.data.image_datasets import Collection, open_collection


@dataclasses.dataclass(frozen=True)
class Expected:
    """A data set of a suite.

    Attributes:
      name: of the task, and of its folder.
      title: in the paper.
      train: number of training pictures.
      test: number of test pictures.
      source: the library of the published data set, and the splits that were taken.
      classes: their number; 0 for retrieval.
      aliases: other names that the folder may have.
      train_split: the part of the published set for training, see
        :func:`hmcl_jax.data.image_datasets.open_collection`.
      test_split: the same for testing.
      prompts: templates with ``{}`` for the class name; empty for retrieval.
    """

    name: str
    title: str
    train: int
    test: int
    source: str
    classes: int = 0
    aliases: tuple[str, ...] = ()
    train_split: str = "train"
    test_split: str = "test"
    prompts: tuple[str, ...] = ()


def _load() -> tuple[dict[str, tuple[Expected, ...]], dict[str, dict[str, tuple[str, ...]]]]:
    tables = tomllib.loads(Path(__file__).with_name("suites.toml").read_text(encoding="utf8"))
    prompts, orders = tables.pop("prompts"), tables.pop("orders")

    def expected(entry: dict) -> Expected:
        templates = tuple(prompts.get(entry.pop("prompts", entry["name"]), ()))
        return Expected(**{**entry, "aliases": tuple(entry["aliases"])}, prompts=templates)

    suites = {suite: tuple(map(expected, entries)) for suite, entries in tables.items()}
    named = {
        suite: {key: tuple(names) for key, names in own.items()} for suite, own in orders.items()
    }
    return suites, named


SUITES, ORDERS = _load()


def check_counts(collection: Collection, expected: Expected) -> None:
    """Refuses a collection of another size than its data set; names both numbers."""
    kind = "classification" if expected.classes else "retrieval"
    pictures = len(collection.train.pictures), len(collection.test.pictures)
    wanted = (kind, expected.classes, expected.train, expected.test)
    names = ("kind", "classes", "training pictures", "test pictures")
    actual = (collection.kind, len(collection.classes), *pictures)
    differences = [
        f"{name}: {right} expected, {found} found"
        for name, right, found in zip(names, wanted, actual, strict=True)
        if right != found
    ]
    if differences:
        raise IngestError(
            f"{collection.name} is not the {expected.title} of the suite: "
            f"{'; '.join(differences)} (splits {collection.provenance.get('splits', 'unknown')}). "
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
    """Opens a data set of a suite, with the suite's prompts and sizes.

    If its splits have the expected sizes, they are taken whole; otherwise the protocol's parts of
    the published set are, unless collection.toml states splits.

    Args:
      root: the folder that holds all data sets.
      expected: of the data set.
      links: whether symbolic links that leave the folder are followed.

    Returns:
      The collection.

    Raises:
      IngestError: if it cannot be opened or its counts differ, naming them.
    """
    path, fit = find_collection(root, expected), "crop" if expected.classes else "squash"
    prompts = expected.prompts or None

    def opened(splits: Mapping[str, str] | None) -> Collection:
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
