"""Reads Parquet and Arrow files, and data sets of the Hugging Face hub, with ``datasets``.

The library keeps copies of Parquet files and of what it downloads in its own cache
(``HF_DATASETS_CACHE``); the pictures are read from there as they were encoded.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

from hmcl_jax._extras import require
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, Listing, check_text, first_few
from hmcl_jax.data.readers import LARGEST_PICTURE, Picture, Reader, Samples

HUB = "hf:"
SAVED = "dataset_dict.json"  # of DatasetDict.save_to_disk
FILE = re.compile(r"([a-z]+)\b[\w.-]*\.(parquet|arrow)")
IMAGES = ("image", "img", "jpg", "png")
LABELS = ("label", "labels", "fine_label", "cls")
CAPTIONS = ("caption", "captions", "text", "txt")


class HubName(Folder):
    """Takes the place of a folder for a data set of the hub; it holds no files of ours.

    Args:
      name: such as ``"hf:uoft-cs/cifar10"`` or ``"hf:owner/name:configuration"``.
    """

    def __init__(self, name: str) -> None:
        self.root, _, self.configuration = name.removeprefix(HUB).partition(":")
        self.path, self._listings = Path(self.root), {"": Listing({}, {}, {}, 0)}


def arrow_files(folder: Folder) -> dict[str, list[str]]:
    """The Parquet and Arrow files of a folder and its folder ``data``, by split."""
    files: dict[str, list[str]] = {}
    for inside in ("", "data"):
        if not inside or inside in folder.listing().folders:
            for match in filter(None, map(FILE.fullmatch, folder.listing(inside).files)):
                files.setdefault(match[1], []).append(f"{inside}/{match[0]}".lstrip("/"))
    return files


@dataclasses.dataclass(frozen=True)
class StoredPicture:
    """One picture in a data set.

    Attributes:
      key: unique in its collection.
      dataset: of the ``datasets`` library, with pictures as bytes.
      column: of the picture.
      row: of the picture.
      paths: whether a path instead of the bytes is followed; those of the hub lead to its cache.
    """

    key: str
    dataset: Any
    column: str
    row: int
    paths: bool

    def read(self) -> bytes:
        """The encoded picture."""
        value = self.dataset[self.row][self.column]
        value = value if isinstance(value, dict) else {"bytes": value}
        data: bytes | None = value["bytes"]
        if data is None and self.paths and value.get("path"):
            return Picture(self.key, value["path"]).read()
        if not isinstance(data, bytes) or len(data) > LARGEST_PICTURE:
            raise IngestError(f"Picture {self.key} is not in the data set, or is too large.")
        return data


class StoredPictures:
    """The pictures of a data set, each made when it is accessed."""

    def __init__(self, split: str, dataset: Any, column: str, paths: bool) -> None:
        self.split, self.dataset, self.column, self.paths = split, dataset, column, paths

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> StoredPicture:
        if not 0 <= row < len(self):
            raise IndexError(row)
        key = f"{self.split}/{row:09d}"
        return StoredPicture(key, self.dataset, self.column, row, self.paths)


class HubReader(Reader):
    """Parquet or Arrow files, a folder of ``save_to_disk``, or a data set of the hub."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        library = require("datasets", "data")
        try:
            if isinstance(folder, HubName):
                self.data = library.load_dataset(folder.root, folder.configuration or None)
            elif SAVED in folder.listing().files:
                self.data = library.load_from_disk(folder.root)
            else:
                files = arrow_files(folder)
                kinds = {name.rpartition(".")[2] for names in files.values() for name in names}
                if len(kinds) != 1:
                    raise IngestError(f"{folder.path} must hold Parquet or Arrow files, not both.")
                paths = {
                    split: [f"{folder.root}/{name}" for name in sorted(names)]
                    for split, names in files.items()
                }
                self.data = library.load_dataset(kinds.pop(), data_files=paths)
        except IngestError:
            raise
        except Exception as error:  # damaged files cause many kinds of errors in the library
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            raise IngestError(f"{folder.path} cannot be read with datasets: {reason}") from error
        self.splits = list(self.data)

    def read(self, split: str) -> Samples:
        library, data = require("datasets", "data"), self.data[split]
        where = f"{self.folder.path}: {split}"
        image, label, caption = (
            next((name for name in names if name in data.column_names), None)
            for names in (IMAGES, LABELS, CAPTIONS)
        )
        column = label or caption
        if image is None or column is None:
            raise IngestError(
                f"{where} must have a column of pictures ({', '.join(IMAGES)}) and one of labels "
                f"({', '.join(LABELS)}) or captions ({', '.join(CAPTIONS)}), got "
                f"{first_few(data.column_names, 20)}; rename them."
            )
        if isinstance(data.features[image], library.Image):
            data = data.cast_column(image, library.Image(decode=False))
        values, feature = list(data[column]), data.features[column]
        of_hub = isinstance(self.folder, HubName)
        pictures: Any = StoredPictures(split, data.select_columns([image]), image, of_hub)
        if label is None:
            captions = [value if isinstance(value, list) else [value] for value in values]
            texts = [
                [check_text(f"{where} row {row}: {column}", text) for text in own]
                for row, own in enumerate(captions)
            ]
            return Samples(pictures, captions=texts)
        names = getattr(feature, "names", None)
        if names is not None and self.class_order is None:
            self.class_order = tuple(names)
        if names is not None and any(not 0 <= value < len(names) for value in values):
            raise IngestError(f"{where} has pictures without a label; take another split.")
        return Samples(pictures, [names[value] if names else str(value) for value in values])
