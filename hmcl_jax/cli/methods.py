"""Lists the methods with their settings, memory and reference.

hmcl methods
hmcl methods --method-file mine.py
"""

import argparse

from hmcl_jax.cli.options import add_methods, load_added_methods
from hmcl_jax.continual.methods import list_methods


def add_options(parser: argparse.ArgumentParser) -> None:
    add_methods(parser)


def run(options: argparse.Namespace) -> None:
    load_added_methods(options)
    print(list_methods())
