"""What is in a feature store, and whether anything is wrong with it.

    python experiments/inspect_store.py pocket
    python experiments/inspect_store.py store --figure gap.png

Prints tasks, counts and scores, the radii of every side, the modality gap, where the features come
from, and every complaint about them; the exit code is 1 if there is one.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store
from hmcl_jax.data.store_checks import validate_task
from hmcl_jax.evaluation import measure_gaps
from hmcl_jax.report.figures.sweeps import draw_gap


def complaints(store: Store) -> list[str]:
    """What is wrong with the tasks, the first complaint of each."""
    found = []
    for task in store:
        try:
            validate_task(task, store.dimension, store.K)
        except StoreError as error:
            found.append(str(error))
    return found


def check_figure(path: Path) -> None:
    """Refuses a path that cannot be drawn to, before anything is computed."""
    if path.exists():
        raise StoreError(f"--figure {path} exists already; choose another.")
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise StoreError(f"--figure must end in .png, .pdf or .svg, got {path}.")


def table(header: list[str], rows: list[list[str]]) -> str:
    """Aligned columns, the first two to the left."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: list[str]) -> str:
        cells = zip(row, widths, strict=True)
        padded = [c.rjust(w) if i > 1 else c.ljust(w) for i, (c, w) in enumerate(cells)]
        return "  ".join(padded).rstrip()

    lines = [line(row) for row in (header, *rows)]
    rule = "-" * max(map(len, lines))
    return "\n".join([lines[0], rule, *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", help=f"its path, or {', '.join(EMBEDDED)}")
    parser.add_argument("--figure", help="draws radii and the modality gap into this new file")
    arguments = parser.parse_args()
    try:
        if arguments.figure:
            check_figure(Path(arguments.figure))
        embedded = EMBEDDED.get(arguments.store)
        store = read_store(arguments.store) if embedded is None else embedded()
        wrong = complaints(store)
        print(store.describe())
        if wrong:
            print("\nWrong:", *wrong, sep="\n- ")
            sys.exit(1)
        sides, gaps = measure_gaps(store)
        rows = [
            [p.task, p.modality, str(p.rows)]
            + [f"{np.quantile(p.radii, share):.3f}" for share in (0, 0.5, 1)]
            for p in sides
        ]
        head = ["task", "modality", "rows", "least radius", "median", "largest"]
        print(f"\n{table(head, rows)}")
        rows = [[g.task, "", *(f"{x:.3f}" for x in (g.centroids, g.pairs, g.random))] for g in gaps]
        head = ["task", "", "gap of centroids", "distance of pairs", "of random pairs"]
        print(f"\n{table(head, rows)}")
        for task in store:
            notes = "; ".join(f"{key}: {value}" for key, value in task.provenance.items())
            print(f"\n{task.name}: {notes}" if notes else "", end="")
        print(f"\nfingerprint {store.fingerprint}\nNothing is wrong with it.")
        if arguments.figure:
            draw_gap(sides, arguments.figure)
            print(f"wrote {arguments.figure}")
    except (StoreError, ImportError, OSError) as error:
        sys.exit(f"inspect_store: {error}")


if __name__ == "__main__":
    main()
