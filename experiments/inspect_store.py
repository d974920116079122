"""`hmcl inspect`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["inspect", *sys.argv[1:]])
