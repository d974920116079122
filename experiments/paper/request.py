"""What a reproduction is asked for: checked first, shown on its page, and kept with it.

A page is replaced only by one that says at least as much: the same settings, and all of its tables
and streams. Runs are told apart by what they compute and are never in the way of each other.
"""

import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError, RunError
from hmcl_jax.continual.config import read_toml
from hmcl_jax.data.store import Store
from hmcl_jax.data.suites import SUITES
from paper.measured import MEASURED
from paper.plan import CONFIGS
from paper.runs import RUNS
from paper.tables import read_tables

KIND = "hmcl_jax reproduction"
FILES = (
    "reproduction.json",
    "reproduction.md",
    "reproduction.html",
)  # the first says whose all are
PREFIXES = ("mr_", "ca_")  # the claims take such rows for the paper's


def check_names(users: Mapping[str, str]) -> None:
    """Refuses methods of the user's that would be taken for rows of the paper's.

    Args:
      users: where each method is from, by name.

    Raises:
      ConfigError: naming where it is from, the name and what to do.
    """
    taken = {name.lower() for name in _known_rows()}
    for name, source in users.items():
        if name.lower() in taken or name.lower().startswith(PREFIXES):
            raise ConfigError(
                f"{source}: {name!r} is, or looks like, a row of the paper's tables or a name in "
                "experiments/configs; give the method another name in METHODS."
            )


def _known_rows() -> set[str]:
    """All names of rows: in the paper's tables, and of methods in the configs."""
    found = {m for table in read_tables().values() for rows in table.blocks.values() for m in rows}
    for path in CONFIGS.parent.rglob("*.toml"):
        raw = read_toml(path)
        for part in (raw, *raw.get("variants", {}).values()):
            found |= part.get("methods", {}).keys()
    return found


def check_folder(out: Path) -> None:
    """Refuses an --out that cannot be written to.

    Raises:
      RunError: naming the path and what to do.
    """
    if not str(out).strip(". "):
        raise RunError("--out is empty, or this very folder; name one for the runs and the page.")
    for path in (out, out / RUNS, out / MEASURED):
        if (path.exists() or path.is_symlink()) and not path.is_dir():
            raise RunError(f"--out {out}: {path} is no folder; choose another --out.")
    above = out.absolute()
    while not above.exists():
        above = above.parent
    try:
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        what = error.strerror or error
        raise RunError(
            f"--out {out} cannot be written in {above}: {what}; choose another --out."
        ) from error


def check_page(out: Path, request: Mapping[str, Any], replace: bool) -> None:
    """Refuses to overwrite a page that is not ours, or that would lose something.

    Args:
      out: the folder.
      request: what is asked for now.
      replace: whether the page of another request may be replaced. Foreign files may not.

    Raises:
      RunError: naming the file and what to do.
    """
    there = [out / name for name in FILES if (out / name).exists() or (out / name).is_symlink()]
    if not there:
        return
    try:
        about = json.loads((out / FILES[0]).read_text("utf8"))["about"]
        ours = about.get("kind") == KIND or {"lead", "inconsistencies"} <= about.keys()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        ours = False
    if not ours or not all(path.is_file() for path in there):
        raise RunError(f"{there[0]} is not of reproduce.py; move it away, or choose another --out.")
    known = about.get("request")
    lost = _lost(known, request) if isinstance(known, Mapping) else ["it does not say for what"]
    if lost and not replace:
        raise RunError(
            f"{out / FILES[-1]} was made for something else: {'; '.join(lost)}. --replace replaces "
            "the page (its runs stay), or choose another --out."
        )


