"""Reproduces the paper's tables and figures, its numbers beside ours.

    python experiments/reproduce.py --all --stream pocket
    python experiments/reproduce.py main drift --store meru-l=PATH --store meru-b=PATH \
        --store hycoclip-b=PATH --out runs/paper
    python experiments/reproduce.py --all --stream pocket --plan
    python experiments/reproduce.py main --stream pocket --method-file mine.py --out runs/mine

NAME is a config in experiments/configs/paper, which says what it needs and costs. Runs what is
missing and goes on with what was stopped, at any moment; tables share runs. Then writes to --out
reproduction.html (the page), the same as reproduction.md, and reproduction.json (all numbers). A
page that has something else is replaced only with --replace: other settings, further tables.
With --stream pocket the embedded streams stand in for the paper's data. --method-file adds your own
methods to all tables; the file is executed. --plugin does so for an installed package.
"""

import argparse
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hmcl_jax._files import json_text
from hmcl_jax._versions import versions
from hmcl_jax.cli.options import (
    add_cache,
    add_methods,
    load_added_methods,
    prepare_jax,
    split_seeds,
)
from hmcl_jax.cli.progress import ProgressView
from hmcl_jax.continual import ConfigError, RunError, make_method
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store
from hmcl_jax.data.validation import StoreError
from hmcl_jax.report.results import write_files
from paper.compare import as_json, counted, markdown, verdict_rows
from paper.cost import plan_table
from paper.needs import lacking
from paper.page import html
from paper.plan import NAMES, Item, Job, about_of, known_streams, read_item, streams_of
from paper.request import (
    FILES,
    KIND,
    check_folder,
    check_names,
    check_page,
    provenance,
    store_warnings,
    told,
)
from paper.runs import run_jobs, unique
from paper.sections import Setting, left_out, make_section
from paper.tables import TABLES

EXPECTED = (ConfigError, StoreError, RunError)
FIXED = ("stream", "order", "seeds", "methods", "paper", "variants")  # what the tables are


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="every NAME")
    parser.add_argument(
        "--store",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"a store of one of {', '.join(known_streams())}; may be repeated",
    )
    parser.add_argument("--stream", choices=("pocket",), help="the embedded stream, for trials")
    parser.add_argument(
        "--out", default="runs/reproduced", help="folder for all; default: %(default)s"
    )
    parser.add_argument(
        "--replace", action="store_true", help="replace the page of another request in --out"
    )
    parser.add_argument("--plan", action="store_true", help="print the runs and their cost only")
    parser.add_argument("--seeds", help="whole numbers, instead of the configs'")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--synsets", help="file with ImageNet's synsets, one per line, for hierarchy"
    )
    parser.add_argument(
        "--wordnet", help="folder of WordNet 3.0, if it is not where packages put it"
    )
    add_methods(parser)
    add_cache(parser)
    found = parser.parse_args(arguments)
    if bool(found.names) == found.all:
        parser.error("name tables, or --all")
    if bool(found.store) == bool(found.stream):
        parser.error("either --store NAME=PATH, once or more, or --stream pocket")
    return found


def read_stores(given: Sequence[str]) -> dict[str, str]:
    """Paths by stream."""
    stores: dict[str, str] = {}
    for text in given:
        name, _, path = text.partition("=")
        if name not in known_streams() or not path or name in stores:
            raise ConfigError(
                f"--store is written NAME=PATH, once each, with NAME one of "
                f"{', '.join(known_streams())}; got {text!r}."
            )
        stores[name] = path
    return stores


def open_store(stream: str, paths: Mapping[str, str]) -> Store:
    """The store that was given for a stream, or the embedded one of that name."""
    if stream not in paths:
        return EMBEDDED[stream]()
    path = paths[stream]
    if not Path(path).exists():
        raise StoreError(f"--store {stream}={path}: there is nothing at {path}; correct the path.")
    try:
        return read_store(path)
    except StoreError as error:
        raise StoreError(f"--store {stream}={path}: {error}") from error


