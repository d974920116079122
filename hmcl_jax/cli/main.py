"""The command ``hmcl``: its subcommands, and one policy for errors and exit codes.

The exit code is 0, 1 after an error that a sentence explains, 2 for wrong options and 130 after
Ctrl-C. Errors that no sentence explains are bugs and keep their traceback.
"""

import argparse
import contextlib
import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence

import hmcl_jax
from hmcl_jax._extras import install_command

# Modules of hmcl_jax.cli: `add_options` declares the options, `run` does the work.
COMMANDS = {
    "run": "train methods on a stream of tasks, all seeds side by side",
    "report": "analyse finished runs: one HTML page, figures, tables, all numbers",
    "select": "choose settings on one seed, by one rule",
    "sweep": "draw scores against a method's strength, or against the pairs it keeps",
    "convert": "convert a published checkpoint of MERU or HyCoCLIP",
    "extract": "encode pictures and texts with a frozen backbone into a store",
    "inspect": "show what is in a store, and what is wrong with it",
    "methods": "list the methods and their settings",
}
RESUMABLE = ("run", "select", "sweep", "extract")
# The extra of hmcl_jax that installs all that a command needs.
EXTRAS = {"report": "report", "sweep": "report", "convert": "convert", "extract": "backbones"}


class UsageError(Exception):
    """Options that do not go together; the parser reports it, with exit code 2."""


def main(arguments: Sequence[object] | None = None) -> None:
    """Runs one subcommand of the process's or the given command line; exits after any failure."""
    words = list(map(str, sys.argv[1:] if arguments is None else arguments))
    name = words[0] if words else "--help"
    if name not in COMMANDS:  # help, version, or an error
        listed = "\n".join(f"  {name:<8} {about}" for name, about in COMMANDS.items())
        parser = argparse.ArgumentParser(
            prog="hmcl",
            description="Hyperbolic multimodal continual learning.",
            epilog=f"commands:\n{listed}\n\nhmcl COMMAND --help shows the options of a command.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        version = f"hmcl_jax {hmcl_jax.__version__}"
        parser.add_argument("--version", action="version", version=version)
        parser.add_argument("command", choices=tuple(COMMANDS), metavar="COMMAND")
        parser.parse_args([name])
        return
    parser = argparse.ArgumentParser(
        prog=f"hmcl {name}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    remedy = "Rerun with --resume to continue." if name in RESUMABLE else ""
    with explained(parser.prog, remedy, parser, EXTRAS.get(name)):
        module = importlib.import_module(f"hmcl_jax.cli.{name}")
        parser.description = module.__doc__
        module.add_options(parser)
        module.run(parser.parse_args(words[1:]))


@contextlib.contextmanager
def explained(
    command: str, remedy: str, parser: argparse.ArgumentParser, extra: str | None = None
) -> Iterator[None]:
    """Ends the process after an error, with a sentence and an exit code.

    After an interruption the sentence ends with the `remedy`; for a missing package it names the
    `extra` of hmcl_jax that installs it.
    """
    try:
        yield
    except UsageError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"\n{command}: stopped. {remedy}", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not is_explained(error):
            raise
        text = f"{command}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            text = f"{command}: {install_command(error.name.partition('.')[0], extra)}"
        if isinstance(error, OSError) and remedy:
            text += f"\nFix the problem above. {remedy}"
        sys.exit(text)


def is_explained(error: Exception) -> bool:
    """Whether the message is for the user: this package wrote it, or the system did."""
    if isinstance(error, OSError | ModuleNotFoundError | FloatingPointError | MemoryError):
        return True
    if type(error).__module__.startswith("hmcl_jax."):
        return True
    # A ValueError of the core is the user's, one that JAX raises below it is our bug.
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    ours = frame.f_globals.get("__name__", "").startswith("hmcl_jax.")
    return isinstance(error, ValueError | ImportError) and ours
