"""What a reproduction is asked for: checked first, shown on its page, and kept with it.

A page is replaced only by one that says at least as much: the same settings, and all of its tables
and streams. Runs are identified by what they compute and never collide.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError, RunError
from hmcl_jax.continual.config import read_toml
from hmcl_jax.data.store import Store
from hmcl_jax.data.suites import SUITES
from paper.plan import CONFIGS, Item
from paper.published import read_tables

KIND = "hmcl_jax reproduction"
# The first says which request all of them answer.
FILES = ("reproduction.json", "reproduction.md", "reproduction.html")
PREFIXES = ("mr_", "ca_")  # the claims take such rows for the paper's
FIXED = ("stream", "order", "seeds", "methods", "paper", "variants")  # what the tables are of


def check_names(users: Mapping[str, str]) -> None:
    """Refuses methods of the user's (sources by name) that could be taken for the paper's rows."""
    taken = {m for table in read_tables().values() for rows in table.blocks.values() for m in rows}
    for path in CONFIGS.parent.rglob("*.toml"):
        raw = read_toml(path)
        for part in (raw, *raw.get("variants", {}).values()):
            taken |= part.get("methods", {}).keys()
    taken = {name.lower() for name in taken}
    for name, source in users.items():
        if name.lower() in taken or name.lower().startswith(PREFIXES):
            raise ConfigError(
                f"{source}: {name!r} is, or looks like, a row of the paper's tables or a name in "
                "experiments/configs; give the method another name in METHODS."
            )


def check_settings(overrides: Sequence[str], items: Sequence[Item] = ()) -> None:
    """Refuses settings that would make another table of a table, or of methods that none has."""
    known = {
        name
        for item in items
        for labels in item.jobs.values()
        for label, job in labels.items()
        for name in (label, job.method)
    }
    for text in overrides:
        key = text.partition("=")[0].strip()
        parts = key.split(".")
        of_row = parts[0] == "methods" and (len(parts) == 2 or parts[2] in ("method", "variant"))
        if (parts[0] in FIXED and (len(parts) == 1 or parts[0] != "methods")) or of_row:
            raise ConfigError(
                f"--set {text}: {key} is what a table is of, and cannot be set here; --seeds sets "
                "seeds, `hmcl run` runs whatever you like."
            )
        if known and parts[0] == "methods" and parts[1] not in known:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"--set {text}: no table has {parts[1]!r}; the rows are {listed}.")


def check_page(out: Path, request: Mapping[str, Any], replace: bool) -> None:
    """Refuses to overwrite a page that is not ours, or, without `replace`, says more than ours."""
    there = [out / name for name in FILES if (out / name).exists()]
    if not there:
        return
    try:
        about = json.loads((out / FILES[0]).read_text("utf8"))["about"]
        known = about["request"] if about["kind"] == KIND else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        known = None
    if not isinstance(known, dict) or not all(path.is_file() for path in there):
        raise RunError(f"{there[0]} is not of reproduce.py; move it away, or choose another --out.")
    if (lost := _lost(known, request)) and not replace:
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
    for key in ("set", "seeds", "methods"):
        then, now = (one.get(key) or "none" for one in (known, request))
        if key == "methods":  # by their code, wherever the files are
            then, now = (
                {name: entry["code"] for name, entry in one.get(key, {}).items()} or "none"
                for one in (known, request)
            )
        if then != now:
            lost.append(f"{key}: it has {json.dumps(then)}, not {json.dumps(now)}")
    return lost


def store_warnings(paths: Mapping[str, str], stores: Mapping[str, Store]) -> list[str]:
    """What looks wrong about the stores: given twice, or of another backbone or other tasks."""
    warnings: list[str] = []
    first: dict[str, str] = {}
    for stream, path in paths.items():
        if stream not in stores:  # no table needs it
            continue
        store = stores[stream]
        same = first.setdefault(store.fingerprint, stream)
        if same != stream:
            warnings.append(
                f"--store {same} and --store {stream} are one store, {path}; their tables "
                "differ by settings alone."
            )
        warnings += [f"--store {stream}={path} {text}" for text in _unlike(stream, store)]
    return warnings


def _unlike(stream: str, store: Store) -> list[str]:
    """In what a store differs from the paper's stream, so that its numbers do not compare."""
    wanted, texts = [entry.name for entry in SUITES["hmcl16"]], []
    backbone = stream.removesuffix("-modalities")
    if store.backbone.split("/")[0].lower().removesuffix("-modalities") != backbone:
        texts.append(
            f"holds features of the backbone {store.backbone!r}, not of {backbone}; is it the "
            "right store?"
        )
    if stream.endswith("-modalities"):
        wanted.remove("imagenet")
        if {"text", "image"} >= {m for task in store for m in (task.general, task.specific)}:
            texts.append("has no modality but text and image.")
    if lacks := [name for name in wanted if name not in store.orders["canonical"]]:
        texts.append(
            f"lacks {len(lacks)} of the paper's {len(wanted)} tasks ({', '.join(lacks[:3])}"
            f"{', ...' if len(lacks) > 3 else ''}): its numbers do not compare with the paper's."
        )
    if store.dimension != 512:
        texts.append(f"has points in {store.dimension} dimensions; the paper's are in 512.")
    return texts


def deviations(request: Mapping[str, Any]) -> str:
    """Sentences on settings that differ from the configs, for the page; may be empty."""
    given = given_options(request)
    text = f" Not the paper's settings: {given}." if given else ""
    if request["methods"]:
        listed = [
            f"{name} ({entry['source']}, SHA-256 {entry['code'][-64:][:12]})"
            for name, entry in request["methods"].items()
        ]
        text += f" Not the paper's methods, in rows of their own: {', '.join(listed)}."
    return text


def given_options(request: Mapping[str, Any]) -> str:
    """The options of the command line that change settings."""
    words = [f"--set {text}" for text in request["set"]]
    if request["seeds"]:
        words.append(f"--seeds {','.join(map(str, request['seeds']))}")
    return " ".join(words)


def provenance(request: Mapping[str, Any], warnings: Sequence[str]) -> list[list[str]]:
    """The request as rows of a table: what, and its value."""
    tables, given = ", ".join(request["names"]), given_options(request) or "none"
    rows = [["tables", tables], ["settings given", given]]
    for name, entry in request["methods"].items():
        rows.append([f"code of {name}", f"{entry['source']}: {entry['code']}"])
    return rows + [["warning", text] for text in warnings]