def _lost(known: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """What a page has that one for a new request would not have."""
    lost = []
    if names := [name for name in known.get("names", []) if name not in request["names"]]:
        lost.append(f"it also has {', '.join(names)}")
    for stream, fingerprint in known.get("streams", {}).items():
        if request["streams"].get(stream) != fingerprint:
            lost.append(f"it has {stream} from a store of fingerprint {str(fingerprint)[:12]}")
    for key, option in (("set", "--set"), ("seeds", "--seeds")):
        if known.get(key) != request[key]:
            lost.append(f"it has {option} {_said(known.get(key))}, not {_said(request[key])}")
    codes = [
        {name: entry["code"] for name, entry in dict(one.get("methods", {})).items()}
        for one in (known, request)
    ]
    if codes[0] != codes[1]:
        listed = [", ".join(f"{n} ({c[-12:]})" for n, c in one.items()) or "none" for one in codes]
        lost.append(f"it has the added methods {listed[0]}, not {listed[1]}")
    return lost


def _said(values: Sequence[Any] | None) -> str:
    return ",".join(map(str, values)) if values else "none"


def store_warnings(paths: Mapping[str, str], stores: Mapping[str, Store]) -> list[str]:
    """What looks wrong about the stores: given twice, or of another backbone or other tasks.

    Args:
      paths: by stream, as given; empty for embedded streams.
      stores: those that are opened, by stream.

    Returns:
      Sentences.
    """
    found: list[str] = []
    first: dict[str, str] = {}
    for stream, path in paths.items():
        store = stores.get(stream)
        keys = [str(Path(path).resolve()), *([store.fingerprint] if store else [])]
        if same := [first[key] for key in keys if key in first]:
            found.append(
                f"--store {same[0]} and --store {stream} are one store, {path}; their tables "
                "differ by settings alone."
            )
        for key in keys:
            first.setdefault(key, stream)
        if store is None:
            continue
        asked = stream.removesuffix("-modalities")
        made = store.backbone.split("/")[0].lower().removesuffix("-modalities")
        if made != asked:
            found.append(
                f"--store {stream}={path} holds features of the backbone {store.backbone!r}, "
                f"not of {asked}; is it the right store?"
            )
        found += [f"--store {stream}={path} {what}" for what in _unlike(stream, store)]
    return found


def _unlike(stream: str, store: Store) -> list[str]:
    """In what a store differs from the paper's stream, so that its numbers do not compare."""
    wanted = [entry.name for entry in SUITES["hmcl16"]]
    found = []
    if stream.endswith("-modalities"):
        wanted.remove("imagenet")
        if {"text", "image"} >= {m for task in store for m in (task.general, task.specific)}:
            found.append("has no modality but text and image.")
    if lacks := [name for name in wanted if name not in store.orders["canonical"]]:
        found.append(
            f"lacks {len(lacks)} of the paper's {len(wanted)} tasks ({', '.join(lacks[:3])}"
            f"{', ...' if len(lacks) > 3 else ''}): its numbers do not compare with the paper's."
        )
    if store.dimension != 512:
        found.append(f"has points in {store.dimension} dimensions; the paper's are in 512.")
    return found


def told(request: Mapping[str, Any], changed: bool) -> str:
    """Sentences on what is not as in the configs, for the head of the page; may be empty.

    Args:
      request: what is asked for.
      changed: whether that changes any run of the paper's methods.
    """
    given = _options(request)
    text = ""
    if given:
        head = "Not the paper's settings" if changed else "Given, but no run differs for it"
        text += f" {head}: {' '.join(given)}."
    if request["methods"]:
        listed = [
            f"{name} ({entry['source']}, SHA-256 {entry['code'][-64:][:12]})"
            for name, entry in request["methods"].items()
        ]
        text += f" Not the paper's methods, in rows of their own: {', '.join(listed)}."
    return text


def _options(request: Mapping[str, Any]) -> list[str]:
    options = [f"--set {text}" for text in request["set"]]
    return options + ([f"--seeds {_said(request['seeds'])}"] if request["seeds"] else [])


def provenance(request: Mapping[str, Any], warnings: Iterable[str]) -> list[list[str]]:
    """The request as rows of a table: what, and its value."""
    rows = [
        ["asked for", ", ".join(request["names"])],
        ["settings given", " ".join(_options(request)) or "none"],
    ]
    rows += [
        [f"code of {name}", f"{entry['source']}: {entry['code']}"]
        for name, entry in request["methods"].items()
    ]
    return rows + [["warning", text] for text in warnings]
