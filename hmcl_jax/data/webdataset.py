"""Collections in tar files, as the public CLIP benchmark keeps them (WebDataset).

``<split>/*.tar`` holds members that belong together by their name up to its first dot: a picture
and its class (``.cls``, a number) or its captions (``.txt``, one on each line, or ``.json``).
Beside the splits may lie classnames.txt and zeroshot_classification_templates.txt, in a split
nshards.txt. Nothing is unpacked: each tar file is walked through once, and members are read where
they lie.
"""

import os
import re
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

from hmcl_jax.data.collection import (
    LARGEST_PICTURE,
    IngestError,
    Pictures,
    Split,
    captioned,
    check_text,
    shown,
)
from hmcl_jax.data.folder import is_picture, parse_json
from hmcl_jax.data.layouts import WHOLE, Layout

COMPRESSED = re.compile(r".*\.(tar\.\w+|tgz|tbz2?|txz|tzst)", re.IGNORECASE)
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
LARGEST_LABEL = 2**20
TEXTS = ("cls", "txt", "json")
# What follows the last member: two blocks of zeros, filled up to a record (GNU tar: 10240 bytes).
LARGEST_END = 2**20

Member = tuple[str, int, int]  # name, start, size
Group = dict[str, Member]  # by suffix; the picture under ""


