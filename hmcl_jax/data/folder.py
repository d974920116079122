"""Access to a collection's folder that cannot leave it.

Every file is looked up in listings of the folder and of folders below it, so no path in a table or
a JSON file can lead outside: a listing has no ``..``. Symbolic links are followed if they stay
inside. A folder is listed once; listing opens no file.
"""

import contextlib
import os
import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from hmcl_jax.data.errors import IngestError

HUB = "hf:"
SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
SURROGATE = re.compile("[\ud800-\udfff]")  # Python's form of a byte that is not UTF-8


class Listing(NamedTuple):
    """The content of a folder.

    Attributes:
      files: names, sorted; the keys of a dict, to look one up.
      folders: names, sorted, likewise.
      hidden: number of hidden names, and of entries that are neither file nor folder.
    """

    files: dict[str, None]
    folders: dict[str, None]
    hidden: int


class Folder:
    """A collection's folder, or the name of a data set of the hub, which holds no files of ours.

    Attributes:
      path: as it was given, for messages.
      root: the real path; of a data set of the hub its name.
      ignored: number of entries that readers have left out.

    Args:
      path: of the folder, or ``"hf:NAME"`` or ``"hf:NAME:CONFIGURATION"``.
      links: whether symbolic links that leave the folder are followed.
    """

    def __init__(self, path: str | os.PathLike[str], links: bool = False) -> None:
        text = os.fspath(path)
        self.links, self.on_hub, self.ignored = links, text.startswith(HUB), 0
        self._listings: dict[str, Listing] = {}
        if self.on_hub:
            self.root, _, self.configuration = text.removeprefix(HUB).partition(":")
            self.path, self._listings[""] = Path(self.root), Listing({}, {}, 0)
            return
        self.path, self.root, self.configuration = Path(path), os.path.realpath(path), ""
        if not self.path.is_dir():
            there = "a file" if self.path.exists() else "nothing"
            raise IngestError(
                f"path = {text!r} must be the folder of a collection, but there is {there}."
            )

    def listing(self, inside: str = "") -> Listing:
        """The content of the folder `inside`, a relative path with ``/``; empty if there is none.

        Raises:
          IngestError: if a symbolic link in it leaves the collection's folder.
        """
        if inside not in self._listings:
            parent, _, name = inside.rpartition("/")
            there = not inside or name in self.listing(parent).folders
            self._listings[inside] = self._list(inside) if there else Listing({}, {}, 0)
        return self._listings[inside]

    def _list(self, inside: str) -> Listing:
        files, folders, hidden = [], [], 0
        with reading(self.path / inside), os.scandir(os.path.join(self.root, inside)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    hidden += 1
                    continue
                if entry.is_symlink() and not self.links and self._leaves(entry.path):
                    raise IngestError(
                        f"{self.path}: {posixpath.join(inside, entry.name)} is a link that leaves "
                        "the collection's folder; copy its target to its place, or allow it with "
                        "links=True if the link is your own."
                    )
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    files.append(entry.name)
                else:
                    hidden += 1
        return Listing(dict.fromkeys(sorted(files)), dict.fromkeys(sorted(folders)), hidden)

    def _leaves(self, link: str) -> bool:
        return not Path(os.path.realpath(link)).is_relative_to(self.root)

    def holds(self, path: str) -> bool:
        """Whether there is such a visible file; `path` is relative, with ``/``."""
        inside, _, name = path.rpartition("/")
        return name in self.listing(inside).files

    def locate(self, where: str, path: object) -> str:
        """The relative path of a file that a table names, without detours.

        Args:
          where: the place of the path, for messages.
          path: relative to the collection's folder, with ``/``.
        """
        known = str(PurePosixPath(check_text(where, path)))
        if not self.holds(known):
            raise IngestError(
                f"{where} is {str(path)[:200]!a}, but there is no such file in the collection's "
                "folder; name pictures by their path relative to it, without '..'. Hidden files do "
                "not count."
            )
        return known

    def read_text(self, path: str) -> str:
        """A whole text file, in UTF-8, with or without a byte order mark."""
        with reading(self.path / path):
            return Path(self.root, path).read_text("utf-8-sig")


@contextlib.contextmanager
def reading(what: object) -> Iterator[None]:
    """Names the file in the many kinds of errors that damaged files cause in libraries."""
    try:
        yield
    except (IngestError, ImportError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error)[:300]}"
        raise IngestError(f"{what} cannot be read: {reason}") from error


def is_picture(name: str) -> bool:
    """Whether the end of a file's name says that it is a picture."""
    return name.rpartition(".")[2].lower() in SUFFIXES


def check_text(where: str, text: object) -> str:
    """The text without white space at its ends; refuses blank texts and invalid Unicode."""
    if not isinstance(text, str):
        raise IngestError(f"{where} must be a text, got {str(text)[:40]!r}.")
    text = text.strip()
    if not text or "\x00" in text or SURROGATE.search(text):
        raise IngestError(
            f"{where} must be valid Unicode, not be blank and hold no null, got {text[:40]!a}."
        )
    return text


def first_few(names: Collection[object], most: int = 5) -> str:
    """The first few names and the number of the others, for messages."""
    listed = ", ".join(str(name)[:60] for name in list(names)[:most]) or "none"
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
