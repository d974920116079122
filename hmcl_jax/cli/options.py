"""Options that several commands share, and how their values are read."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from hmcl_jax.continual import ConfigError
from hmcl_jax.continual.cache import keep_programs
from hmcl_jax.continual.experiment import Experiment, read_experiment, read_order
from hmcl_jax.continual.plugins import GROUP, load_methods, load_plugin
from hmcl_jax.continual.threads import decompose_in_one_thread
from hmcl_jax.data.errors import StoreError
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.store import Store, read_store

# Where an installed package has its configs, and where a checkout has them.
CONFIGS = (
    Path(__file__).parent / "configs",
    Path(__file__).parents[2] / "experiments" / "configs",
)


def names(text: str) -> list[str]:
    """Names separated by commas, as the ``type`` of an option."""
    found = [name.strip() for name in text.split(",")]
    if not all(found):
        raise argparse.ArgumentTypeError(f"must be names separated by commas, got {text!r}")
    return found


def numbers(text: str) -> list[int]:
    """Whole numbers separated by commas, as the ``type`` of an option."""
    # argparse reports a ValueError as "invalid numbers value", with the text.
    return [int(number) for number in text.split(",")]


def add_experiment(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose the stream and the settings."""
    known = ", ".join(known_configs())
    parser.add_argument("--config", metavar="FILE", help=f"a TOML file, or one of {known}")
    parser.add_argument("--variant", help="which [variants.NAME] of the config, such as meru-l")
    streams = f"{', '.join(EMBEDDED)} (embedded), or the path of a store"
    parser.add_argument("--stream", help=streams)
    setting = "one setting, such as train.batch=256; may be repeated"
    add_repeated(parser, "--set", "KEY=VALUE", setting)


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Adds the options that load methods from outside the package."""
    yours = "a Python file of yours with METHODS = {name: Entry}; it is executed; may be repeated"
    add_repeated(parser, "--method-file", "FILE.py", yours)
    installed = f"methods of an installed package, an entry point of {GROUP}; may be repeated"
    add_repeated(parser, "--plugin", "NAME", installed)


def add_repeated(parser: argparse.ArgumentParser, name: str, value: str, about: str) -> None:
    parser.add_argument(name, action="append", default=[], metavar=value, help=about)


def add_cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-cache", action="store_true", help="compile again, and keep nothing")


def prepare_jax(options: argparse.Namespace) -> None:
    """Keeps compiled programs unless --no-cache is given; decompositions use one thread."""
    keep_programs(not options.no_cache)
    decompose_in_one_thread()


def load_added_methods(options: argparse.Namespace) -> dict[str, str]:
    """Loads the methods of --method-file and --plugin; returns the source of each, by name."""
    sources = {name: str(path) for path in options.method_file for name in load_methods(path)}
    for plugin in options.plugin:
        sources |= dict.fromkeys(load_plugin(plugin), f"entry point {plugin}")
    return sources


def open_experiment(
    options: argparse.Namespace,
    methods: Sequence[str] | None,
    seeds: Sequence[int] | None,
    order: str | None = None,
) -> tuple[Experiment, Store, str | list[str]]:
    """The experiment of :func:`add_experiment`'s options, its stream and the order of the tasks."""
    experiment = read_experiment(
        find_config(options.config),
        options.set,
        methods=methods,
        variant=options.variant,
        stream=options.stream,
        seeds=seeds,
        order=order,
    )
    store = open_stream(experiment.stream)
    return experiment, store, read_order(experiment.order, list(store.orders))


def find_config(name: str | None) -> Path | None:
    """The path of a config: as given, or of one that comes with the package, by its name."""
    if name is None:
        return None
    if Path(name).is_file() or Path(name).suffix:
        return Path(name)
    configs = known_configs()
    if name not in configs:
        known = ", ".join(configs)
        raise ConfigError(f"--config must be a TOML file or one of {known}, got {name!r}.")
    return configs[name]


def known_configs() -> Mapping[str, Path]:
    """Configs that come with the package, by name; those of a wheel win over a checkout's."""
    return {
        path.stem: path for folder in reversed(CONFIGS) for path in sorted(folder.glob("*.toml"))
    }


def open_stream(stream: str) -> Store:
    """An embedded stream, or the store at a path."""
    if stream in EMBEDDED:
        return EMBEDDED[stream]()
    if not stream or not Path(stream).exists():
        known = ", ".join(EMBEDDED)
        raise StoreError(f"--stream must be {known} or the path of a store, got {stream!r}.")
    return read_store(stream)
