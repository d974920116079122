"""`hmcl run`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["run", *sys.argv[1:]])
