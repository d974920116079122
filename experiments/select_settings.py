"""Chooses a method's settings on one seed, by the trade-off between Overall and BWT.

    python experiments/select_settings.py --method hmcl_mr \
        --grid variance=0.5,0.6,0.7,0.8 --grid beta=0.02,0.05,0.1 --grid min_rank=1,8
    python experiments/select_settings.py --method hmcl_ca --grid variance=0.6,0.7 \
        --grid beta=0.05,0.1 --then-run runs/chosen

The paper selects "one fixed configuration on seed 42 using the Overall-BWT trade-off" and reuses it
for the other seeds; it does not say how the two are weighed. The rule here: all points of the grid
are run on the stream with seed 42 alone, side by side where they differ in knobs only, and the
largest sum of Overall and BWT wins: a point of final score weighs like a point of forgetting. Of
equal points the first wins. Points that diverge are out.

With --then-run the winner is fixed and run with all seeds of the config. The folder gets
selection.json (every point, the rule, the winner) before that, so that a run that was stopped goes
on with the same command and the same settings, and results.json, table.md and table.tex after it.
The seed of the selection is among the seeds of the table, as in the paper: its row is chosen, the
others are not.
"""

import argparse
import dataclasses
import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from run_stream import add_method_file, add_no_cache, load_users_methods, open_stream

from hmcl_jax.continual import ConfigError, Event, RunError, make_method, run_stream, run_sweep
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.store import Store
from hmcl_jax.report import check_results, columns, markdown_table, write_results
from hmcl_jax.report.progress import ProgressView
from hmcl_jax.report.results import CONVENTION, write_files

RULE = "largest Overall + BWT on one seed, the first of equal ones"
SELECTION = "selection.json"


def points(grids: list[str]) -> list[dict[str, object]]:
    """All combinations of ``name=value,value,...``."""
    axes = {}
    for grid in grids:
        name, _, values = grid.partition("=")
        if not name or not values or not all(values.split(",")) or name in axes:
            raise ConfigError(f"--grid is written name=value,value,..., once each, got {grid!r}.")
        axes[name] = [parse_override(f"{name}={value}")[name] for value in values.split(",")]
    if not axes:
        raise ConfigError("--grid must be given at least once, as in --grid beta=0.02,0.05.")
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="a TOML file for everything else")
    parser.add_argument("--variant", help="which [variants.NAME] of the config")
    parser.add_argument("--stream", help="pocket, or the path of a store")
    parser.add_argument("--method", required=True)
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--then-run", metavar="OUT", help="run the winner with all seeds; the same command goes on"
    )
    add_method_file(parser)
    add_no_cache(parser)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = parse()
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    try:
        load_users_methods(arguments)
        select(arguments)
    except (ConfigError, StoreError, RunError, FloatingPointError, OSError) as error:
        sys.exit(f"select_settings: {error}")
    except KeyboardInterrupt:
        print("\nselect_settings: stopped; the same command goes on.", file=sys.stderr)
        sys.exit(130)


def select(arguments: argparse.Namespace) -> None:
    """Finds the best point, and runs it if that was asked for."""
    name, chosen = arguments.method, points(arguments.grid)
    experiment = read_experiment(
        arguments.config,
        arguments.set,
        methods=[name],
        variant=arguments.variant,
        stream=arguments.stream,
    )
    given = dict(experiment.settings.get(name, {}))
    for point in chosen:
        make_method(name, {**given, **point})  # refuses bad ones, before anything is run
    store = open_stream(experiment.stream)
    about = {
        "rule": RULE,
        "method": name,
        "seed": arguments.seed,
        "points": chosen,
        "given": given,
        "train": dataclasses.asdict(experiment.train),
        "order": experiment.order,
        "store": store.fingerprint,
    }
    rows = known_rows(arguments.then_run, about)
    if rows is None:
        rows = run_grid(store, experiment, name, given, chosen, arguments.seed)
    best = pick(rows)
    if arguments.then_run:
        text = json.dumps({"about": about, "rows": rows, "best": best}, indent=1) + "\n"
        write_files(arguments.then_run, {SELECTION: text})
    print(json.dumps({"method": name, "seed": arguments.seed, "best": best}))
    if arguments.then_run:
        settings = {**given, **{key: best[key] for key in chosen[0]}}
        run_best(store, experiment, name, settings, Path(arguments.then_run), best)


def known_rows(out: str | None, about: dict[str, Any]) -> list[dict[str, Any]] | None:
    """What an earlier, stopped command has found."""
    if out is None:
        return None
    path = Path(out) / SELECTION
    if not path.exists():
        if Path(out).exists() and any(Path(out).iterdir()):
            raise RunError(f"{out} holds something else; choose another --then-run.")
        return None
    try:
        known = json.loads(path.read_text("utf8"))
        same = known["about"] == json.loads(json.dumps(about))
        rows = list(known["rows"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is not of a selection; choose another --then-run.") from error
    if not same:
        raise RunError(f"{path} is of another selection; choose another --then-run.")
    return rows


def run_grid(
    store: Store,
    experiment: Experiment,
    name: str,
    given: dict[str, Any],
    chosen: list[dict[str, Any]],
    seed: int,
) -> list[dict[str, Any]]:
    """Overall and BWT of every point, None where it diverged."""

    def tell(event: Event) -> None:
        if event.kind == "scores":
            print(f"task {event.number}/{event.count} done", file=sys.stderr, flush=True)

    order = read_order(experiment.order, list(store.orders))
    about = (store, name, chosen, [seed], experiment.train)
    results = run_sweep(*about, settings=given, order=order, listener=tell)
    rows = []
    for point, result in zip(chosen, results, strict=True):
        found = columns(result)
        overall, bwt = float(found["Overall"][0]), float(found["BWT"][0])
        finite = math.isfinite(overall)
        rows.append(
            {**point, "Overall": overall if finite else None, "BWT": bwt if finite else None}
        )
        told = f"Overall {overall:.2f}, BWT {bwt:+.2f}, sum {overall + bwt:.2f}"
        shown = ", ".join(f"{key} {value}" for key, value in point.items())
        print(f"{shown}: {told if finite else 'diverged'}")
    return rows


def pick(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The point that the rule chooses."""
    finite = [{**row, "sum": row["Overall"] + row["BWT"]} for row in rows if row["BWT"] is not None]
    if not finite:
        raise ConfigError("Every point of the grid diverged; lower the learning rate.")
    return max(finite, key=lambda row: row["sum"])


def run_best(
    store: Store,
    experiment: Experiment,
    name: str,
    settings: dict[str, Any],
    out: Path,
    best: dict[str, Any],
) -> None:
    """The winner with all seeds."""
    check_results(out, [name], resume=True)
    order = read_order(experiment.order, list(store.orders))
    with ProgressView((name,), Console()) as view:
        results = run_stream(
            store,
            [name],
            experiment.seeds,
            experiment.train,
            order=order,
            settings={name: settings},
            out=out,
            resume=True,
            listener=view,
        )
    about = {
        "experiment": {**dataclasses.asdict(experiment), "settings": {name: settings}},
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "selection": {"rule": RULE, "best": best},
    }
    write_results(out, results, about)
    print(f"\n{markdown_table(results)}\n\n{CONVENTION}")


if __name__ == "__main__":
    main()
