"""The command ``hmcl``; :mod:`hmcl_jax.cli.main` has its subcommands and its policy for errors."""
