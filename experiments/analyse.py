"""Makes a report of finished runs: one HTML page, figures, tables, and all numbers.

    python experiments/analyse.py runs/pocket
    python experiments/analyse.py runs/pocket runs/mine --out report --methods vanilla,hmcl_ca

Writes to --out (RUN/report, if there is one RUN): report.html, which needs nothing else and opens
by double click; figures/, tables/ (Markdown and LaTeX) and analysis.json. Several folders must be
of the same stream, order and seeds.
"""

import argparse
import contextlib
import sys
import time
from pathlib import Path

from rich.console import Console
from run_stream import add_no_cache, open_stream, split

from hmcl_jax.continual import ConfigError, RunError
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.run_directory import RUN, read_identity
from hmcl_jax.continual.run_reader import run_names
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import load_pocket
from hmcl_jax.data.store import Store
from hmcl_jax.report.analyse import analyse, compared_with
from hmcl_jax.report.progress import AnalysisView
from hmcl_jax.report.results import read_results, stream_of
from hmcl_jax.report.write import FORMATS, check_report, write_report


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a folder of run_stream.py")
    parser.add_argument("--out", help="folder for the report; default: RUN/report")
    parser.add_argument("--stream", help="pocket or the path of a store; default: as in the run")
    parser.add_argument("--methods", help="names, separated by commas; default: all")
    parser.add_argument("--against", default="vanilla", help="the method to compare with")
    parser.add_argument("--seed", type=int, help="of the tree drawing; default: the first")
    parser.add_argument("--anchors", type=int, default=50, help="test samples per task, for drift")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of the figures")
    parser.add_argument("--replace", action="store_true", help="replace a report that is there")
    add_no_cache(parser)
    found = parser.parse_args(arguments)
    if found.out is None and len(found.runs) > 1:
        parser.error("--out is needed for several RUNs")
    if found.anchors < 1:
        parser.error(f"--anchors must be at least 1, got {found.anchors}")
    formats = [name.strip() for name in found.formats.split(",")]
    if wrong := [name for name in formats if name not in FORMATS]:
        parser.error(f"--formats must be some of {', '.join(FORMATS)}, got {wrong[0]!r}")
    found.formats = tuple(dict.fromkeys(formats))
    found.out = found.out or str(Path(found.runs[0]) / "report")
    return found


def find_store(runs: list[str], stream: str | None) -> Store:
    """The store that runs are of: as it is named, as results.json says, or the embedded one."""
    for run in runs:
        if not Path(run).is_dir():
            raise RunError(f"there is no folder {run}; give one of experiments/run_stream.py.")
        run_names(run)  # refuses folders without runs
    if stream is not None:
        return open_stream(stream)
    for run in runs:
        if (named := stream_of(run)) is not None:
            try:
                return open_stream(named)
            except StoreError as error:
                raise RunError(f"The store of {run} is not where it was: {error}") from error
    pocket = load_pocket()
    for path in sorted(Path(runs[0]).glob(f"*/{RUN}")):
        identity = read_identity(path.parent)
        named = identity.get("store")
        if isinstance(named, dict) and named.get("fingerprint") == pocket.fingerprint:
            return pocket
    if (Path(runs[0]) / "results.json").exists():
        read_results(runs[0])  # says what is wrong with it, if that is why
    raise RunError(
        f"{runs[0]} does not say which stream it is of (in results.json); name it with --stream."
    )


def check_seed(runs: list[str], seed: int | None) -> None:
    """Refuses a seed that no run has, before anything is measured."""
    known: list[int] = []
    for path in (path for run in runs for path in sorted(Path(run).glob(f"*/{RUN}"))):
        with contextlib.suppress(RunError, KeyError, TypeError):  # a damaged run is named later
            known += [s for s in read_identity(path.parent)["seeds"] if isinstance(s, int)]
    if seed is not None and known and seed not in known:
        raise RunError(f"--seed must be one of {list(dict.fromkeys(known))}, got {seed}.")


def make_report(arguments: argparse.Namespace, console: Console) -> None:
    """Analyses runs and writes the report; raises what :func:`main` explains."""
    start = time.perf_counter()
    methods = split("--methods", arguments.methods)
    store = find_store(arguments.runs, arguments.stream)
    check_report(arguments.out, arguments.replace)
    check_seed(arguments.runs, arguments.seed)
    with AnalysisView(console) as view:
        analysis = analyse(
            arguments.runs, store, methods=methods, anchors=arguments.anchors, listener=view
        )
        if arguments.seed is not None and arguments.seed not in analysis.seeds:
            raise RunError(f"--seed must be one of {list(analysis.seeds)}, got {arguments.seed}.")
        against, chosen = compared_with(analysis.methods, arguments.against)
        if chosen:
            console.print(chosen, markup=False)
        elif against not in analysis.methods:
            console.print(
                f"There is no {arguments.against} to compare with; --against names another "
                f"({', '.join(analysis.methods)}).",
                markup=False,
            )
        written = write_report(
            arguments.out,
            analysis,
            against=arguments.against,
            seed=arguments.seed,
            formats=arguments.formats,
            replace=arguments.replace,
            listener=view,
        )
    for sentence in analysis.warnings:
        console.print(sentence, markup=False)
    console.print(f"{time.perf_counter() - start:.0f} s; wrote {written}", markup=False)


def main() -> None:
    arguments = parse()
    keep_programs(not arguments.no_cache)
    try:
        make_report(arguments, Console())
    except (ConfigError, StoreError, RunError, ValueError, ImportError, OSError) as error:
        sys.exit(f"analyse: {error}")
    except KeyboardInterrupt:
        print("\nanalyse: stopped; nothing was replaced.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
