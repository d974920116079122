"""Reads the tensors of a PyTorch checkpoint without PyTorch and without running anything in it.

A checkpoint (``.pth``, since PyTorch 1.6) is an uncompressed zip file: a pickle, ``data.pkl``, that
describes tensors, and the numbers of each storage in a member of their own. The pickle is looked
through (:mod:`hmcl_jax.backbones.pickled`), the numbers are mapped into memory, and both must fit
each other before any is touched.
"""

import dataclasses
import hashlib
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hmcl_jax.backbones.pickled import PickleRefused, StorageEntry, TensorEntry, read_pickle, shown

LARGEST_PICKLE = 16 * 2**20  # that of MERU-B with its optimizer has 0.2 MiB
MOST_MEMBERS = 100_000
MOST_AXES = 8
LOCAL_HEADER = b"PK\x03\x04"
DTYPES = {
    "DoubleStorage": np.dtype("<f8"),
    "FloatStorage": np.dtype("<f4"),
    "HalfStorage": np.dtype("<f2"),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype("<i8"),
    "IntStorage": np.dtype("<i4"),
    "ShortStorage": np.dtype("<i2"),
    "CharStorage": np.dtype("i1"),
    "ByteStorage": np.dtype("u1"),
    "BoolStorage": np.dtype("?"),
}


