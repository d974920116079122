"""Makes a report of finished runs: one HTML page, figures, tables, and all numbers.

  hmcl report runs/pocket
  hmcl report runs/pocket runs/mine --out report --methods vanilla,hmcl_ca

Writes to --out (RUN/report, if there is one RUN): report.html, which needs nothing else and opens
by double click; figures/, tables/ (Markdown and LaTeX) and analysis.json. Several folders must be
of the same stream, order and seeds.
"""

import argparse
import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hmcl_jax.cli import options as shared
from hmcl_jax.cli.main import UsageError
from hmcl_jax.continual import RunError
from hmcl_jax.continual.run_directory import RUN, read_identity
from hmcl_jax.continual.run_reader import run_names
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import load_pocket
from hmcl_jax.data.store import Store
from hmcl_jax.report.analyse import analyse
from hmcl_jax.report.results import read_results
from hmcl_jax.report.write import FORMATS, check_report, write_report


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder of `hmcl run`")
    parser.add_argument("--out", help="folder for the report; default: RUN/report")
    parser.add_argument("--stream", help="pocket or the path of a store; default: as in the run")
    parser.add_argument("--methods", type=shared.names, help="names, with commas; default: all")
    parser.add_argument("--against", default="vanilla", help="the method to compare with")
    parser.add_argument("--seed", type=int, help="of the tree drawing; default: the first")
    parser.add_argument("--anchors", type=int, default=50, help="test samples per task, for drift")
    parser.add_argument("--formats", type=shared.names, default=FORMATS, help="of the figures")
    parser.add_argument("--replace", action="store_true", help="replace the report in --out")
    shared.add_cache(parser)


def run(options: argparse.Namespace) -> None:
    shared.prepare_jax(options)
    make(options, Console())


def check_folder(options: argparse.Namespace) -> Path:
    """Where the report is written; refuses a folder that it cannot go to."""
    if options.out is None and len(options.runs) > 1:
        raise UsageError("--out is needed for several RUNs")
    out = Path(options.out or Path(options.runs[0]) / "report")
    check_report(out, options.replace)
    return out


def make(options: argparse.Namespace, console: Console) -> None:
    """Analyses runs and writes the report."""
    start, out = time.perf_counter(), check_folder(options)
    formats = tuple(dict.fromkeys(options.formats))
    if wrong := [name for name in formats if name not in FORMATS]:
        raise UsageError(f"--formats must be some of {', '.join(FORMATS)}, got {wrong[0]!r}")
    store = find_store(options.runs, options.stream)
    known = [seed for found in identities(options.runs) for seed in found.get("seeds", [])]
    check_seed(options.seed, list(dict.fromkeys(known)))

    def show(name: str, done: int, total: int) -> None:
        console.print(f"{name} ({done + 1}/{total})", markup=False, highlight=False)

    analysis = analyse(
        options.runs,
        store,
        methods=options.methods,
        against=options.against,
        anchors=options.anchors,
        listener=show,
    )
    check_seed(options.seed, analysis.seeds)  # --methods may leave some of them out
    written = write_report(
        out,
        analysis,
        seed=options.seed,
        formats=formats,
        replace=options.replace,
        listener=show,
    )
    for sentence in analysis.warnings:
        console.print(sentence, markup=False)
    console.print(f"{time.perf_counter() - start:.0f} s; wrote {written}", markup=False)


def find_store(runs: Sequence[str], stream: str | None) -> Store:
    """The store of some runs: the one given, the one results.json names, or the embedded one."""
    for folder in runs:  # refuses those without runs
        run_names(folder)
    if stream is not None:
        return shared.open_stream(stream)
    for folder in runs:
        results = Path(folder) / "results.json"
        if results.exists() and (named := read_results(folder).stream):
            try:
                return shared.open_stream(named)
            except StoreError as error:
                raise RunError(f"The store of {folder} has moved: {error}") from error
    # A run that was interrupted has no results.json, but it has the fingerprint of its store.
    pocket = load_pocket()
    for identity in identities(runs[:1]):
        if identity.get("store", {}).get("fingerprint") == pocket.fingerprint:
            return pocket
    raise RunError(f"No results.json says which stream {runs[0]} is of; name it with --stream.")


def identities(runs: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The identities of the runs that can be read; `analyse` reports those that are damaged."""
    for path in (path for run in runs for path in sorted(Path(run).glob(f"*/{RUN}"))):
        with contextlib.suppress(RunError):
            yield read_identity(path.parent)


def check_seed(seed: int | None, known: Sequence[int]) -> None:
    """Refuses a seed that no run has."""
    if seed is not None and known and seed not in known:
        raise RunError(f"--seed must be one of {list(known)}, got {seed}.")