def walk_tar(where: str, file: BinaryIO) -> Iterator[Member]:
    """Name, start and size of every plain file in a tar file.

    Args:
      where: the file's name, for messages.
      file: opened.

    Yields:
      Members in the order in which they lie there.

    Raises:
      IngestError: for links and devices, for members that end beyond the file, and if the walk does
        not end at the end of the archive.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    for magic, name in MAGIC.items():
        if start.startswith(magic):
            raise IngestError(f"{where} is compressed ({name}); unpack it to a plain tar file.")
    file.seek(0)
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            end = -1
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # there may be millions
                if archive.offset <= end:
                    raise IngestError(f"{where}: member {member.name[:80]!a} leads backwards.")
                end = archive.offset
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise IngestError(
                        f"{where}: member {member.name[:80]!a} is a link or a special file; only "
                        "plain files are read."
                    )
                if member.size < 0 or member.offset_data + member.size > size:
                    raise IngestError(
                        f"{where}: member {member.name[:80]!a} of {member.size} bytes ends beyond "
                        f"the file of {size} bytes; is it truncated?"
                    )
                yield member.name, member.offset_data, member.size
            _check_end(where, file, archive.offset, size)
    except (IngestError, GeneratorExit):
        raise
    except Exception as error:  # whatever a damaged file provokes in tarfile
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise IngestError(f"{where} is not a readable tar file: {reason}.") from error


def _check_end(where: str, file: BinaryIO, offset: int, size: int) -> None:
    """Refuses a walk that ended at a damaged header, which tarfile takes for the end."""
    file.seek(offset)
    rest = file.read(LARGEST_END + 1)
    if not 512 <= len(rest) <= LARGEST_END or rest.strip(b"\x00"):
        raise IngestError(
            f"{where} does not end as a tar file does, at byte {offset} of {size}: it is "
            "truncated, damaged, or several are in one file."
        )


class WebDataset(Layout):
    """``<split>/*.tar`` with a picture and its class or captions under one name."""

    def find_splits(self) -> tuple[str, ...]:
        self.ignored = [0, 0]
        self._splits: dict[str, Split] = {}
        return tuple(
            name
            for name in self.folder.listing().folders
            if any(file.endswith(".tar") for file in self.folder.listing(name).files)
        )

    def prepare(self, training: str) -> None:
        split = self._read(training)
        if split.labels is not None:
            self.kind = "classification"
            count = int(split.labels.max()) + 1
            if self.stated is None and count > len(split.labels):
                raise IngestError(
                    f"{self.folder.path}: {len(split.labels)} training pictures have class numbers "
                    f"up to {count - 1}; say the classes in classnames.txt, or mend the numbers."
                )
            self.classes = self.stated or tuple(str(row) for row in range(count))
        self._splits[training] = split

    def read(self, split: str) -> Split:
        found = self._splits[split] if split in self._splits else self._read(split)
        where = self.folder.path / split
        if (found.labels is None) != (self.kind == "retrieval"):
            raise IngestError(f"{where} is not for {self.kind}, as the training split is.")
        if found.labels is not None and int(found.labels.max()) >= len(self.classes):
            row = int(np.argmax(found.labels >= len(self.classes)))
            raise IngestError(
                f"{where}: picture {found.pictures[row].key} has class {found.labels[row]}, but "
                f"there are {len(self.classes)} classes, from 0."
            )
        return found

    def _read(self, split: str) -> Split:
        files = self.folder.listing(split).files
        shards = [name for name in files if name.endswith(".tar")]
        packed = [name for name in files if COMPRESSED.fullmatch(name)]
        self.folder.refuse_links(split, list(self.folder.listing(split).bad))
        if packed:
            raise IngestError(
                f"{self.folder.path / split}: {shown(packed)} is compressed; unpack it to .tar."
            )
        if "nshards.txt" in files:
            text = self.folder.read_text(f"{split}/nshards.txt").strip()
            if text != str(len(shards)):
                raise IngestError(
                    f"{self.folder.path / split}: nshards.txt says {text[:20]!r}, but there are "
                    f"{len(shards)} tar files; was a download interrupted?"
                )
        names: list[str] = []
        place: list[int] = []
        ranges: list[tuple[int, int]] = []
        labels: list[int] = []
        captions: list[list[str]] = []
        for row, shard in enumerate(shards):
            for (name, start, size), label in self._shard(f"{split}/{shard}"):
                names.append(name)
                place.append(row)
                ranges.append((start, size))
                if isinstance(label, int):
                    labels.append(label)
                else:
                    captions.append(label)
        if not names:
            raise IngestError(f"{self.folder.path / split}: there is no picture in its tar files.")
        if labels and captions:
            raise IngestError(
                f"{self.folder.path / split}: {len(labels)} pictures have a class and "
                f"{len(captions)} have captions; all must have the same."
            )
        places = [f"{split}/{shard}" for shard in shards]
        pictures = Pictures(
            self.folder.root, places, np.array(place, np.int32), names, np.array(ranges, np.int64)
        )
        if labels:
            return Split(pictures, np.array(labels, np.int32))
        return captioned(pictures, captions)

    def _shard(self, inside: str) -> Iterator[tuple[Member, int | list[str]]]:
        """Pictures of a tar file, sorted by name, with their class or captions."""
        where = str(self.folder.path / inside)
        groups: dict[str, Group] = {}
        try:
            with open(os.path.join(self.folder.root, inside), "rb") as file:
                for member in walk_tar(where, file):
                    self._group(where, groups, member)
                for key in sorted(groups):
                    yield self._sample(where, file, key, groups[key])
        except OSError as error:
            raise IngestError(f"{where} cannot be read: {error.strerror}.") from error

    def _group(self, where: str, groups: dict[str, Group], member: Member) -> None:
        """Puts a member to those of the same name."""
        name, _, size = member
        folder, _, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        suffix = suffix.lower()
        picture = is_picture(suffix) and "." not in suffix
        if not stem or not (picture or suffix in TEXTS):
            if self.ignored is not None:
                self.ignored[0] += 1
            return
        check_text(f"{where}: the name of a member", name)
        most = LARGEST_PICTURE if picture else LARGEST_LABEL
        if size > most:
            raise IngestError(f"{where}: member {name} has {size} bytes, more than {most}.")
        group = groups.setdefault(f"{folder}/{stem}", {})
        slot = "" if picture else suffix
        if slot in group:
            raise IngestError(
                f"{where}: {name} and {group[slot][0]} have one key; names up to the first dot "
                "must be distinct."
            )
        group[slot] = member

    def _sample(
        self, where: str, file: BinaryIO, key: str, group: Group
    ) -> tuple[Member, int | list[str]]:
        key = key.lstrip("/")
        if "" not in group:
            raise IngestError(f"{where}: {key} has {shown(sorted(group))}, but no picture.")
        suffix = next((suffix for suffix in TEXTS if suffix in group), None)
        if suffix is None:
            raise IngestError(
                f"{where}: picture {group[''][0]} has neither a class ({key}.cls) nor captions "
                f"({key}.txt or {key}.json)."
            )
        name, start, size = group[suffix]
        file.seek(start)
        at = f"{where}: member {name}"
        try:
            text = file.read(size).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise IngestError(f"{at} is not UTF-8 at byte {error.start}.") from None
        if suffix == "cls":
            if not WHOLE.fullmatch(text.strip()):
                raise IngestError(f"{at} must be the number of a class, got {text[:40]!r}.")
            return group[""], int(text)
        return group[""], captions_in(at, text, suffix)


def captions_in(where: str, text: str, suffix: str) -> list[str]:
    """Captions in a text, one on each line, or in JSON."""
    found: Any = [line for line in text.split("\n") if line.strip()]
    if suffix == "json":
        found = parse_json(where, text)
        if isinstance(found, dict):
            found = found.get("captions", found.get("caption"))
        found = [found] if isinstance(found, str) else found
        if not isinstance(found, list):
            raise IngestError(
                f"{where} must be a caption, a list of captions, or an object with one of them as "
                f"'caption' or 'captions', got {text[:40]!r}."
            )
    if not found:
        raise IngestError(f"{where} has no caption.")
    return [check_text(f"{where}: caption", caption) for caption in found]