def read_items(
    arguments: argparse.Namespace, extra: Sequence[str]
) -> tuple[list[Item], dict[str, Store], list[dict[str, Any]]]:
    """Tables that can be made, the stores they need, and sections for those that cannot."""
    paths = read_stores(arguments.store)
    pocket = arguments.stream == "pocket"
    seeds = split_seeds(arguments.seeds)
    items: list[Item] = []
    stores: dict[str, Store] = {}
    missing: list[dict[str, Any]] = []
    for name in asked_names(arguments):
        there, gone = streams_of(name, paths, pocket)
        if gone:
            names = " ".join(f"--store {stream}=PATH" for stream in gone)
            missing.append(left_out(name, ", ".join(gone), f"it needs {names}."))
        for stream in there:
            item = read_item(name, stream, arguments.set, extra, seeds)
            try:
                stores[stream] = stores.get(stream) or open_store(stream, paths)
            except StoreError as error:
                if not pocket:
                    raise
                missing.append(left_out(name, stream, str(error)))
                continue
            why = lacking(item, stores[stream], arguments.synsets, arguments.wordnet)
            if why is None:
                items.append(item)
            else:
                missing.append(left_out(name, stream, why))
    if not items:
        reasons = " ".join(f"{section['name']}: {section['missing']}" for section in missing)
        raise ConfigError(f"Nothing can be made. {reasons}")
    return items, stores, missing


def asked_names(arguments: argparse.Namespace) -> list[str]:
    """The tables that are asked for, each once, in the order of the page."""
    for name in arguments.names:
        about_of(name)  # refuses unknown ones
    return [name for name in NAMES if arguments.all or name in arguments.names]


def read_request(
    arguments: argparse.Namespace, stores: Mapping[str, Store], users: Mapping[str, str]
) -> dict[str, Any]:
    """All that decides what is on the page, as plain data."""
    return {
        "names": asked_names(arguments),
        "streams": {name: store.fingerprint for name, store in stores.items()},
        "set": arguments.set,
        "seeds": split_seeds(arguments.seeds),
        "methods": {
            name: {"source": source, "code": make_method(name).code}
            for name, source in users.items()
        },
    }


def check_settings(overrides: Sequence[str]) -> None:
    """Refuses settings that would make another table of a table.

    Raises:
      ConfigError: naming the setting.
    """
    for text in overrides:
        key = text.partition("=")[0].strip()
        parts = key.split(".")
        if key in FIXED or parts[0] in ("paper", "variants") or parts[2:] == ["method"]:
            raise ConfigError(
                f"--set {text}: {key} is what a table is of, and cannot be set here; --seeds sets "
                "seeds, experiments/run_stream.py runs whatever you like."
            )


def check_rows(overrides: Sequence[str], items: Sequence[Item]) -> None:
    """Refuses settings of methods that no table has, or that make another method of a row.

    Raises:
      ConfigError: naming the setting and the rows.
    """
    for item in items:
        plain = read_item(item.name, item.stream)
        for order, labels in plain.jobs.items():
            for label, job in labels.items():
                given = item.jobs[order][label]
                if _kind(given) != _kind(job):
                    raise ConfigError(
                        f"--set {' '.join(overrides)}: {label} is {' '.join(_kind(job))} in "
                        f"{item.name}, not {' '.join(_kind(given))}; experiments/run_stream.py "
                        "runs whatever you like."
                    )
    known = {
        name
        for item in items
        for labels in item.jobs.values()
        for label, job in labels.items()
        for name in (label, job.method)
    }
    for text in overrides:
        parts = text.partition("=")[0].strip().split(".")
        if parts[0] == "methods" and parts[1] not in known:
            listed = ", ".join(sorted(known))
            raise ConfigError(f"--set {text}: no table has {parts[1]!r}; the rows are {listed}.")


def _kind(job: Job) -> list[str]:
    """The method of a run, and its variant if it has one."""
    described = make_method(job.method, job.settings).described()
    return [job.method, *([described["variant"]] if "variant" in described else [])]


def differs(items: Sequence[Item], users: Mapping[str, str]) -> bool:
    """Whether what was given on the command line changes a run of the package's methods."""

    def folders(item: Item) -> set[str]:
        jobs = (job for labels in item.jobs.values() for job in labels.values())
        return {job.folder for job in jobs if job.method not in users}

    return any(folders(item) != folders(read_item(item.name, item.stream)) for item in items)


