"""Shows what is in a feature store, and whether anything is wrong with it.

  hmcl inspect pocket
  hmcl inspect store --figure gap.png

Prints tasks, counts and scores, the radii of every side, the modality gap, where the features come
from, and every complaint about them; the exit code is 1 if there is one.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from hmcl_jax.cli.options import open_stream
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.store_checks import validate_task
from hmcl_jax.evaluation import measure_gaps
from hmcl_jax.report.figures.sweeps import draw_gap
from hmcl_jax.report.results import markdown_rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="its path, or the name of an embedded stream")
    parser.add_argument("--figure", help="draw radii and the modality gap into this new file")


def run(options: argparse.Namespace) -> None:
    if options.figure and Path(options.figure).exists():
        raise StoreError(f"--figure {options.figure} exists already; choose another.")
    store = open_stream(options.store)
    print(store.describe())
    wrong = []
    for task in store:
        try:
            validate_task(task, store.dimension, store.K)
        except StoreError as error:  # the first complaint of each task
            wrong.append(str(error))
    if wrong:
        print("\nWrong:", *wrong, sep="\n- ")
        sys.exit(1)
    sides, gaps = measure_gaps(store)
    rows = [["task, modality", "rows", "least radius", "median", "largest"]]
    for side in sides:
        radii = [f"{radius:.3f}" for radius in np.quantile(side.radii, (0, 0.5, 1))]
        rows.append([f"{side.task}, {side.modality}", str(side.rows), *radii])
    print(f"\n{markdown_rows(rows)}")
    rows = [["task", "gap of centroids", "distance of pairs", "of random pairs"]]
    for gap in gaps:
        rows.append([gap.task, *(f"{x:.3f}" for x in (gap.centroids, gap.pairs, gap.random))])
    print(f"\n{markdown_rows(rows)}")
    for task in store:
        notes = "; ".join(f"{key}: {value}" for key, value in task.provenance.items())
        print(f"\n{task.name}: {notes}" if notes else "", end="")
    print(f"\nfingerprint {store.fingerprint}\nNothing is wrong with it.")
    if options.figure:
        draw_gap(sides, options.figure)
        print(f"wrote {options.figure}")
