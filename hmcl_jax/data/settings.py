"""What a collection says of itself: collection.toml, class names, prompt templates.

All of it is optional::

    name = "birds"                    # of the task
    layout = "folders"                # instead of finding it out
    classes = ["barn owl", "wren"]    # or classnames.txt, a name on each line
    prompts = ["a photo of a {}."]
    fit = "crop"                      # or "squash"
    licence = "CC BY 4.0"
    splits = { train = "train[:90%]", test = "val" }
    provenance = { source = "counted by hand" }

Arrays of features (:func:`hmcl_jax.data.features.read_features`) also take ``general``,
``specific``, ``space``, ``norm`` and ``K``, and have no ``splits``.
"""

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from hmcl_jax.data.collection import IngestError, check_text, shown
from hmcl_jax.data.folder import Folder
from hmcl_jax.data.store import NAME

FILE = "collection.toml"
CLASS_FILES = ("classnames.txt", "classes.txt")
TEMPLATES = "zeroshot_classification_templates.txt"
FITS = ("crop", "squash")
PLAIN_PROMPTS = ("a photo of a {}.",)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What collection.toml states; None where it is silent."""

    name: str | None = None
    layout: str | None = None
    classes: tuple[str, ...] | None = None
    prompts: tuple[str, ...] | None = None
    fit: str | None = None
    licence: str | None = None
    splits: Mapping[str, str] | None = None
    provenance: Mapping[str, str] = dataclasses.field(default_factory=dict)
    general: str | None = None
    specific: str | None = None
    space: str | None = None
    norm: float | None = None
    K: float | None = None

    def about(self) -> dict[str, str]:
        """Provenance and licence."""
        licence = {} if self.licence is None else {"licence": self.licence}
        return {**self.provenance, **licence}

    def refuse_others(self, folder: Folder, keys: Sequence[str]) -> None:
        """Refuses what is stated, but is no matter of such a collection."""
        names = [field.name for field in dataclasses.fields(self)]
        stated = [name for name in names if getattr(self, name) not in (None, {})]
        _refuse(f"{folder.path / FILE}", [name for name in stated if name not in keys], keys)


COMMON = ("name", "layout", "classes", "prompts", "fit", "licence", "provenance")
FOR_PICTURES = (*COMMON, "splits")
FOR_FEATURES = (*COMMON, "general", "specific", "space", "norm", "K")


def read_settings(folder: Folder) -> Settings:
    """Reads a collection.toml, if there is one.

    Args:
      folder: of the collection.

    Returns:
      What it states.
    """
    if FILE not in folder.listing().known_files:
        return Settings()
    where = f"{folder.path / FILE}"
    try:
        stated = tomllib.loads(folder.read_text(FILE))
    except (ValueError, RecursionError) as error:
        if isinstance(error, IngestError):
            raise
        raise IngestError(f"{where} is not TOML: {str(error)[:200]}.") from None
    _refuse(where, [key for key in stated if key not in (*FOR_PICTURES, *FOR_FEATURES)])
    return Settings(**{key: _checked(f"{where}: {key}", key, stated[key]) for key in stated})


def _refuse(where: str, unknown: Sequence[str], known: Sequence[str] = FOR_PICTURES) -> None:
    if unknown:
        names = shown([repr(key) for key in unknown])
        raise IngestError(f"{where} has unknown keys: {names}; known are {', '.join(known)}.")


def _checked(where: str, key: str, value: Any) -> Any:
    if key in ("classes", "prompts"):
        if not isinstance(value, list) or not value:
            raise IngestError(f"{where} must be a list of texts, got {str(value)[:40]!r}.")
        return tuple(check_text(f"{where} number {i}", text) for i, text in enumerate(value, 1))
    if key in ("norm", "K"):
        return positive(where, value)
    if key in ("provenance", "splits"):
        if key == "provenance" and isinstance(value, str):
            value = {"source": value}
        if not isinstance(value, dict):
            raise IngestError(f"{where} must be a table of texts, got {str(value)[:40]!r}.")
        return {
            check_text(f"{where} key", name): check_text(f"{where}.{name[:40]}", text)
            for name, text in value.items()
        }
    return check_text(where, value)


def positive(where: str, value: Any) -> float:
    """A positive number."""
    right = isinstance(value, int | float) and not isinstance(value, bool)
    if not right or not 0 < value < math.inf:
        raise IngestError(f"{where} must be a positive number, got {str(value)[:40]!r}.")
    try:
        return float(value)
    except OverflowError:
        raise IngestError(f"{where} must be a float, got {str(value)[:40]} ....") from None


def check_name(folder: Folder, name: str | None, settings: Settings) -> str:
    """The collection's name: as told, as it says itself, or its folder's."""
    found = name or settings.name or folder.path.resolve().name
    if not NAME.fullmatch(found):
        raise IngestError(
            f"{folder.path}: name {found[:80]!r} must be letters, digits, '_', '.' or '-', at most "
            f"64; choose one with name=... or in {FILE}."
        )
    return found


def stated_classes(folder: Folder, settings: Settings) -> tuple[str, ...] | None:
    """Class names from collection.toml or a text file; None if there are none."""
    found: dict[str, tuple[str, ...]] = {}
    if settings.classes is not None:
        found[FILE] = settings.classes
    for file in CLASS_FILES:
        if file in folder.listing().known_files:
            lines = folder.read_lines(file)
            where = f"{folder.path / file} line"
            found[file] = tuple(check_text(f"{where} {i}", line) for i, line in enumerate(lines, 1))
            if not lines:
                raise IngestError(f"{folder.path / file} is empty; it needs a name on each line.")
    if len(set(found.values())) > 1:
        raise IngestError(f"{folder.path}: {' and '.join(found)} state different classes.")
    return next(iter(found.values()), None)


def choose_prompts(
    folder: Folder, settings: Settings, prompts: Sequence[str] | None
) -> tuple[str, ...]:
    """Prompt templates: as told, as stated, from the templates file, or a plain one."""
    where = "prompts"
    if prompts is None and settings.prompts is not None:
        where, prompts = f"{folder.path / FILE}: prompts", settings.prompts
    if prompts is None and TEMPLATES in folder.listing().known_files:
        where = f"{folder.path / TEMPLATES}"
        prompts = [line.replace("{c}", "{}") for line in folder.read_lines(TEMPLATES)]
    if prompts is None:
        return PLAIN_PROMPTS
    if isinstance(prompts, str) or not prompts:
        raise IngestError(f"{where} must be a list of templates, got {prompts!r}.")
    for number, prompt in enumerate(prompts, 1):
        text = check_text(f"{where} number {number}", prompt)
        if text.count("{}") != 1 or set("{}") & set(text.replace("{}", "")):
            raise IngestError(
                f"{where} number {number} must hold {{}} once, for the class name, got {text!r}."
            )
    return tuple(prompt.strip() for prompt in prompts)


def choose_fit(folder: Folder, settings: Settings, fit: str | None, kind: str) -> str:
    """How pictures become square: as told, as stated, or as both protocols do it."""
    found = fit or settings.fit or ("crop" if kind == "classification" else "squash")
    if found not in FITS:
        raise IngestError(f"{folder.path}: fit must be one of {', '.join(FITS)}, got {found!r}.")
    return found