class CheckpointError(ValueError):
    """A checkpoint that is damaged, of another model, or would run code; the file is named."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The tensors of a model.

    Attributes:
      tensors: by name, read-only and mapped from the file.
      about: ``file``, its name, and ``sha256``.
    """

    tensors: dict[str, np.ndarray]
    about: dict[str, str]


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Reads the state of the model in a checkpoint.

    Args:
      path: of a ``.pth`` file that holds ``{"model": state, ...}``, or just the state.

    Returns:
      Its tensors, without the prefix ``module.`` that data-parallel training leaves.

    Raises:
      CheckpointError: if the file cannot be read, or its pickle names anything but tensors and
        plain data. Nothing in the file is ever run.
    """
    path = Path(path)
    try:
        members = _Members(path)
        data = members.view("data.pkl", LARGEST_PICKLE).tobytes()
        members.check_order()
        state = _model_state(path, read_pickle(data))
        tensors = {name: members.tensor(name, entry) for name, entry in state.items()}
        about = {"file": path.name, "sha256": hashlib.sha256(members.mapped.data).hexdigest()}
    except CheckpointError:
        raise
    except PickleRefused as error:
        raise CheckpointError(f"{path}: data.pkl is refused: {error}.") from None
    except Exception as error:  # whatever a damaged file provokes in zipfile or numpy
        reason = f"{type(error).__name__}: {shown(str(error))}"
        raise CheckpointError(f"{path} is not a readable checkpoint: {reason}") from error
    return Checkpoint(tensors, about)


def _model_state(path: Path, top: Any) -> dict[str, TensorEntry]:
    """The tensors of ``["model"]``, or of the whole, by name."""
    if not isinstance(top, dict):
        raise CheckpointError(
            f"{path} holds {shown(top)} instead of a dict; save model.state_dict() with PyTorch."
        )
    state = top.get("model", top)
    if not isinstance(state, dict) or not any(isinstance(v, TensorEntry) for v in state.values()):
        found = ", ".join(sorted(shown(key) for key in top)[:20])
        raise CheckpointError(f'{path} has no tensors in ["model"]; it holds: {found or "nothing"}')
    tensors = {}
    for key, entry in state.items():
        if not isinstance(key, str) or not isinstance(entry, TensorEntry):
            raise CheckpointError(f"{path}: {shown(key)} is not a tensor but {shown(entry)}.")
        name = key.removeprefix("module.")
        if name in tensors:
            raise CheckpointError(f"{path}: {shown(name)} is there with and without 'module.'.")
        tensors[name] = entry
    return tensors


class _Members:
    """The mapped members of a zip file, within its bounds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise CheckpointError(f"There is no checkpoint at {str(path)!r}.")
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path} is empty.")
        self.mapped: np.ndarray = np.memmap(path, np.uint8, "r")
        start = self.mapped[:4].tobytes()
        try:
            with zipfile.ZipFile(path) as archive:
                listed = archive.infolist()
        except (zipfile.BadZipFile, zipfile.LargeZipFile, NotImplementedError) as error:
            raise CheckpointError(f"{path} {_not_a_zip(start)}") from error
        if len(listed) > MOST_MEMBERS:
            raise CheckpointError(f"{path} has {len(listed)} members, more than a checkpoint has.")
        self.members = {info.filename: info for info in listed}
        if len(self.members) < len(listed):
            raise CheckpointError(f"{path} has two members of one name.")
        pickles = [n for n in self.members if n.count("/") == 1 and n.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise CheckpointError(
                f"{path} is a zip file with {len(pickles)} members */data.pkl instead of one; "
                "save the checkpoint with torch.save."
            )
        self.root = pickles[0].removesuffix("data.pkl")
        self.checked: set[str] = set()

    def view(self, member: str, most: int | None = None) -> np.ndarray:
        """The bytes of a member, compared with its checksum when first seen."""
        info = self.members.get(self.root + member)
        where = f"{self.path}: member {shown(member)}"
        if info is None:
            raise CheckpointError(f"{where} is missing.")
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
            raise CheckpointError(
                f"{where} is compressed or encrypted; PyTorch writes neither. Save it again with "
                "torch.save."
            )
        size, header = info.file_size, info.header_offset
        fixed = self.mapped[header : header + 30].tobytes()
        start = header + 30 + int.from_bytes(fixed[26:28], "little")
        start += int.from_bytes(fixed[28:30], "little")
        whole = len(fixed) == 30 and fixed[:4] == LOCAL_HEADER and info.compress_size == size
        if not whole or start + size > len(self.mapped):
            raise CheckpointError(f"{where} reaches beyond the file, which is damaged.")
        if most is not None and size > most:
            raise CheckpointError(f"{where} has {size} bytes, more than the {most} allowed.")
        found = self.mapped[start : start + size]
        if member not in self.checked and zlib.crc32(found.data) != info.CRC:
            raise CheckpointError(f"{where} does not match its checksum; get the file again.")
        self.checked.add(member)
        return found

    def check_order(self) -> None:
        """Refuses numbers whose bytes are the other way round."""
        if self.root + "byteorder" in self.members:
            order = self.view("byteorder", 16).tobytes()
            if order != b"little":
                raise CheckpointError(
                    f"{self.path}: byteorder must be little, got {shown(order.decode('latin1'))}; "
                    "load and save it again on a little-endian machine."
                )

    def tensor(self, name: str, entry: TensorEntry) -> np.ndarray:
        """The tensor that is described, if it lies within its storage."""
        where = f"{self.path}: {shown(name)}"
        storage = entry.storage
        if not isinstance(storage, StorageEntry) or storage.kind not in DTYPES:
            kind = storage.kind if isinstance(storage, StorageEntry) else "unknown"
            raise CheckpointError(f"{where} is of {shown(kind)}, which is not supported.")
        dtype = DTYPES[storage.kind]
        data = self.view(f"data/{storage.key}")
        held = len(data) // dtype.itemsize
        shape, strides = _whole_numbers(entry.shape), _whole_numbers(entry.strides)
        numbers = _whole_numbers((storage.size, entry.offset))
        if shape is None or strides is None or numbers is None or len(shape) != len(strides):
            raise CheckpointError(f"{where} has no proper shape, strides and offset.")
        size, offset = numbers
        if size > held:
            raise CheckpointError(
                f"{where} needs a storage of {size} numbers, but member data/{shown(storage.key)} "
                f"has {held}; truncated?"
            )
        count = math.prod(shape)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        if count > size or (count and last >= size):
            raise CheckpointError(
                f"{where} of shape {shape}, strides {strides} and offset {offset} reaches beyond "
                f"its storage of {size} numbers."
            )
        if not count:
            return np.zeros(shape, dtype)
        steps = tuple(stride * dtype.itemsize for stride in strides)
        found: np.ndarray = np.ndarray(shape, dtype, data, offset * dtype.itemsize, steps)
        return found


def _whole_numbers(values: Any) -> tuple[int, ...] | None:
    """A tuple of a few numbers that may be sizes; None if it is something else."""
    if not isinstance(values, tuple) or len(values) > MOST_AXES:
        return None
    if any(type(value) is not int or not 0 <= value < 2**48 for value in values):
        return None
    return values


def _not_a_zip(start: bytes) -> str:
    if start[:2] == b"PK":
        return "is truncated or damaged; get the file again."
    if start[:1] == b"\x80":
        return (
            "is a checkpoint of PyTorch before 1.6, a bare pickle, which is never read; load it "
            "and torch.save it with a newer PyTorch."
        )
    return "is not a PyTorch checkpoint (.pth); was something else saved under its name?"
