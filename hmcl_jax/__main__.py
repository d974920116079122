"""``python -m hmcl_jax``, the same as ``hmcl``."""

from hmcl_jax.cli.main import main

if __name__ == "__main__":
    main()
