"""`hmcl extract`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["extract", *sys.argv[1:]])
