"""Trains a stream of tasks with several methods and seeds, and prints the table of the paper.

    python experiments/run_stream.py --out runs/pocket
    python experiments/run_stream.py --config experiments/configs/pocket.toml --out runs/pocket
    python experiments/run_stream.py --stream STORE --methods vanilla,hmcl_ca --seeds 42,123 \
        --set train.batch=256 --set methods.hmcl_ca.variance=0.75 --out runs/mine

    python experiments/run_stream.py --mesh 2x4 --out runs/pocket          # eight devices

Writes to --out: checkpoints at each task end (one folder per method), results.json, table.md and
table.tex; with --report also report/report.html and all figures, as experiments/analyse.py does.
A run that was stopped, by SIGTERM, Ctrl-C or otherwise, goes on with --resume and loses only what
was learned of the current task. With --distributed, all processes of a job are started with the
same command, and process 0 writes.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path

from rich.console import Console

from hmcl_jax.continual import ConfigError, RunError, run_stream
from hmcl_jax.continual.cache import CompileTime, keep_programs
from hmcl_jax.continual.distributed import in_all, in_first, is_first, start_processes
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.continual.methods import list_methods
from hmcl_jax.continual.plugins import GROUP, load_methods, load_plugin
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store
from hmcl_jax.report import check_results, markdown_table, write_results
from hmcl_jax.report.progress import ProgressView
from hmcl_jax.report.results import CONVENTION, stopped_notes


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--stream", help=f"{', '.join(EMBEDDED)} (embedded), or the path of a store"
    )
    parser.add_argument("--methods", help="names, separated by commas")
    parser.add_argument("--seeds", help="whole numbers, separated by commas")
    parser.add_argument("--order", help="canonical, seq2, seq3, or a file with one task per line")
    parser.add_argument("--config", help="a TOML file; see experiments/configs")
    parser.add_argument("--variant", help="which [variants.NAME] of the config, such as meru-l")
    add_method_file(parser)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, such as train.batch=256; may be repeated",
    )
    parser.add_argument("--seed-axis", choices=("auto", "vmap", "map", "loop"))
    parser.add_argument("--device-memory", type=float, metavar="MIB")
    parser.add_argument(
        "--mesh", metavar="SEEDxDATA", help="devices that share seeds, and minibatches; 2x4"
    )
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="join other processes, which the cluster names, or the next three options",
    )
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    parser.add_argument("--processes", type=int, metavar="N", help="how many there are")
    parser.add_argument("--process-id", type=int, metavar="I", help="which one this is, from 0")
    parser.add_argument("--out", help="folder for checkpoints and results")
    parser.add_argument(
        "--list-methods", action="store_true", help="print the methods and their settings"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what is in --out")
    parser.add_argument(
        "--report", action="store_true", help="analyse the runs afterwards, into OUT/report"
    )
    add_no_cache(parser)
    found = parser.parse_args(arguments)
    if not found.out and not found.list_methods:
        parser.error("--out is needed: a folder for checkpoints and results")
    for option in ("coordinator", "processes", "process_id"):
        if getattr(found, option) is not None and not found.distributed:
            parser.error(f"--{option.replace('_', '-')} is for --distributed")
    return found


def add_no_cache(parser: argparse.ArgumentParser) -> None:
    """The option against :func:`keep_programs`."""
    parser.add_argument(
        "--no-cache", action="store_true", help="compile anew, keep no programs for the next run"
    )


def add_method_file(parser: argparse.ArgumentParser) -> None:
    """The options for methods that are not in the package."""
    parser.add_argument(
        "--method-file",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file of yours with METHODS = {name: Entry}; it is executed; may be repeated",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help=f"methods of an installed package, an entry point of {GROUP}; may be repeated",
    )


def load_users_methods(arguments: argparse.Namespace) -> dict[str, str]:
    """Loads what these options name; where each method is from, by name."""
    found = {method: str(path) for path in arguments.method_file for method in load_methods(path)}
    for name in arguments.plugin:
        found |= dict.fromkeys(load_plugin(name), f"entry point {name}")
    return found


def split(option: str, text: str | None) -> list[str] | None:
    """Names separated by commas."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"{option} must be names separated by commas, got {text!r}.")
    return names


