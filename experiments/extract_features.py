"""`hmcl extract`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

if __name__ == "__main__":
    main(["extract", *sys.argv[1:]])
