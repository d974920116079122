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
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hmcl_jax.cli import options as shared
from hmcl_jax.cli.main import UsageError
from hmcl_jax.cli.progress import AnalysisView
from hmcl_jax.continual import RunError
from hmcl_jax.continual.run_directory import RUN, read_identity
from hmcl_jax.continual.run_reader import run_names
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import load_pocket
from hmcl_jax.data.store import Store
from hmcl_jax.report.analyse import analyse
from hmcl_jax.report.results import read_results, stream_of
from hmcl_jax.report.write import FORMATS, check_report, write_report


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder of `hmcl run`")
    parser.add_argument("--out", help="folder for the report; default: RUN/report")
    parser.add_argument("--stream", help="pocket or the path of a store; default: as in the run")
    parser.add_argument("--methods", help="names, separated by commas; default: all")
    parser.add_argument("--against", default="vanilla", help="the method to compare with")
    parser.add_argument("--seed", type=int, help="of the tree drawing; default: the first")
    parser.add_argument("--anchors", type=int, default=50, help="test samples per task, for drift")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of the figures")
    parser.add_argument("--replace", action="store_true", help="replace the report in --out")
    shared.add_cache(parser)


def run(options: argparse.Namespace) -> None:
    shared.prepare_jax(options)
    make(options, Console())


def check_before(options: argparse.Namespace) -> None:
    """Refuses what would stop a report, before anything is trained or measured."""
    check_report(folder_of(options), options.replace)


def folder_of(options: argparse.Namespace) -> Path:
    """Where the report is written."""
    if options.out is None and len(options.runs) > 1:
        raise UsageError("--out is needed for several RUNs")
    return Path(options.out or Path(options.runs[0]) / "report")


def make(options: argparse.Namespace, console: Console) -> None:
    """Analyses runs and writes the report."""
    start, out = time.perf_counter(), folder_of(options)
    if options.anchors < 1:
        raise UsageError(f"--anchors must be at least 1, got {options.anchors}")
    formats = tuple(dict.fromkeys(name.strip() for name in options.formats.split(",")))
    if wrong := [name for name in formats if name not in FORMATS]:
        raise UsageError(f"--formats must be some of {', '.join(FORMATS)}, got {wrong[0]!r}")
    methods = shared.split_names("--methods", options.methods)
    store = find_store(options.runs, options.stream)
    check_before(options)
    check_seed(options.seed, known_seeds(options.runs))
    with AnalysisView(console) as view:
        analysis = analyse(
            options.runs,
            store,
            methods=methods,
            against=options.against,
            anchors=options.anchors,
            listener=view,
        )
        check_seed(options.seed, analysis.seeds)
        written = write_report(
            out,
            analysis,
            seed=options.seed,
            formats=formats,
            replace=options.replace,
            listener=view,
        )
    for sentence in analysis.warnings:
        console.print(sentence, markup=False)
    console.print(f"{time.perf_counter() - start:.0f} s; wrote {written}", markup=False)


def find_store(runs: Sequence[str], stream: str | None) -> Store:
    """The store of some runs: the one given, the one results.json names, or the embedded one."""
    for folder in runs:
        if not Path(folder).is_dir():
            raise RunError(f"there is no folder {folder}; give one of `hmcl run`.")
        run_names(folder)  # refuses folders without runs
    if stream is not None:
        return shared.open_stream(stream)
    for folder in runs:
        if (named := stream_of(folder)) is not None:
            try:
                return shared.open_stream(named)
            except StoreError as error:
                raise RunError(f"The store of {folder} has moved: {error}") from error
    pocket = load_pocket()
    for path in sorted(Path(runs[0]).glob(f"*/{RUN}")):
        identity = read_identity(path.parent).get("store")
        if isinstance(identity, dict) and identity.get("fingerprint") == pocket.fingerprint:
            return pocket
    if (Path(runs[0]) / "results.json").exists():
        read_results(runs[0])  # says what is wrong with it, if that is why
    raise RunError(
        f"{runs[0]} does not say which stream it is of (in results.json); name it with --stream."
    )


def known_seeds(runs: Sequence[str]) -> list[int]:
    """Seeds of the runs whose record can be read; damaged runs are named later."""
    known: list[int] = []
    for path in (path for run in runs for path in sorted(Path(run).glob(f"*/{RUN}"))):
        with contextlib.suppress(RunError, KeyError, TypeError):
            known += [s for s in read_identity(path.parent)["seeds"] if isinstance(s, int)]
    return list(dict.fromkeys(known))


def check_seed(seed: int | None, known: Sequence[int]) -> None:
    """Refuses a seed that no run has."""
    if seed is not None and known and seed not in known:
        raise RunError(f"--seed must be one of {list(known)}, got {seed}.")
