"""Looking into a collection's folder, and nowhere else.

Everything is found through listings of the folder and of folders below it, so that no path from a
table or a JSON file can lead outside: a listing has no ``..``. Symbolic links are followed as long
as they stay inside. A folder is listed once, and no file in it is opened or looked at.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hmcl_jax.data.collection import IngestError, shown

SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
LARGEST_TEXT = 2**31
LEAVES = "is a link that leaves the collection's folder"
NOWHERE = "is a link that leads nowhere"


@dataclasses.dataclass(frozen=True)
class Listing:
    """What lies in a folder, without hidden names.

    Attributes:
      files: names, sorted.
      folders: names, sorted.
      bad: names that must not be used, and why.
      hidden: number of hidden names, and of what is neither file nor folder.
    """

    files: tuple[str, ...]
    folders: tuple[str, ...]
    bad: dict[str, str]
    hidden: int

    @functools.cached_property
    def known_files(self) -> frozenset[str]:
        """To look one up."""
        return frozenset(self.files)


class Folder:
    """A collection's folder.

    Attributes:
      path: as the user gave it, for messages.
      root: without links.
    """

    def __init__(self, path: str | os.PathLike[str], links: bool = False) -> None:
        self.path = Path(path)
        self.links = links
        if not self.path.is_dir():
            found = "a file" if self.path.exists() else "nothing"
            raise IngestError(
                f"path = {str(path)!r} must be the folder of a collection, found {found} there."
            )
        self.root = os.path.realpath(path)
        self._listings: dict[str, Listing] = {}

    def listing(self, inside: str = "") -> Listing:
        """What lies in the folder `inside` of the collection."""
        if inside not in self._listings:
            way = ""
            for name in inside.split("/") if inside else []:
                above = self._list(way)
                way = f"{way}/{name}" if way else name
                if name in above.bad:
                    raise IngestError(f"{self.path}: {way} {above.bad[name]}{self._remedy(way)}")
                if name not in above.folders:
                    raise IngestError(f"{self.path}: there is no folder {way[:200]!a}.")
            self._listings[inside] = self._list(way)
        return self._listings[inside]

    def _list(self, way: str) -> Listing:
        if way in self._listings:
            return self._listings[way]
        files, folders, bad, hidden = [], [], {}, 0
        try:
            with os.scandir(os.path.join(self.root, way)) as entries:
                for entry in entries:
                    name = entry.name
                    if name.startswith("."):
                        hidden += 1
                    elif entry.is_symlink() and (reason := self._reason(entry.path)):
                        bad[name] = reason
                    elif entry.is_dir():
                        folders.append(name)
                    elif entry.is_file():
                        files.append(name)
                    else:
                        hidden += 1
        except OSError as error:
            raise IngestError(f"{self.path / way} cannot be listed: {error.strerror}.") from error
        try:
            "".join(files + folders).encode()
        except UnicodeEncodeError:
            name = next(name for name in files + folders if not _encodes(name))
            raise IngestError(
                f"{self.path / way}: the name {name!a} is not valid UTF-8; rename it."
            ) from None
        found = Listing(tuple(sorted(files)), tuple(sorted(folders)), bad, hidden)
        self._listings[way] = found
        return found

    def _reason(self, link: str) -> str | None:
        target = os.path.realpath(link)
        if not os.path.exists(target):
            return NOWHERE
        inside = target == self.root or target.startswith(os.path.join(self.root, ""))
        return None if inside or self.links else LEAVES

    def _remedy(self, name: str) -> str:
        return f"; copy what {name} links to, or allow it with links=True if the link is your own."

    def pictures(self, inside: str) -> tuple[str, ...]:
        """Names of the pictures in a folder, sorted."""
        listing = self.listing(inside)
        self.refuse_links(inside, [name for name in listing.bad if is_picture(name)])
        return tuple(name for name in listing.files if is_picture(name))

    def refuse_links(self, inside: str, names: Iterable[str]) -> None:
        """Refuses those of the names that are links to elsewhere."""
        bad = self.listing(inside).bad
        for name in sorted(names):
            if name in bad:
                way = f"{inside}/{name}".lstrip("/")
                raise IngestError(f"{self.path}: {way} {bad[name]}{self._remedy(name)}")

    def holds(self, inside: str, name: str) -> bool:
        """True if there is such a folder, and such a file or link in it."""
        try:
            listing = self.listing(inside)
        except IngestError:
            return False
        return name in listing.known_files or name in listing.bad

    def locate(self, where: str, path: Any) -> tuple[str, str]:
        """Folder and name of a file that a table names.

        Args:
          where: beginning of the message if there is no such file.
          path: relative to the collection's folder, with ``/``.

        Returns:
          Both below the collection's folder.
        """
        if not isinstance(path, str) or not path:
            raise IngestError(f"{where} must be the path of a picture, got {str(path)[:40]!r}.")
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts or not parts:
            raise IngestError(
                f"{where} is {path[:200]!a}, but pictures must lie in the collection's folder; "
                "name them by their path relative to it."
            )
        inside, name = "/".join(parts[:-1]), parts[-1]
        try:
            listing = self.listing(inside)
        except IngestError as error:
            raise IngestError(f"{where} is {path[:200]!a}: {error}") from None
        if name in listing.bad:
            raise IngestError(f"{where} {listing.bad[name]}{self._remedy(name)}")
        if name not in listing.known_files:
            raise IngestError(
                f"{where} is {path[:200]!a}, but there is no such file in the collection's folder "
                "(hidden ones do not count)."
            )
        return inside, name

    def read_text(self, inside: str) -> str:
        """A whole text file, in UTF-8, with or without a byte order mark."""
        directory, name = self.locate(f"{self.path}: the file", inside)
        file = Path(self.root, directory, name)
        try:
            if file.stat().st_size > LARGEST_TEXT:
                raise IngestError(f"{self.path / inside} is larger than {LARGEST_TEXT} bytes.")
            return file.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise IngestError(f"{self.path / inside} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise IngestError(
                f"{self.path / inside} is not UTF-8 at byte {error.start}; save it in UTF-8."
            ) from None

    def read_json(self, inside: str) -> Any:
        """A whole JSON file."""
        return parse_json(str(self.path / inside), self.read_text(inside))

    def read_lines(self, inside: str) -> list[str]:
        """The lines of a text file, without blank ones at its end."""
        lines = [line.strip() for line in self.read_text(inside).split("\n")]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def no_pictures(self, inside: str) -> str:
        """What was found in a folder where pictures were expected."""
        listing = self.listing(inside)
        return (
            f"found {len(listing.files)} other files ({shown(listing.files, 3) or 'none'}) and "
            f"{len(listing.folders)} folders there; pictures end in {', '.join(SUFFIXES)}"
        )


def parse_json(where: str, text: str) -> Any:
    """A JSON value; `where` it is from goes into the message if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{where} is not JSON: {str(error)[:200]}.") from None


def is_picture(name: str) -> bool:
    """True if the end of a file's name says that it is a picture."""
    return name.rpartition(".")[2].lower() in SUFFIXES


def _encodes(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
