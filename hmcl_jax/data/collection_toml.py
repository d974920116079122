"""The files in which a collection describes itself: collection.toml, class names, templates.

All of it is optional::

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

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, check_text, first_few
from hmcl_jax.data.store import NAME

FILE = "collection.toml"
CLASS_FILES = ("classnames.txt", "classes.txt")
TEMPLATES = "zeroshot_classification_templates.txt"
FITS = ("crop", "squash")
PLAIN_PROMPTS = ("a photo of a {}.",)
COMMON = ("name", "layout", "classes", "prompts", "fit", "licence", "provenance")
FOR_PICTURES = (*COMMON, "splits")
FOR_FEATURES = (*COMMON, "general", "specific", "space", "norm", "K")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The content of a collection.toml; None for what it does not state."""

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

    def origin(self) -> dict[str, str]:
        """Provenance and licence."""
        licence = {} if self.licence is None else {"licence": self.licence}
        return {**self.provenance, **licence}


def read_settings(
    folder: Folder, known: Sequence[str] = (*FOR_PICTURES, *FOR_FEATURES)
) -> Settings:
    """Reads the collection.toml of a folder, if there is one.

    Args:
      folder: of the collection.
      known: the keys that may be stated.

    Returns:
      Its content.
    """
    if FILE not in folder.listing().files:
        return Settings()
    where, text = f"{folder.path / FILE}", folder.read_text(FILE)
    try:
        stated = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise IngestError(f"{where} is not TOML: {str(error)[:200]}.") from None
    unknown = [repr(key) for key in stated if key not in known]
    if unknown:
        names = ", ".join(dict.fromkeys(known))
        raise IngestError(f"{where} has unknown keys: {first_few(unknown)}; known are {names}.")
    return Settings(**{key: _checked(f"{where}: {key}", key, stated[key]) for key in stated})


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
    """A positive number as a float."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf or value > 1e300:
        raise IngestError(f"{where} must be a positive number, got {str(value)[:40]!r}.")
    return float(value)


def check_name(folder: Folder, name: str | None, settings: Settings) -> str:
    """The collection's name: the given one, the stated one, or its folder's."""
    name = name or settings.name or folder.path.resolve().name
    if not NAME.fullmatch(name):
        raise IngestError(
            f"{folder.path}: name {name[:80]!r} must be letters, digits, '_', '.' or '-', at most "
            f"64; choose one with name=... or in {FILE}."
        )
    return name


def stated_classes(folder: Folder, settings: Settings) -> tuple[str, ...] | None:
    """Class names from collection.toml or a text file; None if there are none."""
    stated = {} if settings.classes is None else {FILE: settings.classes}
    for file in CLASS_FILES:
        if file in folder.listing().files:
            where = f"{folder.path / file} line"
            lines = enumerate(folder.read_lines(file), 1)
            stated[file] = tuple(check_text(f"{where} {number}", line) for number, line in lines)
    if len(set(stated.values())) > 1:
        raise IngestError(f"{folder.path}: {' and '.join(stated)} state different classes.")
    return next(iter(stated.values()), None)


def choose_prompts(
    folder: Folder, settings: Settings, prompts: Sequence[str] | None
) -> tuple[str, ...]:
    """Prompt templates: the given ones, the stated ones, the templates file, or a plain one."""
    where = "prompts"
    if prompts is None and settings.prompts is not None:
        where, prompts = f"{folder.path / FILE}: prompts", settings.prompts
    if prompts is None and TEMPLATES in folder.listing().files:
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
    """How pictures become square: as given, as stated, or as both protocols do it."""
    fit = fit or settings.fit or ("crop" if kind == "classification" else "squash")
    if fit not in FITS:
        raise IngestError(f"{folder.path}: fit must be one of {', '.join(FITS)}, got {fit!r}.")
    return fit
