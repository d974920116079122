"""`hmcl select`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["select", *sys.argv[1:]])
