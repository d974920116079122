"""Chooses a method's settings on one seed, by the trade-off between Overall and BWT.

    python experiments/select_settings.py --method hmcl_mr \
        --grid variance=0.5,0.6,0.7,0.8 --grid beta=0.02,0.05,0.1

Runs every point of the grid on the stream with seed 42 alone and prints Overall, BWT and their sum;
the largest sum wins. It weighs a point of final score like a point of forgetting. Settings are then
fixed for all seeds: put them into the config.
"""

import argparse
import itertools
import json
import sys

from run_stream import open_stream

from hmcl_jax.continual import ConfigError, run_stream
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.validation import StoreError
from hmcl_jax.report import columns


def points(grids: list[str]) -> list[dict[str, object]]:
    """All combinations of ``name=value,value,...``."""
    axes = []
    for grid in grids:
        name, _, values = grid.partition("=")
        if not values:
            raise ConfigError(f"--grid is written name=value,value,..., got {grid!r}.")
        axes.append([parse_override(f"{name}={value}") for value in values.split(",")])
    return [{k: v for part in point for k, v in part.items()} for point in itertools.product(*axes)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--config", help="a TOML file for everything else")
    parser.add_argument("--stream", help="pocket, or the path of a store")
    parser.add_argument("--method", required=True)
    parser.add_argument("--grid", action="append", default=[], metavar="NAME=VALUES")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    rows = []
    try:
        experiment = read_experiment(
            arguments.config, methods=[arguments.method], stream=arguments.stream
        )
        store = open_stream(experiment.stream)
        given = dict(experiment.settings.get(arguments.method, {}))
        for point in points(arguments.grid):
            settings = {arguments.method: {**given, **point}}
            (result,) = run_stream(
                store,
                [arguments.method],
                [arguments.seed],
                experiment.train,
                order=experiment.order,
                settings=settings,
            ).values()
            found = columns(result)
            overall, bwt = float(found["Overall"][0]), float(found["BWT"][0])
            rows.append({**point, "Overall": overall, "BWT": bwt, "sum": overall + bwt})
            shown = ", ".join(f"{name} {value}" for name, value in point.items())
            print(f"{shown}: Overall {overall:.2f}, BWT {bwt:+.2f}, sum {overall + bwt:.2f}")
            sys.stdout.flush()
    except (ConfigError, StoreError) as error:
        sys.exit(f"select_settings: {error}")
    best = max(rows, key=lambda row: row["sum"])
    print(json.dumps({"method": arguments.method, "seed": arguments.seed, "best": best}))


if __name__ == "__main__":
    main()
