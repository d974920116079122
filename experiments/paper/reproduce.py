r"""Reproduces the paper's tables and figures, its numbers beside ours.

  python experiments/reproduce.py --all --stream pocket
  python experiments/reproduce.py main drift --store meru-l=PATH --store meru-b=PATH \
      --store hycoclip-b=PATH --out runs/paper
  python experiments/reproduce.py --all --stream pocket --plan
  python experiments/reproduce.py main --stream pocket --method-file mine.py --out runs/mine

NAME is a config in experiments/configs/paper, which says what it needs and costs. Runs what is
missing and resumes what was interrupted; tables share runs. Then writes to --out reproduction.html
(the page), the same as reproduction.md, and reproduction.json (all numbers). A page of another
request (other settings, further tables) is replaced only with --replace. With --stream pocket the
embedded streams stand in for the paper's data. --method-file adds your own methods to all tables;
the file is executed. --plugin does so for an installed package.
"""

import argparse
import functools
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hmcl_jax._versions import versions
from hmcl_jax.cli import options as shared
from hmcl_jax.cli.main import UsageError, explained
from hmcl_jax.cli.progress import ProgressView
from hmcl_jax.continual import ConfigError, RunError, make_method
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store
from hmcl_jax.report.results import write_files
from paper.jobs import finished, run_jobs
from paper.measured import Setting, tree_problem
from paper.page import Section, all_verdicts, as_json, counted, html, markdown, verdict_rows
from paper.plan import (
    NAMES,
    Item,
    about_of,
    known_streams,
    missing_for,
    plan_table,
    read_item,
    streams_of,
    unique,
)
from paper.published import TABLES
from paper.request import (
    FILES,
    KIND,
    check_names,
    check_page,
    check_settings,
    deviations,
    provenance,
    store_warnings,
)
from paper.sections import left_out, make_section

REMEDY = "The same command resumes."


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--all", action="store_true", help="every NAME")
    stores = f"a store of one of {', '.join(known_streams())}; may be repeated"
    shared.add_repeated(parser, "--store", "NAME=PATH", stores)
    parser.add_argument("--stream", choices=("pocket",), help="the embedded stream, for trials")
    parser.add_argument("--out", default="runs/reproduced", help="default: %(default)s")
    parser.add_argument("--replace", action="store_true", help="replace another request's page")
    parser.add_argument("--plan", action="store_true", help="print the runs and their cost only")
    parser.add_argument("--seeds", type=shared.numbers, help="with commas, instead of the configs'")
    shared.add_repeated(parser, "--set", "KEY=VALUE", "one setting; may be repeated")
    parser.add_argument("--synsets", help="file with ImageNet's, one per line, for hierarchy")
    parser.add_argument("--wordnet", help="folder of WordNet 3.0; default: where packages put it")
    shared.add_methods(parser)
    shared.add_cache(parser)


