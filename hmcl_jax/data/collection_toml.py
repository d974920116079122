"""The files in which a collection describes itself: collection.toml, class names, templates.

All of it is optional. Arguments of functions take precedence over collection.toml, which takes
precedence over text files::

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

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from hmcl_jax.data.errors import IngestError
from hmcl_jax.data.folder import Folder, check_text, first_few, reading
from hmcl_jax.data.store import NAME

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


def read_settings(
    folder: Folder, known: Sequence[str] = (*FOR_PICTURES, *FOR_FEATURES), **given: Any
) -> dict[str, Any]:
    """What a folder states of itself.

    Args:
      folder: of the collection.
      known: the keys that its collection.toml may have.
      **given: settings that replace stated ones, unless they are None.

    Returns:
      The settings, checked; ``name`` and ``prompts`` have defaults, ``provenance`` includes the
      licence.
    """
    settings: dict[str, Any] = {}
    if folder.holds(FILE):
        where = folder.path / FILE
        with reading(where):
            stated = tomllib.loads(folder.read_text(FILE))
        unknown = [repr(key) for key in stated if key not in known]
        if unknown:
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
    licence = {"licence": settings["licence"]} if "licence" in settings else {}
    settings["provenance"] = {**settings.get("provenance", {}), **licence}
    return settings


def _checked(where: str, key: str, value: Any) -> Any:
    if key in ("norm", "K"):
        if not isinstance(value, int | float) or not 0 < value < 1e300:
            raise IngestError(f"{where} must be a positive number, got {str(value)[:40]!r}.")
        return float(value)
    if key in ("classes", "prompts"):
        if isinstance(value, str) or not value:
            raise IngestError(f"{where} must be a list of texts, got {str(value)[:40]!r}.")
        texts = tuple(check_text(f"{where} {i}", text) for i, text in enumerate(value, 1))
        for i, text in enumerate(texts, 1):
            if key == "prompts" and (
                text.count("{}") != 1 or text.count("{") + text.count("}") > 2
            ):
                raise IngestError(f"{where} {i} must hold {{}} once, for the class, got {text!r}.")
        return texts
    if key in ("provenance", "splits"):
        entries = value if isinstance(value, dict) else {"source": value}
        return {
            check_text(f"{where} key", name): check_text(f"{where}.{name[:40]}", text)
            for name, text in entries.items()
        }
    text = check_text(where, value)
    if key == "name" and not NAME.fullmatch(text):
        raise IngestError(
            f"{where} must be letters, digits, '_', '.' or '-', at most 64, got {text[:80]!r}; "
            f"choose one with name=... or in {FILE}."
        )
    if key == "fit" and text not in FITS:
        raise IngestError(f"{where} must be one of {', '.join(FITS)}, got {text!r}.")
    return text
