"""Radii, entailment cones, class trees and scores of the frozen features of a store, as a table.

    python tools/measure_pocket.py
    python tools/measure_pocket.py pocket-modalities

docs/pocket.md holds the table of pocket16. The row of held-out base pairs comes from the store's
provenance: build_pocket.py measured it with towers that were trained on nine tenths of the base.
"""

import argparse
import json
import sys

from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import StoreError, read_store
from hmcl_jax.evaluation.frozen import PairMeasures, measure_table, pair_cells

HELD_OUT = "held-out base pairs, towers of nine tenths"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = ", ".join(EMBEDDED)
    parser.add_argument("store", nargs="?", default="pocket", help=f"its path, or {names}")
    arguments = parser.parse_args()
    embedded = EMBEDDED.get(arguments.store)
    try:
        store = read_store(arguments.store) if embedded is None else embedded()
    except (StoreError, OSError) as error:
        sys.exit(f"measure_pocket: {error}")
    print(measure_table(store))
    if HELD_OUT in store.provenance:
        held = json.loads(store.provenance[HELD_OUT])
        cells = pair_cells(PairMeasures(**held["held_out"]))
        spearman, zero = f"{held['spearman']:.2f}", f"{100 * held['zero_shot']:.1f}"
        print("| " + " | ".join([HELD_OUT, *cells, spearman, "", zero, ""]) + " |")


if __name__ == "__main__":
    main()
