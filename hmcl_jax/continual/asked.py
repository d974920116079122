"""What a run is asked for, checked before anything is trained: seeds, methods, order of tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import check_name, make_method
from hmcl_jax.data.store import Store, Task


def check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """Refuses seeds that are none, occur twice or are negative."""
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        raise ConfigError(f"seeds must be a list of whole numbers, got {seeds!r}.")
    found = tuple(seeds)
    for seed in found:
        if not isinstance(seed, int | np.integer) or isinstance(seed, bool) or seed < 0:
            raise ConfigError(f"seeds must be whole numbers of at least 0, got {seed!r}.")
    if not found or len(set(found)) != len(found):
        raise ConfigError(f"seeds must be at least one, each once, got {list(found)}.")
    return tuple(int(seed) for seed in found)


def check_methods(
    methods: Sequence[str | Method], settings: Mapping[str, Mapping[str, Any]]
) -> list[Method]:
    """Records of the methods, each once."""
    if isinstance(methods, str):
        raise ConfigError(f"methods must be a list of names, got the string {methods!r}.")
    for name, table in settings.items():
        if not isinstance(table, Mapping):
            raise ConfigError(f"settings of {name!r} must be a mapping, got {table!r}.")
    records = [
        method if isinstance(method, Method) else make_method(method, settings.get(method))
        for method in methods
    ]
    names = [method.name for method in records]
    for name in names:
        check_name(name)
    if not names or len({name.lower() for name in names}) != len(names):
        raise ConfigError(f"methods must be at least one, each once, got {names}.")
    for name in settings:
        make_method(name, settings[name])  # refuses unknown methods and settings, used or not
    return records


def check_order(store: Store, order: str | Sequence[str]) -> list[Task]:
    """The tasks in an order; parts of the stream are allowed, repetitions are not."""
    if isinstance(order, str):
        if order not in store.orders:
            known = ", ".join(store.orders)
            raise ConfigError(
                f"order must be one of {known}, or a list of tasks, got order = {order!r}."
            )
        order = store.orders[order]
    names = [task.name for task in store]
    for name in order:
        if name not in names:
            raise ConfigError(f"order names the task {name!r}; {store.name} has {names}.")
    if not order or len(set(order)) != len(order):
        raise ConfigError(f"order must name at least one task, each once, got {list(order)}.")
    return [store[name] for name in order]
