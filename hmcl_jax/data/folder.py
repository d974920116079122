"""Access to a collection's folder that cannot leave it.

Every file is looked up in listings of the folder and of folders below it, so no path in a table or
a JSON file can lead outside: a listing has no ``..``. Symbolic links are followed if they stay
inside. A folder is listed once; listing opens no file.
"""

import json
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from hmcl_jax.data.errors import IngestError

SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
LARGEST_TEXT = 2**31
SURROGATE = re.compile("[\ud800-\udfff]")  # Python's form of a byte that is not UTF-8


class Listing(NamedTuple):
    """The content of a folder, without hidden names.

    Attributes:
      files: names, sorted; the keys of a dict, to look one up.
      folders: names, sorted, likewise.
      bad: symbolic links that must not be followed, with the reason.
      hidden: number of hidden names, and of entries that are neither file nor folder.
    """

    files: dict[str, None]
    folders: dict[str, None]
    bad: dict[str, str]
    hidden: int


class Folder:
    """A collection's folder.

    Args:
      path: of the folder.
      links: whether symbolic links that leave the folder are followed.
    """

    def __init__(self, path: str | os.PathLike[str], links: bool = False) -> None:
        self.path, self.links = Path(path), links
        if not self.path.is_dir():
            there = "a file" if self.path.exists() else "nothing"
            raise IngestError(
                f"path = {str(path)!r} must be the folder of a collection, found {there} there."
            )
        self.root = os.path.realpath(path)
        self._listings: dict[str, Listing] = {}

    def listing(self, inside: str = "") -> Listing:
        """The content of the folder `inside`, a relative path with ``/``."""
        if inside not in self._listings:
            parent, _, name = inside.rpartition("/")
            if inside:
                self.refuse_links(parent, [name])
                if name not in self.listing(parent).folders:
                    raise IngestError(f"{self.path}: there is no folder {inside[:200]!a}.")
            self._listings[inside] = self._list(inside)
        return self._listings[inside]

    def _list(self, inside: str) -> Listing:
        files, folders, bad, hidden = [], [], {}, 0
        try:
            with os.scandir(os.path.join(self.root, inside)) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        hidden += 1
                    elif entry.is_symlink() and (reason := self._why_bad(entry.path)):
                        bad[entry.name] = reason
                    elif entry.is_dir():
                        folders.append(entry.name)
                    elif entry.is_file():
                        files.append(entry.name)
                    else:
                        hidden += 1
        except OSError as error:
            raise IngestError(
                f"{self.path / inside} cannot be listed: {error.strerror}."
            ) from error
        name = next(filter(SURROGATE.search, (*files, *folders)), None)
        if name is not None:
            raise IngestError(f"{self.path / inside}: rename {name!a}, which is not valid UTF-8.")
        return Listing(dict.fromkeys(sorted(files)), dict.fromkeys(sorted(folders)), bad, hidden)

    def _why_bad(self, link: str) -> str | None:
        target = os.path.realpath(link)
        if not os.path.exists(target):
            return "is a link that leads nowhere"
        if self.links or target == self.root or target.startswith(os.path.join(self.root, "")):
            return None
        return "is a link that leaves the collection's folder"

    def refuse_links(self, inside: str, names: Iterable[str] | None = None) -> None:
        """Refuses links of the folder `inside` that must not be followed, or some of them."""
        bad = self.listing(inside).bad
        for name in sorted(bad if names is None else bad.keys() & set(names)):
            path = f"{inside}/{name}".lstrip("/")
            raise IngestError(
                f"{self.path}: {path} {bad[name]}; copy its target to its place, or allow it with "
                "links=True if the link is your own."
            )

    def pictures(self, inside: str) -> list[str]:
        """The names of the pictures in a folder, sorted."""
        listing = self.listing(inside)
        self.refuse_links(inside, filter(is_picture, listing.bad))
        return [name for name in listing.files if is_picture(name)]

    def holds(self, path: str) -> bool:
        """Whether there is such a file or link; `path` is relative, with ``/``."""
        inside, _, name = path.rpartition("/")
        try:
            listing = self.listing(inside)
        except IngestError:
            return False
        return name in listing.files or name in listing.bad

    def locate(self, where: str, path: Any) -> str:
        """The relative path of a file that a table names, without detours.

        Args:
          where: the place of the path, for messages.
          path: relative to the collection's folder, with ``/``.
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
            self.refuse_links(inside, [name])
        except IngestError as error:
            raise IngestError(f"{where} is {path[:200]!a}: {error}") from None
        if name not in self.listing(inside).files:
            raise IngestError(
                f"{where} is {path[:200]!a}, but there is no such file in the collection's folder "
                "(hidden ones do not count)."
            )
        return "/".join(parts)

    def read_text(self, path: str) -> str:
        """A whole text file, in UTF-8, with or without a byte order mark."""
        file = Path(self.root, self.locate(f"{self.path}: the file", path))
        try:
            if file.stat().st_size > LARGEST_TEXT:
                raise IngestError(f"{self.path / path} is larger than {LARGEST_TEXT} bytes.")
            return file.read_bytes().decode("utf-8-sig")
        except OSError as error:
            raise IngestError(f"{self.path / path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise IngestError(
                f"{self.path / path} is not UTF-8 at byte {error.start}; save it in UTF-8."
            ) from None

    def read_lines(self, path: str) -> list[str]:
        """The lines of a text file, without blank ones at its end."""
        return [line.strip() for line in self.read_text(path).rstrip().split("\n")]


def is_picture(name: str) -> bool:
    """Whether the end of a file's name says that it is a picture."""
    return name.rpartition(".")[2].lower() in SUFFIXES


def parse_json(where: str, text: str) -> Any:
    """A JSON value; `where` begins the message if the text is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{where} is not JSON: {str(error)[:200]}.") from None


def check_text(where: str, text: object) -> str:
    """The text without white space at its ends; refuses blank texts and invalid Unicode."""
    if not isinstance(text, str):
        raise IngestError(f"{where} must be a text, got {str(text)[:40]!r}.")
    text = text.strip()
    if SURROGATE.search(text):
        raise IngestError(f"{where} is not valid Unicode: {text[:40]!a}.")
    if not text or "\x00" in text:
        raise IngestError(f"{where} must not be blank or hold a null, got {text[:40]!r}.")
    return text


def first_few(names: Collection[object], most: int = 5) -> str:
    """The first few names and the number of the others, for messages."""
    listed = ", ".join(str(name)[:60] for name in list(names)[:most]) or "none"
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
