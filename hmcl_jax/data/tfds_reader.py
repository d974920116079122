"""Reads data sets that TensorFlow Datasets has prepared, with its own parts of splits.

The paper's splits, such as ``tfds cifar10: train[:90%]``, are parts in the order of the prepared
data. That order is kept here, so the pictures of a part are the library's. TensorFlow is not
needed, if the data was prepared with ``file_format="array_record"``.
"""

import dataclasses
from typing import Any

from hmcl_jax._extras import require
from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder
from hmcl_jax.data.readers import Reader, Samples

INFO = "features.json"  # in the folder of a version, such as cifar10/3.0.2


def version_folder(folder: Folder) -> str | None:
    """The folder of the newest version, relative to `folder`; None if nothing is prepared there."""
    versions = ["", *sorted(folder.listing().folders)]
    prepared = [name for name in versions if INFO in folder.listing(name).files]
    return prepared[-1] if prepared else None


@dataclasses.dataclass(frozen=True)
class RecordedPicture:
    """One picture of a prepared data set.

    Attributes:
      key: unique in its collection.
      source: data source of the split.
      row: of the picture.
    """

    key: str
    source: Any
    row: int

    def read(self) -> bytes:
        """The encoded picture."""
        data: bytes = self.source[self.row]["image"]
        return data


class TfdsReader(Reader):
    """A folder that TensorFlow Datasets has prepared, with an image and a label per example."""

    in_order = True

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.library = require("tensorflow_datasets", "tfds")
        path = f"{folder.root}/{version_folder(folder) or ''}"
        try:
            self.builder = self.library.builder_from_directory(path)
            self.splits = list(self.builder.info.splits)
            self.class_order = tuple(self.builder.info.features["label"].names)
        except Exception as error:  # damaged files cause many kinds of errors in the library
            reason = f"{type(error).__name__}: {str(error)[:300]}"
            raise IngestError(f"{path} is not a data set with labels: {reason}") from error

    def read(self, split: str) -> Samples:
        decoders = {"image": self.library.decode.SkipDecoding()}
        try:
            source = self.builder.as_data_source(split, decoders=decoders)
        except NotImplementedError:
            raise IngestError(
                f"{self.folder.path} was prepared as TFRecord files; prepare it with "
                'file_format="array_record".'
            ) from None
        pictures = [
            RecordedPicture(f"{split}/{row:09d}", source, row) for row in range(len(source))
        ]
        assert self.class_order is not None
        return Samples(pictures, [self.class_order[source[p.row]["label"]] for p in pictures])
