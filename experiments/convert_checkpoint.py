"""`hmcl convert`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["convert", *sys.argv[1:]])
