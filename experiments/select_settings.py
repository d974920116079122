"""Chooses a method's settings on one seed, by the trade-off between Overall and BWT.

    python experiments/select_settings.py --method hmcl_mr \
        --grid variance=0.5,0.6,0.7,0.8 --grid beta=0.02,0.05,0.1

Runs all points of the grid on the stream with seed 42 alone, side by side where they differ in
knobs only, and prints Overall, BWT and their sum; the largest sum wins. It weighs a point of final
score like a point of forgetting. Settings are then fixed for all seeds: put them into the config.
"""

import argparse
import itertools
import json
import math
import sys

from run_stream import add_no_cache, open_stream

from hmcl_jax.continual import ConfigError, Event, run_sweep
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.experiment import read_experiment, read_order
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.validation import StoreError
from hmcl_jax.report import columns


def points(grids: list[str]) -> list[dict[str, object]]:
    """All combinations of ``name=value,value,...``."""
    axes = {}
    for grid in grids:
        name, _, values = grid.partition("=")
        if not name or not values or not all(values.split(",")) or name in axes:
            raise ConfigError(f"--grid is written name=value,value,..., once each, got {grid!r}.")
        axes[name] = [parse_override(f"{name}={value}")[name] for value in values.split(",")]
    if not axes:
        raise ConfigError("--grid is needed at least once, as name=value,value,...")
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="a TOML file for everything else")
    parser.add_argument("--stream", help="pocket, or the path of a store")
    parser.add_argument("--method", required=True)
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--seed", type=int, default=42)
    add_no_cache(parser)
    arguments = parser.parse_args()
    keep_programs(not arguments.no_cache)
    decompose_in_one_thread()
    try:
        select(arguments)
    except (ConfigError, StoreError, OSError) as error:
        sys.exit(f"select_settings: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def select(arguments: argparse.Namespace) -> None:
    """Runs the grid and prints the best point."""
    name = arguments.method
    experiment = read_experiment(arguments.config, methods=[name], stream=arguments.stream)
    given = dict(experiment.settings.get(name, {}))
    chosen = points(arguments.grid)
    store = open_stream(experiment.stream)
    order = read_order(experiment.order, list(store.orders))

    def tell(event: Event) -> None:
        if event.kind == "scores":
            print(f"task {event.number}/{event.count} done", file=sys.stderr, flush=True)

    results = run_sweep(
        store,
        name,
        chosen,
        [arguments.seed],
        experiment.train,
        settings=given,
        order=order,
        listener=tell,
    )
    rows = []
    for point, result in zip(chosen, results, strict=True):
        shown = ", ".join(f"{key} {value}" for key, value in point.items())
        found = columns(result)
        overall, bwt = float(found["Overall"][0]), float(found["BWT"][0])
        if not math.isfinite(overall):
            print(f"{shown}: diverged")
            continue
        rows.append({**point, "Overall": overall, "BWT": bwt, "sum": overall + bwt})
        print(f"{shown}: Overall {overall:.2f}, BWT {bwt:+.2f}, sum {overall + bwt:.2f}")
    if not rows:
        raise ConfigError("Every point of the grid diverged; lower the learning rate.")
    best = max(rows, key=lambda row: row["sum"])
    print(json.dumps({"method": name, "seed": arguments.seed, "best": best}))


if __name__ == "__main__":
    main()
