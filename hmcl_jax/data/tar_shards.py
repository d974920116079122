"""Reads collections in tar files, as the public CLIP benchmark keeps them (WebDataset).

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

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, check_text, first_few, is_picture, parse_json
from hmcl_jax.data.readers import LARGEST_PICTURE, Pictures, Reader, Samples

CLASS_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
COMPRESSED = re.compile(r".*\.(tar\.\w+|tgz|tbz2?|txz|tzst)", re.IGNORECASE)
MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
LARGEST_LABEL = 2**20
# After the last member: two blocks of zeros, filled up to a record (GNU tar: 10240 bytes).
LARGEST_END = 2**20
Member = tuple[str, int, int]  # name, start, size


class TarShards(Reader):
    """``<split>/*.tar`` with a picture and its class or captions under one name."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self.ignored = [0, 0]
        self.splits = [name for name in folder.listing().folders if has_shards(folder, name)]

    def read(self, split: str) -> Samples:
        where, files = self.folder.path / split, self.folder.listing(split).files
        self.folder.refuse_links(split)
        shards = [name for name in files if name.endswith(".tar")]
        packed = [name for name in files if COMPRESSED.fullmatch(name)]
        if packed:
            raise IngestError(f"{where}: {first_few(packed)} is compressed; unpack it to .tar.")
        if "nshards.txt" in files:
            text = self.folder.read_text(f"{split}/nshards.txt").strip()
            if text != str(len(shards)):
                raise IngestError(
                    f"{where}: nshards.txt says {text[:20]!r}, but there are {len(shards)} tar "
                    "files; was a download interrupted?"
                )
        keys: list[str] = []
        ranges: list[tuple[int, int]] = []
        labels: list[str] = []
        captions: list[list[str]] = []
        for shard in shards:
            for (name, start, size), value in self._shard(f"{split}/{shard}"):
                keys.append(f"{split}/{shard}/{name}")
                ranges.append((start, size))
                if isinstance(value, str):
                    labels.append(value)
                else:
                    captions.append(value)
        if not keys:
            raise IngestError(f"{where}: there is no picture in its tar files.")
        if labels and captions:
            raise IngestError(
                f"{where}: {len(labels)} pictures have a class and {len(captions)} have captions; "
                "all must have the same."
            )
        pictures = Pictures(self.folder.root, keys, np.array(ranges, np.int64))
        return Samples(pictures, labels or None, captions or None)

    def _shard(self, inside: str) -> Iterator[tuple[Member, str | list[str]]]:
        """The pictures of a tar file, sorted by name, with their class or captions."""
        where = str(self.folder.path / inside)
        groups: dict[str, dict[str, Member]] = {}  # by suffix; the picture under ""
        try:
            with open(os.path.join(self.folder.root, inside), "rb") as file:
                for member in walk_tar(where, file):
                    self._group(where, groups, member)
                for key in sorted(groups):
                    yield _sample(where, file, key.lstrip("/"), groups[key])
        except OSError as error:
            raise IngestError(f"{where} cannot be read: {error.strerror}.") from error

    def _group(self, where: str, groups: dict[str, dict[str, Member]], member: Member) -> None:
        """Adds a member to those of the same name."""
        assert self.ignored is not None
        name, _, size = member
        folder, _, file = name.rpartition("/")
        stem, _, suffix = file.partition(".")
        suffix = suffix.lower()
        picture = is_picture(suffix) and "." not in suffix
        if not stem or not (picture or suffix in ("cls", "txt", "json")):
            self.ignored[0] += 1
            return
        check_text(f"{where}: the name of a member", name)
        most = LARGEST_PICTURE if picture else LARGEST_LABEL
        if size > most:
            raise IngestError(f"{where}: member {name} has {size} bytes, more than {most}.")
        group = groups.setdefault(f"{folder}/{stem}", {})
        other = group.setdefault("" if picture else suffix, member)
        if other is not member:
            raise IngestError(
                f"{where}: {name} and {other[0]} have one key; names up to the first dot must be "
                "distinct."
            )


def has_shards(folder: Folder, split: str) -> bool:
    """Whether there are tar files in the folder of a split."""
    return any(name.endswith(".tar") for name in folder.listing(split).files)


def walk_tar(where: str, file: BinaryIO) -> Iterator[Member]:
    """Name, start and size of every plain file in an open tar file, in its order.

    Refuses links and devices, members that end beyond the file, and a walk that does not end at the
    end of the archive.
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
                at, behind = f"{where}: member {member.name[:80]!a}", end
                end = archive.offset
                if end <= behind:
                    raise IngestError(f"{at} leads backwards.")
                if member.isdir():
                    continue
                if not member.isreg() or member.issparse():
                    raise IngestError(f"{at} is a link or a special file; only files are read.")
                if member.size < 0 or member.offset_data + member.size > size:
                    raise IngestError(
                        f"{at} of {member.size} bytes ends beyond the file of {size} bytes; is it "
                        "truncated?"
                    )
                yield member.name, member.offset_data, member.size
            # tarfile takes a damaged header for the end.
            file.seek(archive.offset)
            rest = file.read(LARGEST_END + 1)
            if not 512 <= len(rest) <= LARGEST_END or rest.strip(b"\x00"):
                raise IngestError(
                    f"{where} does not end as a tar file does, at byte {archive.offset} of {size}: "
                    "it is truncated, damaged, or several are in one file."
                )
    except (IngestError, GeneratorExit):
        raise
    except Exception as error:  # damaged files cause many kinds of errors in tarfile
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise IngestError(f"{where} is not a readable tar file: {reason}.") from error


def _sample(
    where: str, file: BinaryIO, key: str, group: dict[str, Member]
) -> tuple[Member, str | list[str]]:
    """A picture of a tar file with its class or captions."""
    if "" not in group:
        raise IngestError(f"{where}: {key} has {first_few(sorted(group))}, but no picture.")
    picture = group.pop("")
    suffix = next((suffix for suffix in ("cls", "txt", "json") if suffix in group), None)
    if suffix is None:
        raise IngestError(
            f"{where}: picture {picture[0]} has neither a class ({key}.cls) nor captions "
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
        if not CLASS_NUMBER.fullmatch(text.strip()):
            raise IngestError(f"{at} must be the number of a class, got {text[:40]!r}.")
        return picture, text.strip()
    captions: Any = [line for line in text.split("\n") if line.strip()]
    if suffix == "json":
        captions = parse_json(at, text)
        if isinstance(captions, dict):
            captions = captions.get("captions", captions.get("caption"))
        captions = [captions] if isinstance(captions, str) else captions
        if not isinstance(captions, list):
            raise IngestError(
                f"{at} must be a caption, a list of captions, or an object with one of them as "
                f"'caption' or 'captions', got {text[:40]!r}."
            )
    if not captions:
        raise IngestError(f"{at} has no caption.")
    return picture, [check_text(f"{at}: caption", caption) for caption in captions]
