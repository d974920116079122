"""Radii, entailment cones, class trees and scores of the frozen features of a store, as a table.

    python tools/measure_pocket.py
    python tools/measure_pocket.py pocket-modalities

docs/pocket.md holds the table of pocket16. The row of held-out base pairs comes from the store's
provenance: build_pocket.py measured it with towers that were trained on nine tenths of the base.
"""

import argparse
import json

from hmcl_jax.cli.options import open_stream
from hmcl_jax.evaluation.frozen import PairMeasures, measure_table, pair_cells

HELD_OUT = "held-out base pairs, towers of nine tenths"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store", nargs="?", default="pocket", help="its path, or an embedded one")
    store = open_stream(parser.parse_args().store)
    print(measure_table(store))
    if HELD_OUT in store.provenance:
        held = json.loads(store.provenance[HELD_OUT])
        cells = pair_cells(PairMeasures(**held["held_out"]))
        spearman, zero = f"{held['spearman']:.2f}", f"{100 * held['zero_shot']:.1f}"
        print("| " + " | ".join([HELD_OUT, *cells, spearman, "", zero, ""]) + " |")


if __name__ == "__main__":
    main()