def main(arguments: Sequence[object] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_options(parser)
    words = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(list(map(str, words)))
    with explained("reproduce", REMEDY, parser):
        if bool(options.names) == options.all:
            raise UsageError("name tables, or --all")
        if bool(options.store) == bool(options.stream):
            raise UsageError("either --store NAME=PATH, once or more, or --stream pocket")
        run(options)


def run(options: argparse.Namespace) -> None:
    """Checks the request, runs what is missing, writes the page."""
    shared.prepare_jax(options)
    start, out = time.perf_counter(), Path(options.out)
    if not str(out).strip(". "):
        raise RunError("--out is empty, or this very folder; name one for the runs and the page.")
    check_settings(options.set)
    users = shared.load_added_methods(options)
    check_names(users)
    items, stores, missing = read_items(options, list(users))
    check_settings(options.set, items)
    request = read_request(options, stores, users)
    warnings = store_warnings(read_stores(options.store), stores)
    if not options.plan:
        check_page(out, request, options.replace)
        out.mkdir(parents=True, exist_ok=True)
    for text in warnings:
        print(f"reproduce: warning: {text}", file=sys.stderr)
    print(plan_table(items, stores, functools.partial(finished, out=out)), flush=True)
    if options.plan:
        print_missing(missing)
        return
    jobs = unique(items)
    with ProgressView(tuple(jobs), Console()) as view:
        keep_all = checkpoints_kept(options, stores, list(users))
        results, failures = run_jobs(jobs, stores, out, view, keep_all)
    same = options.stream is None
    setting = Setting(stores, out, list(users), same, options.synsets, options.wordnet)
    sections = [make_section(item, results, failures, setting) for item in items] + missing
    notes = tomllib.loads((TABLES.parent / "inconsistencies.toml").read_text("utf8"))
    about = {
        "kind": KIND,
        "request": request,
        "lead": lead(options, stores, warnings) + deviations(request),
        "provenance": provenance(request, warnings),
        "inconsistencies": notes["found"],
        "elsewhere": list(map(list, notes["elsewhere"].items())),
        "versions": versions(),
        "stores": {name: store.fingerprint for name, store in stores.items()},
        "seconds": time.perf_counter() - start,
    }
    texts = (as_json(sections, about), markdown(sections, about), html(sections, about))
    written = write_files(out, dict(zip(FILES, texts, strict=True)))
    if verdicts := all_verdicts(sections):
        for claim, block, word, *_ in verdict_rows(verdicts)[1:]:
            print(f"{word.strip('*')}: {claim} ({block})")
        print(counted(verdicts))
    print_missing(sections)
    print(f"{time.perf_counter() - start:.0f} s; wrote {', '.join(map(str, written))}")


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


def table_names(options: argparse.Namespace) -> list[str]:
    """The tables that are asked for, each once, in the order of the page."""
    for name in options.names:
        about_of(name)  # refuses unknown ones
    return [name for name in NAMES if options.all or name in options.names]


def read_items(
    options: argparse.Namespace, extra: Sequence[str]
) -> tuple[list[Item], dict[str, Store], list[Section]]:
    """Tables that can be made, the stores they need, and sections for those that cannot."""
    paths = read_stores(options.store)
    items: list[Item] = []
    stores: dict[str, Store] = {}
    missing: list[Section] = []
    for name in table_names(options):
        there, gone = streams_of(name, paths, options.stream == "pocket")
        if gone:
            words = " ".join(f"--store {stream}=PATH" for stream in gone)
            missing.append(left_out(name, ", ".join(gone), f"it needs {words}."))
        for stream in there:
            item = read_item(name, stream, options.set, extra, options.seeds)
            stores[stream] = stores.get(stream) or open_store(stream, paths)
            why = missing_for(item, stores[stream])
            if why is None and item.about["show"] == "hierarchy":
                task = stores[stream][item.about["task"]]
                why = tree_problem(task, options.synsets, options.wordnet)
            if why is None:
                items.append(item)
            else:
                missing.append(left_out(name, stream, why))
    if not items:
        reasons = " ".join(f"{section.name}: {section.missing}" for section in missing)
        raise ConfigError(f"Nothing can be made. {reasons}")
    return items, stores, missing


def read_request(
    options: argparse.Namespace, stores: Mapping[str, Store], users: Mapping[str, str]
) -> dict[str, Any]:
    """All that decides what is on the page, as plain data."""
    return {
        "names": table_names(options),
        "streams": {name: store.fingerprint for name, store in stores.items()},
        "set": options.set,
        "seeds": options.seeds,
        "methods": {
            name: {"source": source, "code": make_method(name).code}
            for name, source in users.items()
        },
    }


def checkpoints_kept(
    options: argparse.Namespace, stores: Mapping[str, Store], extra: Sequence[str]
) -> set[str]:
    """Runs of which all checkpoints stay: those of main, whose drift may be asked for later."""
    about = about_of("main")
    streams = [name for name in stores if name in (*about["streams"], about["pocket"])]
    items = (read_item("main", name, options.set, extra, options.seeds) for name in streams)
    return set(unique(items))


def print_missing(sections: Sequence[Section]) -> None:
    """Prints which parts are missing from the page, and why."""
    for section in sections:
        where = f"{section.name} on {section.stream}"
        if section.missing:
            print(f"not made: {where}: {section.missing}")
        for note in section.notes:
            print(f"{where}: {note}")


def lead(
    options: argparse.Namespace, stores: Mapping[str, Store], warnings: Sequence[str] = ()
) -> str:
    """What this page is of."""
    names = ", ".join(f"{name} ({store.name})" for name, store in stores.items())
    text = f"The paper's tables from stores of its backbones: {names}."
    if options.stream:
        text = f"The paper's protocols on embedded data: {names}. Percent unless said otherwise."
    return " ".join([text, *(f"Warning: {warning}" for warning in warnings)])
