"""`hmcl run`, from a checkout."""

import sys

from hmcl_jax.cli.main import main

if __name__ == "__main__":
    main(["run", *sys.argv[1:]])
