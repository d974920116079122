"""Reads collections in tar files, as the public CLIP benchmark keeps them (WebDataset).

``<split>/*.tar`` holds members that belong together by their name up to its first dot: a picture
and its class (``.cls``, a number or a name) or its captions (``.txt``, one on each line, or
``.json``). Beside the splits may lie classnames.txt and zeroshot_classification_templates.txt, in a
split nshards.txt. Nothing is unpacked: each tar file is walked through once, and members are read
where they lie.
"""

import functools
import json
import os
import posixpath
import tarfile
from collections.abc import Iterator

import numpy as np

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import SUFFIXES, Folder, check_text, first_few, reading
from hmcl_jax.data.readers import Pictures, Samples, Splits, captions_of

KINDS = ("cls", "txt", "json")


def read_shards(folder: Folder) -> Splits:
    """``train/*.tar`` and ``test/*.tar``"""
    splits = [name for name in folder.listing().folders if _shards(folder, name)]
    return {split: functools.partial(_split, folder, split) for split in splits}


def _shards(folder: Folder, split: str) -> list[str]:
    """The tar files of a split; also compressed ones, which are refused when they are opened."""
    return [name for name in folder.listing(split).files if ".tar" in name]


def _split(folder: Folder, split: str) -> Samples:
    shards, where = _shards(folder, split), folder.path / split
    if folder.holds(f"{split}/nshards.txt"):
        stated = folder.read_text(f"{split}/nshards.txt").strip()
        if stated != str(len(shards)):
            raise IngestError(
                f"{where}: nshards.txt says {stated[:20]!r}, but there are {len(shards)} tar "
                "files; was a download interrupted?"
            )
    keys: list[str] = []
    places: list[tuple[int, int]] = []
    texts: list[str | list[str]] = []
    for shard in shards:
        path = os.path.join(folder.root, split, shard)
        with (
            reading(f"{where / shard} (to be a tar file without compression)"),
            tarfile.open(path, "r:") as archive,
        ):
            for picture, text in _samples(folder, archive):
                keys.append(f"{split}/{shard}/{picture.name}")
                places.append((picture.offset_data, picture.size))
                texts.append(text)
    table = np.array(places, np.int64)

    def load(row: int) -> bytes:
        start, size = map(int, table[row])
        with open(os.path.join(folder.root, *keys[row].split("/")[:2]), "rb") as file:
            file.seek(start)
            data = file.read(size)
        if len(data) != size:
            raise IngestError(f"{keys[row]} ends after {len(data)} of {size} bytes; truncated?")
        return data

    return Samples(Pictures(keys, load), texts)


def _samples(
    folder: Folder, archive: tarfile.TarFile
) -> Iterator[tuple[tarfile.TarInfo, str | list[str]]]:
    """The pictures of an archive, sorted by name, each with its class or captions."""
    groups: dict[str, dict[str, tarfile.TarInfo]] = {}
    for member in _members(archive):
        inside, name = posixpath.split(member.name)
        stem, _, suffix = name.partition(".")
        kind = "picture" if suffix.lower() in SUFFIXES else suffix.lower()
        if not stem or kind not in ("picture", *KINDS):
            folder.ignored += 1
        elif groups.setdefault(f"{inside}/{stem}", {}).setdefault(kind, member) is not member:
            raise IngestError(
                f"{archive.name!r}: {member.name} has the key of another member; names up to the "
                "first dot must be distinct."
            )
    for key in sorted(groups):
        group = groups[key]
        kind = next((kind for kind in KINDS if kind in group), "")
        if not kind or "picture" not in group:
            raise IngestError(
                f"{archive.name!r}: {key.lstrip('/')} has {first_few(sorted(group))}, but needs a "
                "picture, and a class (.cls) or captions (.txt or .json)."
            )
        file = archive.extractfile(group[kind])
        assert file is not None
        at = f"{archive.name!r}: member {group[kind].name}"
        with reading(at):
            yield group["picture"], _text(at, kind, file.read().decode("utf-8-sig"))


def _text(at: str, kind: str, text: str) -> str | list[str]:
    """The class or the captions in a member."""
    if kind == "cls":
        return check_text(at, text)
    if kind == "txt":
        return captions_of(at, [line for line in text.split("\n") if line.strip()])
    value = json.loads(text)
    return captions_of(
        at, value.get("captions", value.get("caption")) if isinstance(value, dict) else value
    )


def _members(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The files of an archive; refuses links, devices, and an archive that ends too early."""
    end = -1
    for member in archive:
        # A negative size would lead back forever.
        if not (member.isreg() or member.isdir()) or member.issparse() or archive.offset <= end:
            raise IngestError(
                f"{archive.name!r}: member {member.name[:80]!a} is a link or a special file, or "
                "leads backwards; only plain files are read."
            )
        end = archive.offset
        if member.isreg():
            yield member
    # tarfile takes a damaged header for the end, where at least a block of zeros belongs.
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    rest = archive.fileobj.read(2**20)
    if len(rest) < 512 or rest.strip(b"\x00"):
        raise IngestError(
            f"{archive.name!r} does not end as a tar file does, at byte {archive.offset}: it is "
            "truncated, damaged, or several are in one file."
        )
