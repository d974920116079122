"""Sweeps methods over a setting, or over the pairs they keep.

  hmcl sweep frontier --config baselines --out runs/frontier
  hmcl sweep replay --config baselines --out runs/replay_budget

`frontier` draws each method's trade-off between learning and forgetting as its strength varies;
other settings are the config's. It writes frontier.json (everything), .md (the points, and which of
them another method without replay beats in both respects), .png and .svg.

`replay` asks how many stored pairs HMCL is worth: Overall against the pairs that replay methods
keep, 16 to 1024 in all. It writes replay_budget.json, .md, .png and .svg. For each row of HMCL and
each method it interpolates the number of pairs at which the method's Overall reaches the row's,
linearly in log2 of the pairs; in brackets stand the least and the largest number over the seeds.

Both write after every curve or size; an interrupted command continues with --resume.
"""

import argparse

from hmcl_jax.cli import frontier, options, records, replay_budget
from hmcl_jax.report.figures.style import pyplot

KINDS = {"frontier": frontier.sweep, "replay": replay_budget.sweep}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS)
    records.add_options(parser)
    parser.add_argument("--seeds", type=options.numbers, help="whole numbers, separated by commas")
    parser.add_argument(
        "--methods", type=options.names, help="names, separated by commas; by default all"
    )
    parser.add_argument("--pairs", type=options.numbers, help="of `replay`: sizes, with commas")


def run(arguments: argparse.Namespace) -> None:
    options.load_added_methods(arguments)
    options.prepare_jax(arguments)
    pyplot()  # if it is missing, say so before anything is trained
    KINDS[arguments.kind](arguments)
