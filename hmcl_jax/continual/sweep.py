"""One method at many settings: points of a sweep and seeds share one axis and one program.

The `sweepable` settings of a method are arguments of the compiled training, so a sweep over them
compiles as much as a single run. Points that differ in other settings run one after the other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from hmcl_jax.continual.config import ConfigError, TrainConfig
from hmcl_jax.continual.experiment import SEEDS
from hmcl_jax.continual.learner import own_config
from hmcl_jax.continual.mesh import check_mesh
from hmcl_jax.continual.methods import make_method
from hmcl_jax.continual.run import Listener, MethodRun, Stream, StreamResult
from hmcl_jax.data.store import Store


def run_sweep(
    store: Store,
    name: str,
    points: Sequence[Mapping[str, Any]],
    seeds: Sequence[int] = SEEDS,
    config: TrainConfig | None = None,
    *,
    order: str | Sequence[str] = "canonical",
    listener: Listener | None = None,
) -> list[StreamResult]:
    """Learns a stream with one method at many settings. Nothing is written.

    Args:
      store: the stream.
      name: of the method.
      points: settings of the method by name, one mapping per point.
      seeds: of every point.
      config: settings that all points share.
      order: a name in ``store.orders``, or names of tasks.
      listener: called with every :class:`hmcl_jax.continual.Event`.

    Returns:
      A result per point; where training diverged, scores are NaN.

    Example:
      >>> from hmcl_jax.continual import TrainConfig, run_sweep
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store = synthetic_stream(tasks=2, classes=4, dimension=8)
      >>> points = [{"beta": 0.0}, {"beta": 0.5}]
      >>> loose, tight = run_sweep(store, "hmcl_mr", points, [0], TrainConfig(batch=64))
      >>> print(tight.settings["beta"], tight.scores.shape)
      0.5 (1, 2, 2)
    """
    stream = Stream(store, seeds, config, {"order": order, "listener": listener})
    seeds = stream.seeds
    if not points:
        raise ConfigError("points must be at least one, got none.")
    methods = [make_method(name, point) for point in points]
    sweepable = methods[0].sweepable
    # Other settings are constants of the compiled programs, so points with the same share one run.
    groups: dict[str, list[int]] = {}
    for number, method in enumerate(methods):
        fixed = [(k, v) for k, v in method.described().items() if k not in sweepable]
        groups.setdefault(repr((fixed, method.structure())), []).append(number)
    for numbers in groups.values():
        check_mesh(own_config(stream.config, methods[numbers[0]]), len(seeds) * len(numbers))
    results: dict[int, StreamResult] = {}
    for numbers in groups.values():
        method = methods[numbers[0]]
        rows = [methods[number] for number in numbers for _ in seeds]
        sweep = {
            setting: jnp.asarray([getattr(row, setting) for row in rows], float)
            for setting in sweepable
            if len({getattr(methods[number], setting) for number in numbers}) > 1
        }
        whole = MethodRun(stream, method, seeds * len(numbers), sweep).learn()
        for position, number in enumerate(numbers):
            own = slice(position * len(seeds), (position + 1) * len(seeds))
            results[number] = _part(whole, own, methods[number].described())
    return [results[number] for number in range(len(points))]


def _part(whole: StreamResult, own: slice, settings: Mapping[str, Any]) -> StreamResult:
    """The result of one point."""

    def cut(tables: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[own] for name, values in tables.items()}

    return dataclasses.replace(
        whole,
        settings=settings,
        seeds=whole.seeds[own],
        scores=whole.scores[own],
        details=[[cut(cell) for cell in row] for row in whole.details],
        losses=[losses[own] for losses in whole.losses],
        logs=[cut(log) for log in whole.logs],
        heads=cut(whole.heads),
        stopped=tuple(
            dataclasses.replace(one, seed_index=one.seed_index - own.start)
            for one in whole.stopped
            if own.start <= one.seed_index < own.stop
        ),
    )
