"""A collection's folder: access that cannot leave it, and the settings that it states.

Every file is looked up in listings of the folder and of folders below it, so no path in a table or
a JSON file can lead outside: a listing has no ``..``. Symbolic links are followed if they stay
inside. A folder is listed once; listing opens no file.

A collection.toml may state settings. Arguments of functions take precedence over it, and it over
text files::

    name = "birds"                    # of the task
    layout = "folders"                # if several layouts are possible
    classes = ["barn owl", "wren"]    # or classnames.txt, a name on each line
    prompts = ["a photo of a {}."]
    fit = "crop"                      # or "squash"
    licence = "CC BY 4.0"
    splits = { train = "train[:90%]", test = "val" }
    provenance = { source = "counted by hand" }

Arrays of features (:func:`hmcl_jax.data.feature_arrays.read_features`) also take ``general``,
``specific``, ``space``, ``norm`` and ``K``, and have no ``splits``.
"""

import contextlib
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.store_checks import NAME

HUB = "hf:"
SUFFIXES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
SURROGATE = re.compile("[\ud800-\udfff]")  # Python's form of a byte that is not UTF-8
FILE = "collection.toml"
TEXT_FILES = {
    "classnames.txt": "classes",
    "classes.txt": "classes",
    "zeroshot_classification_templates.txt": "prompts",
}
FITS = ("crop", "squash")
PROMPT = re.compile(r"[^{}]*\{\}[^{}]*")
COMMON = ("name", "layout", "classes", "prompts", "fit", "licence", "provenance")
FOR_PICTURES = (*COMMON, "splits")
FOR_FEATURES = (*COMMON, "general", "specific", "space", "norm", "K")


class Listing(NamedTuple):
    """The content of a folder."""

    files: dict[str, None]  # names, sorted; a dict, to look one up
    folders: dict[str, None]
    hidden: int  # number of hidden names, and of entries that are neither file nor folder


class Folder:
    """A collection's folder; or ``"hf:NAME[:CONFIGURATION]"``, a data set of the hub without files.

    `path` is as it was given, `root` the real path or the hub's name, `ignored` the number of
    entries that readers left out.
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
            raise IngestError(f"path = {text!r} must be the folder of a collection.")

    def listing(self, inside: str = "") -> Listing:
        """The content of the folder `inside`, a relative path; empty if there is none."""
        if inside in self._listings:
            return self._listings[inside]
        parent, _, name = inside.rpartition("/")
        if inside and name not in self.listing(parent).folders:
            return Listing({}, {}, 0)
        files, folders, hidden = [], [], 0
        with reading(self.path / inside), os.scandir(os.path.join(self.root, inside)) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    hidden += 1
                    continue
                real = os.path.realpath(entry.path) if entry.is_symlink() else self.root
                if not (self.links or Path(real).is_relative_to(self.root)):
                    raise IngestError(
                        f"{self.path / inside / entry.name} is a link that leaves the collection's "
                        "folder; copy its target, or allow it with links=True if it is your own."
                    )
                if entry.is_dir():
                    folders.append(entry.name)
                elif entry.is_file():
                    files.append(entry.name)
                else:
                    hidden += 1
        listing = Listing(dict.fromkeys(sorted(files)), dict.fromkeys(sorted(folders)), hidden)
        self._listings[inside] = listing
        return listing

    def holds(self, path: str) -> bool:
        """Whether there is such a visible file; `path` is relative, with ``/``."""
        inside, _, name = path.rpartition("/")
        return name in self.listing(inside).files

    def locate(self, where: str, path: object) -> str:
        """The relative path of a file that a table names (at `where`), without detours."""
        known = str(PurePosixPath(check_text(where, path)))
        if not self.holds(known):
            raise IngestError(
                f"{where} is {str(path)[:200]!a}, but there is no such file; name visible files by "
                "their path in the collection's folder, without '..'."
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


def check_text(where: str, text: object) -> str:
    """The text without white space at its ends; refuses blank texts and invalid Unicode."""
    if not isinstance(text, str):
        raise IngestError(f"{where} must be a text, got {str(text)[:40]!r}.")
    text = text.strip()
    if not text or "\x00" in text or SURROGATE.search(text):
        raise IngestError(f"{where} must be valid Unicode and not be blank, got {text[:40]!a}.")
    return text


def first_few(names: Collection[object], most: int = 5) -> str:
    """The first few names and the number of the others, for messages."""
    listed = ", ".join(str(name)[:60] for name in list(names)[:most]) or "none"
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")


def read_settings(
    folder: Folder, known: Sequence[str] = (*FOR_PICTURES, *FOR_FEATURES), **given: Any
) -> dict[str, Any]:
    """The settings of a folder, checked, and replaced by the `given` ones that are not None.

    Its collection.toml may have the keys `known`. ``name`` and ``prompts`` have defaults,
    ``provenance`` includes the licence.
    """
    settings: dict[str, Any] = {}
    if folder.holds(FILE):
        where = folder.path / FILE
        with reading(where):
            stated = tomllib.loads(folder.read_text(FILE))
        if unknown := [repr(key) for key in stated if key not in known]:
            names = ", ".join(dict.fromkeys(known))
            raise IngestError(f"{where} has unknown keys: {first_few(unknown)}; known are {names}.")
        settings = {key: _checked(f"{where}: {key}", key, stated[key]) for key in stated}
    for file, key in TEXT_FILES.items():
        if folder.holds(file) and key not in settings:
            lines = folder.read_text(file).replace("{c}", "{}").rstrip().split("\n")
            settings[key] = _checked(f"{folder.path / file}: line", key, lines)
    for key, value in given.items():
        if key not in known:
            raise TypeError(f"{key} must be one of {', '.join(dict.fromkeys(known))}.")
        if value is not None:
            settings[key] = _checked(f"{folder.path}: {key}", key, value)
    if "name" not in settings:
        settings["name"] = _checked(f"{folder.path}: name", "name", folder.path.resolve().name)
    settings.setdefault("prompts", ("a photo of a {}.",))
    settings.setdefault("provenance", {})
    if "licence" in settings:
        settings["provenance"]["licence"] = settings["licence"]
    return settings


def _checked(where: str, key: str, value: Any) -> Any:
    if key in ("norm", "K"):
        if not isinstance(value, int | float) or not 0 < value < 1e300:
            raise IngestError(f"{where} must be a positive number, got {str(value)[:40]!r}.")
        return float(value)
    if key in ("provenance", "splits"):
        entries = value if isinstance(value, dict) else {"source": value}
        return {name: check_text(f"{where}.{name[:40]}", text) for name, text in entries.items()}
    if key in ("classes", "prompts"):
        if isinstance(value, str) or not value:
            raise IngestError(f"{where} must be a list of texts, got {str(value)[:40]!r}.")
        texts = tuple(check_text(f"{where} {i}", text) for i, text in enumerate(value, 1))
        for text in texts:
            if key == "prompts" and not PROMPT.fullmatch(text):
                raise IngestError(f"{where} must hold {{}} once, for the class, got {text!r}.")
        return texts
    text = check_text(where, value)
    if key == "name" and not NAME.fullmatch(text):
        raise IngestError(
            f"{where} must be up to 64 letters, digits, '_', '.' or '-', got {text[:80]!r}; give "
            "name=..."
        )
    if key == "fit" and text not in FITS:
        raise IngestError(f"{where} must be one of {', '.join(FITS)}, got {text!r}.")
    return text
