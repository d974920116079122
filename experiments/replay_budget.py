"""`hmcl sweep replay`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["sweep", "replay", *sys.argv[1:]])
