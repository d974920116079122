r"""Trains a stream of tasks with several methods and seeds, and prints the table of the paper.

  hmcl run --config pocket --out runs/pocket --report
  hmcl run --stream STORE --methods vanilla,hmcl_ca --seeds 42,123 \
      --set train.batch=256 --set methods.hmcl_ca.variance=0.75 --out runs/mine
  hmcl run --mesh 2x4 --out runs/pocket          # eight devices

Writes to --out: checkpoints at each task end (one folder per method), results.json, table.md and
table.tex; with --report also report/, as `hmcl report` does. A run that was interrupted, by
SIGTERM, Ctrl-C or otherwise, continues with --resume and loses only the current task. With
--distributed, start every process of the job with the same command; process 0 writes.
"""

import argparse
import dataclasses
import sys
import time

from rich.console import Console

from hmcl_jax.cli import options as shared
from hmcl_jax.cli import report
from hmcl_jax.cli.main import UsageError
from hmcl_jax.cli.progress import ProgressView
from hmcl_jax.continual import run_stream
from hmcl_jax.continual.cache import CompileTime
from hmcl_jax.continual.distributed import in_all, in_first, is_first, start_processes
from hmcl_jax.report import check_results, markdown_table, write_results
from hmcl_jax.report.results import CONVENTION, stopped_notes


def add_options(parser: argparse.ArgumentParser) -> None:
    shared.add_experiment(parser)
    parser.add_argument("--methods", type=shared.names, help="names, separated by commas")
    parser.add_argument("--seeds", type=shared.numbers, help="whole numbers, separated by commas")
    parser.add_argument("--order", help="canonical, seq2, seq3, or a file with one task per line")
    shared.add_methods(parser)
    # Short forms of --set for how a run is laid out on the devices.
    for name, metavar, about in (
        ("seed-axis", "AXIS", "auto, vmap, map or loop"),
        ("device-memory", "MIB", "for the features of a task; larger ones are streamed"),
        ("mesh", "SEEDxDATA", "devices that share seeds, and minibatches; 2x4"),
    ):
        setting = f"train.{name.replace('-', '_')}={{}}".format
        parser.add_argument(
            f"--{name}", dest="set", action="append", type=setting, metavar=metavar, help=about
        )
    distributed = "join other processes, which the cluster names, or the next three options"
    parser.add_argument("--distributed", action="store_true", help=distributed)
    parser.add_argument("--coordinator", metavar="HOST:PORT", help="where process 0 listens")
    parser.add_argument("--processes", type=int, metavar="N", help="how many there are")
    parser.add_argument("--process-id", type=int, metavar="I", help="which one this is, from 0")
    parser.add_argument("--out", required=True, help="folder for checkpoints and results")
    parser.add_argument("--resume", action="store_true", help="continue the run in --out")
    parser.add_argument("--report", action="store_true", help="then analyse, into OUT/report")
    shared.add_cache(parser)


def run(options: argparse.Namespace) -> None:
    """Trains what is missing, writes the results, prints the table."""
    if not options.out:
        raise UsageError("--out is needed: a folder for checkpoints and results")
    shared.load_added_methods(options)
    shared.prepare_jax(options)
    compiling, start = CompileTime(), time.perf_counter()
    # JAX looks for devices once, so processes must join before anything else uses it.
    addresses = options.coordinator, options.processes, options.process_id
    if options.distributed or any(value is not None for value in addresses):
        start_processes(*addresses)
    console = Console(quiet=not is_first())
    chosen = options.methods, options.seeds, options.order
    experiment, store, order = in_all(lambda: shared.open_experiment(options, *chosen))
    in_first(lambda: check_results(options.out, experiment.methods, options.resume))
    parser = argparse.ArgumentParser()  # of `hmcl report`
    report.add_options(parser)
    words = [options.out, *(["--replace"] if options.resume else [])]
    words += ["--stream", options.stream] if options.stream else []
    reported = parser.parse_args(words)
    if options.report:  # before anything is trained
        in_first(lambda: report.check_folder(reported))
    with ProgressView(experiment.methods, console) as view:
        results = run_stream(
            store,
            experiment.methods,
            experiment.seeds,
            experiment.train,
            order=order,
            settings=experiment.settings,
            out=options.out,
            resume=options.resume,
            listener=view,
        )
    about = {
        "experiment": dataclasses.asdict(experiment),
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "wall_seconds": time.perf_counter() - start,
        **compiling.described(),
    }
    # Another process may have finished other methods there meanwhile.
    in_first(lambda: check_results(options.out, experiment.methods, resume=True))
    written = in_first(lambda: write_results(options.out, results, about))
    if written is None:  # not the first process
        return
    print(f"\n{markdown_table(results)}\n\n{CONVENTION}")
    print(stopped_notes(results), end="")
    programs = f"{compiling.programs} programs, {compiling.kept} of them kept from earlier runs"
    print(f"{time.perf_counter() - start:.0f} s, {compiling.seconds:.0f} s of them for {programs}")
    print(f"wrote {', '.join(map(str, written))}")
    if options.report:
        try:
            report.make(reported, console)
        except BaseException:
            missing = f"but the report is not: hmcl report {options.out} writes it."
            print(f"The results are written, {missing}", file=sys.stderr)
            raise
