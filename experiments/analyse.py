"""`hmcl report`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

main(["report", *sys.argv[1:]])
