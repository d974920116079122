"""`hmcl sweep frontier`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["sweep", "frontier", *sys.argv[1:]])
