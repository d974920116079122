"""An experiment: which stream, methods, seeds and order, and all settings; read from a file."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmcl_jax.continual.config import (
    ConfigError,
    TrainConfig,
    from_mapping,
    merge,
    parse_override,
    read_toml,
)
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import check_name, make_method
from hmcl_jax.data.store import Store, Task

SEEDS = (42, 123, 456, 789, 1024)  # the paper's
DEFAULT_METHODS = ("vanilla", "hmcl_mr", "hmcl_ca", "hmcl_rotation")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """The work of ``hmcl run``."""

    stream: str  # "pocket", or the path of a store
    methods: tuple[str, ...]
    settings: Mapping[str, Mapping[str, Any]]  # of the methods, by name
    seeds: tuple[int, ...]
    order: str  # a name in the store, or the path of a file with one task per line
    train: TrainConfig  # settings that all methods share


def read_experiment(
    path: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    methods: Sequence[str] | None = None,
    variant: str | None = None,
    **replaced: Any,
) -> Experiment:
    """An experiment from a TOML file, single settings and arguments, the last ones on top.

    The file may hold ``stream``, ``seeds``, ``order``, a table ``[train]``, tables
    ``[methods.NAME]`` with the method's settings (and ``method``, if NAME is not one itself) and
    tables ``[variants.NAME]`` with the same again for one stream or backbone. ``[paper]`` is for
    experiments/reproduce.py and ignored.
    """
    table: dict[str, Any] = {} if path is None else read_toml(path)
    table = apply_variant(table, variant, replaced.get("stream"))
    table.pop("paper", None)
    listed = table.get("methods", {})
    for text in overrides:
        table = merge(table, parse_override(text))
    table = merge(table, {key: value for key, value in replaced.items() if value is not None})
    known = ("stream", "seeds", "order", "train", "methods")
    for key in table:
        if key not in known:
            raise ConfigError(f"{key} is not a setting; known are {', '.join(known)}.")
    for key in ("stream", "order"):
        if not isinstance(table.get(key, ""), str):
            raise ConfigError(f"{key} must be a name or a path, got {table[key]!r}.")
    settings = _tables("methods", table.get("methods", {}))
    names = tuple(methods if methods is not None else (listed or DEFAULT_METHODS))
    check_methods(names, settings)
    return Experiment(
        stream=table.get("stream", "pocket"),
        methods=names,
        settings=settings,
        seeds=check_seeds(table.get("seeds", SEEDS)),
        order=table.get("order", "canonical"),
        train=from_mapping(TrainConfig(), table.get("train", {}), "train"),
    )


def apply_variant(
    table: Mapping[str, Any], variant: str | None = None, stream: str | None = None
) -> dict[str, Any]:
    """The tables of a file with those of one variant on top, by default the stream's."""
    base = {key: value for key, value in table.items() if key != "variants"}
    variants = _tables("variants", table.get("variants", {}))
    if variant is None:
        name = base.get("stream", "pocket") if stream is None else stream
        return merge(base, variants.get(str(name), {}))
    if variant not in variants:
        known = ", ".join(variants) or "none"
        raise ConfigError(f"variant must be one of the file's ({known}), got {variant!r}.")
    return merge(base, variants[variant])


def _tables(key: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping) or not all(isinstance(t, Mapping) for t in value.values()):
        raise ConfigError(f"{key} must be tables by name, got {value!r}.")
    return value


def read_order(order: str, known: Sequence[str]) -> str | list[str]:
    """The name of an order, or the tasks that a file names, one per line."""
    if order in known:
        return order
    try:
        if not Path(order).is_file():  # a device such as /dev/zero has no end
            raise OSError("no such file")
        lines = Path(order).read_text("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or NUL in the name
        raise ConfigError(
            f"order must be one of {', '.join(known)}, or a file with one task per line, "
            f"got order = {order!r}: {error}."
        ) from error
    names = (line.strip() for line in lines)
    return [name for name in names if name and not name.startswith("#")]


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    whole = isinstance(seeds, Sequence) and all(
        isinstance(seed, int | np.integer) and not isinstance(seed, bool) and 0 <= seed < 2**63
        for seed in seeds
    )
    if not whole or not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(
            f"seeds must be different whole numbers from 0 to 2**63 - 1, got {seeds!r}."
        )
    return tuple(int(seed) for seed in seeds)


def check_methods(
    methods: Sequence[str | Method], settings: Mapping[str, Mapping[str, Any]]
) -> list[Method]:
    """The methods, each once, with settings in range."""
    # Also of methods that are not used, because their names or settings may be mistyped.
    made = {name: make_method(name, table) for name, table in _tables("settings", settings).items()}
    found = [m if isinstance(m, Method) else made.get(m) or make_method(m) for m in methods]
    for method in found:
        check_name(method.name)
        method.check()
    names = [method.name for method in found]
    if not names or len({name.lower() for name in names}) != len(names):
        raise ConfigError(f"methods must be at least one, each once, got {names}.")
    return found


def check_order(store: Store, order: str | Sequence[str]) -> list[Task]:
    """The tasks in an order; parts of the stream are allowed, repetitions are not."""
    if isinstance(order, str):
        if order not in store.orders:
            known = ", ".join(store.orders)
            raise ConfigError(
                f"order must be one of {known}, or a list of tasks, got order = {order!r}."
            )
        order = store.orders[order]
    tasks = {task.name: task for task in store}
    if not order or len(set(order)) != len(order) or not tasks.keys() >= set(order):
        raise ConfigError(
            f"order must name tasks of {store.name} ({', '.join(tasks)}), each once, "
            f"got {list(order)}."
        )
    return [tasks[name] for name in order]