def checkpoints_kept(
    arguments: argparse.Namespace, stores: Mapping[str, Store], extra: Sequence[str]
) -> set[str]:
    """Runs of which all checkpoints stay: those of main, whose drift may be asked for later."""
    about = about_of("main")
    streams = [name for name in stores if name in (*about["streams"], about["pocket"])]
    seeds = split_seeds(arguments.seeds)
    return set(unique(read_item("main", name, arguments.set, extra, seeds) for name in streams))


def main() -> None:
    arguments = parse()
    prepare_jax(arguments)
    start = time.perf_counter()
    try:
        out = Path(arguments.out)
        check_folder(out)
        check_settings(arguments.set)
        users = load_added_methods(arguments)
        check_names(users)
        items, stores, missing = read_items(arguments, list(users))
        check_rows(arguments.set, items)
        request = read_request(arguments, stores, users)
        if not arguments.plan:
            check_page(out, request, arguments.replace)
        warnings = store_warnings(read_stores(arguments.store), stores)
        for text in warnings:
            print(f"reproduce: warning: {text}", file=sys.stderr)
        jobs = unique(items)
        print(plan_table(items, jobs, stores, out), flush=True)
        if arguments.plan:
            tell_missing(missing)
            return
        with ProgressView(tuple(jobs), Console()) as view:
            whole = checkpoints_kept(arguments, stores, list(users))
            results, failures = run_jobs(jobs, stores, out, view, whole)
        same = arguments.stream is None
        setting = Setting(stores, out, list(users), same, arguments.synsets, arguments.wordnet)
        sections = [make_section(item, results, failures, setting) for item in items] + missing
        about = {
            "kind": KIND,
            "request": request,
            "lead": lead(arguments, stores, warnings) + told(request, differs(items, users)),
            "asked": provenance(request, warnings),
            "inconsistencies": tomllib.loads(
                (TABLES.parent / "inconsistencies.toml").read_text("utf8")
            )["found"],
            "versions": versions(),
            "stores": {name: store.fingerprint for name, store in stores.items()},
            "seconds": time.perf_counter() - start,
        }
        written = write_page(out, sections, about)
    except EXPECTED as error:
        sys.exit(f"reproduce: {error}")
    except OSError as error:
        where, what = error.filename or arguments.out, error.strerror or error
        sys.exit(f"reproduce: {where}: {what}; once this is mended, the same command goes on.")
    except KeyboardInterrupt:
        print("\nreproduce: stopped; the same command goes on.", file=sys.stderr)
        sys.exit(130)
    verdicts = [verdict for section in sections for verdict in section.get("verdicts", ())]
    for verdict in verdict_rows(verdicts)[1:]:
        print(f"{verdict[2].strip('*')}: {verdict[0]} ({verdict[1]})")
    if verdicts:
        print(counted(verdicts))
    tell_missing(sections)
    print(f"{time.perf_counter() - start:.0f} s; wrote {', '.join(map(str, written))}")


def tell_missing(sections: Sequence[Mapping[str, Any]]) -> None:
    """Prints what is not on the page, and why."""
    for section in sections:
        where = f"{section['name']} on {section['stream']}"
        if "missing" in section:
            print(f"not made: {where}: {section['missing']}")
        for note in section.get("notes", ()):
            print(f"{where}: {note}")


def lead(
    arguments: argparse.Namespace, stores: Mapping[str, Store], warnings: Sequence[str] = ()
) -> str:
    """What this page is of."""
    names = ", ".join(f"{name} ({store.name})" for name, store in stores.items())
    text = f"The paper's tables from stores of its backbones: {names}."
    if arguments.stream:
        text = f"The paper's protocols on embedded data: {names}. Percent unless said otherwise."
    return " ".join([text, *(f"Warning: {warning}" for warning in warnings)])


def write_page(
    out: Path, sections: Sequence[Mapping[str, Any]], about: Mapping[str, Any]
) -> list[Path]:
    """The page and all numbers; first the file that says whose they are."""
    made = [f"- {what}: {value}" for what, value in about["asked"]]
    made += [f"- fingerprint of {name}: {value}" for name, value in about["stores"].items()]
    texts = (
        json_text(as_json(sections, about)),
        markdown(sections, about) + "\n".join(["", "## How this was made", "", *made, ""]),
        html(sections, about),
    )
    return write_files(out, dict(zip(FILES, texts, strict=True)))


if __name__ == "__main__":
    main()
