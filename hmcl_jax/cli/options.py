"""Options that several commands share, and what they mean."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hmcl_jax.continual import ConfigError
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.config import parse_override
from hmcl_jax.continual.plugins import GROUP, load_methods, load_plugin
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store

# The configs of a wheel, and of a checkout.
CONFIGS = (
    Path(__file__).parent / "configs",
    Path(__file__).parents[2] / "experiments" / "configs",
)


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Where the stream and the settings come from."""
    names = ", ".join(known_configs())
    parser.add_argument("--config", metavar="FILE", help=f"a TOML file, or one of {names}")
    parser.add_argument("--variant", help="which [variants.NAME] of the config, such as meru-l")
    parser.add_argument(
        "--stream", help=f"{', '.join(EMBEDDED)} (embedded), or the path of a store"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one setting, such as train.batch=256; may be repeated",
    )


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Methods that are not in the package."""
    parser.add_argument(
        "--method-file",
        action="append",
        default=[],
        metavar="FILE.py",
        help="a Python file of yours with METHODS = {name: Entry}; it is executed; may be repeated",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help=f"methods of an installed package, an entry point of {GROUP}; may be repeated",
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """The option against keeping compiled programs."""
    parser.add_argument(
        "--no-cache", action="store_true", help="compile again, keep no programs for the next run"
    )


def prepare_jax(options: argparse.Namespace) -> None:
    """Keeps compiled programs unless told otherwise; decompositions take one thread."""
    keep_programs(not options.no_cache)
    decompose_in_one_thread()


def load_added_methods(options: argparse.Namespace) -> dict[str, str]:
    """Loads the methods that :func:`add_methods` names; where each one is from, by its name."""
    sources = {name: str(path) for path in options.method_file for name in load_methods(path)}
    for plugin in options.plugin:
        sources |= dict.fromkeys(load_plugin(plugin), f"entry point {plugin}")
    return sources


def find_config(name: str | None) -> Path | None:
    """The path of a config: as it is given, or of one that comes with the package, by its name."""
    if name is None or Path(name).is_file() or Path(name).suffix:
        return None if name is None else Path(name)
    configs = known_configs()
    if name not in configs:
        known = ", ".join(configs)
        raise ConfigError(f"--config must be a TOML file or one of {known}, got {name!r}.")
    return configs[name]


def known_configs() -> Mapping[str, Path]:
    """Configs that come with the package, by name."""
    return {
        path.stem: path for folder in reversed(CONFIGS) for path in sorted(folder.glob("*.toml"))
    }


def open_stream(stream: str) -> Store:
    """An embedded stream, or the store at a path."""
    if stream in EMBEDDED:
        return EMBEDDED[stream]()
    if not stream or not Path(stream).exists():
        names = ", ".join(EMBEDDED)
        raise StoreError(f"--stream must be {names} or the path of a store, got {stream!r}.")
    return read_store(stream)


def split_names(option: str, text: str | None) -> list[str] | None:
    """Names separated by commas."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"{option} must be names separated by commas, got {text!r}.")
    return names


def split_numbers(option: str, text: str | None) -> list[Any] | None:
    """Values separated by commas; which ones are allowed is checked elsewhere."""
    names = split_names(option, text)
    return None if names is None else [parse_override(f"x={name}")["x"] for name in names]


def split_seeds(text: str | None) -> list[int] | None:
    """Whole numbers separated by commas."""
    try:
        return None if text is None else [int(seed) for seed in text.split(",")]
    except ValueError:
        raise ConfigError(f"--seeds must be whole numbers, got {text!r}.") from None