def read(arguments: argparse.Namespace) -> Experiment:
    """The experiment that the command line asks for."""
    overrides = list(arguments.set)
    if arguments.seed_axis is not None:
        overrides.append(f"train.seed_axis='{arguments.seed_axis}'")
    if arguments.device_memory is not None:
        overrides.append(f"train.device_memory={arguments.device_memory}")
    if arguments.mesh is not None:
        overrides.append(f"train.mesh={json.dumps(arguments.mesh)}")
    seeds = arguments.seeds
    if seeds is not None:
        try:
            seeds = [int(seed) for seed in seeds.split(",")]
        except ValueError:
            raise ConfigError(f"--seeds must be whole numbers, got {arguments.seeds!r}.") from None
    return read_experiment(
        arguments.config,
        overrides,
        methods=split("--methods", arguments.methods),
        variant=arguments.variant,
        stream=arguments.stream,
        seeds=seeds,
        order=arguments.order,
    )


def open_stream(stream: str) -> Store:
    """An embedded stream, or the store at a path."""
    if stream in EMBEDDED:
        return EMBEDDED[stream]()
    if not stream or not Path(stream).exists():
        names = ", ".join(EMBEDDED)
        raise StoreError(f"--stream must be {names} or the path of a store, got {stream!r}.")
    return read_store(stream)


def check_before_report(arguments: argparse.Namespace) -> None:
    """Refuses what would stop a report, before anything is trained."""
    from hmcl_jax.report.write import check_report

    check_report(Path(arguments.out) / "report", replace=arguments.resume)


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Analyses what was written."""
    import analyse

    options = [arguments.out, *(["--replace"] if arguments.resume else [])]
    options += ["--stream", arguments.stream] if arguments.stream else []
    try:
        analyse.make_report(analyse.parse(options), console)
    except (StoreError, RunError, ValueError, OSError) as error:
        sys.exit(f"run_stream: the results are written, but the report is not: {error}")
    except KeyboardInterrupt:
        print(
            "\nrun_stream: stopped; the results are written, but the report is not: "
            f"experiments/analyse.py {arguments.out} makes it.",
            file=sys.stderr,
        )
        sys.exit(130)


def main() -> None:
    arguments = parse()
    try:
        load_users_methods(arguments)
    except ConfigError as error:
        sys.exit(f"run_stream: {error}")
    if arguments.list_methods:
        print(list_methods())
        return
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    compiling = CompileTime()
    start = time.perf_counter()

    def prepare() -> tuple[Experiment, Store, str | list[str]]:
        experiment = read(arguments)
        store = open_stream(experiment.stream)
        return experiment, store, read_order(experiment.order, list(store.orders))

    try:
        if arguments.distributed:
            start_processes(arguments.coordinator, arguments.processes, arguments.process_id)
        console = Console(quiet=not is_first())
        experiment, store, order = in_all(prepare)
        in_first(lambda: check_results(arguments.out, experiment.methods, arguments.resume))
        if arguments.report:
            in_first(lambda: check_before_report(arguments))
        with ProgressView(experiment.methods, console) as view:
            results = run_stream(
                store,
                experiment.methods,
                experiment.seeds,
                experiment.train,
                order=order,
                settings=experiment.settings,
                out=arguments.out,
                resume=arguments.resume,
                listener=view,
            )
        about = {
            "experiment": dataclasses.asdict(experiment),
            "store": {"name": store.name, "fingerprint": store.fingerprint},
            "wall_seconds": time.perf_counter() - start,
            **compiling.described(),
        }
        # Another process may have finished other methods there meanwhile.
        in_first(lambda: check_results(arguments.out, experiment.methods, resume=True))
        written = in_first(lambda: write_results(arguments.out, results, about))
    except (ConfigError, StoreError, RunError, FloatingPointError, ImportError) as error:
        sys.exit(f"run_stream: {error}")
    except OSError as error:
        sys.exit(f"run_stream: {error}. Once this is mended, go on with --resume.")
    except KeyboardInterrupt:
        print("\nrun_stream: stopped; go on with --resume.", file=sys.stderr)
        sys.exit(130)
    if written is None:
        return
    print(f"\n{markdown_table(results)}\n\n{CONVENTION}")
    print(stopped_notes(results), end="")
    print(
        f"{time.perf_counter() - start:.0f} s, {compiling.seconds:.0f} s of them for "
        f"{compiling.programs} programs, {compiling.kept} of them kept from earlier runs"
    )
    print(f"wrote {', '.join(map(str, written))}")
    if arguments.report:
        report(arguments, console)


if __name__ == "__main__":
    main()
