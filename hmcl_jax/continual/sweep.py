"""One method at many settings: the points of a sweep and the seeds share one axis, one program.

Settings that a method calls `sweepable` (:class:`hmcl_jax.continual.Method`) are numbers that enter
the compiled training as arguments, so that a sweep over them compiles what a single run compiles.
Points that differ in other settings run one after the other.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from hmcl_jax.continual.config import ConfigError, TrainConfig
from hmcl_jax.continual.experiment import SEEDS, check_order, check_seeds
from hmcl_jax.continual.learner import own_config
from hmcl_jax.continual.mesh import check_mesh
from hmcl_jax.continual.methods import make_method
from hmcl_jax.continual.run import Listener, MethodRun, Stream, StreamResult
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.data.store import Store

Point = Mapping[str, Any]


def run_sweep(
    store: Store,
    name: str,
    points: Sequence[Point],
    seeds: Sequence[int] = SEEDS,
    config: TrainConfig | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    order: str | Sequence[str] = "canonical",
    listener: Listener | None = None,
) -> list[StreamResult]:
    """Learns a stream with one method at many settings. Nothing is written.

    Args:
      store: the stream.
      name: of the method, as in ``run_stream``.
      points: settings by name, one mapping per point.
      seeds: of every point.
      config: shared settings.
      settings: of the method, at all points.
      order: a name in ``store.orders``, or names of tasks.
      listener: called with every event.

    Returns:
      A result per point, as ``run_stream`` gives it; where training diverged, scores are NaN.

    Raises:
      ConfigError, StoreError: before anything is trained.

    Example:
      >>> from hmcl_jax.continual import TrainConfig, run_sweep
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> store = synthetic_stream(tasks=2, classes=4, dimension=8)
      >>> points = [{"beta": 0.0}, {"beta": 0.5}]
      >>> loose, tight = run_sweep(store, "hmcl_mr", points, [0], TrainConfig(batch=64))
      >>> print(loose.settings["beta"], tight.settings["beta"], tight.scores.shape)
      0.0 0.5 (1, 2, 2)
    """
    config = TrainConfig() if config is None else config
    seeds = check_seeds(seeds)
    if not points:
        raise ConfigError("points must be at least one, got none.")
    tables = [{**(settings or {}), **point} for point in points]
    methods = [make_method(name, table) for table in tables]  # refuses bad ones, before training
    tasks = check_order(store, order)
    store.validate()
    sweepable = methods[0].sweepable
    groups: dict[str, list[int]] = {}
    for number, method in enumerate(methods):
        fixed = [(k, v) for k, v in method.described().items() if k not in sweepable]
        groups.setdefault(repr((fixed, method.structure())), []).append(number)
    for numbers in groups.values():
        check_mesh(own_config(config, methods[numbers[0]]), len(seeds) * len(numbers))
    stream = Stream(store, tasks, Evaluator(store.K, config.device_memory), listener)
    results: dict[int, StreamResult] = {}
    for numbers in groups.values():
        rows = [number for number in numbers for _ in seeds]
        sweep = {
            setting: jnp.asarray([getattr(methods[row], setting) for row in rows], float)
            for setting in sweepable
            if len({getattr(methods[number], setting) for number in numbers}) > 1
        }
        method = methods[numbers[0]]
        run = MethodRun(stream, method, seeds * len(numbers), own_config(config, method), sweep)
        whole = run.learn()
        for position, number in enumerate(numbers):
            own = slice(position * len(seeds), (position + 1) * len(seeds))
            results[number] = _part(whole, own, methods[number].described())
    return [results[number] for number in range(len(points))]


def _part(whole: StreamResult, own: slice, settings: Mapping[str, Any]) -> StreamResult:
    """The result of one point."""
    return dataclasses.replace(
        whole,
        settings=settings,
        seeds=whole.seeds[own],
        scores=whole.scores[own],
        details=[
            [{measure: values[own] for measure, values in cell.items()} for cell in row]
            for row in whole.details
        ],
        losses=[losses[own] for losses in whole.losses],
        logs=[{figure: values[own] for figure, values in log.items()} for log in whole.logs],
        heads={modality: W[own] for modality, W in whole.heads.items()},
        stopped=tuple(
            dataclasses.replace(found, seed_index=found.seed_index - own.start)
            for found in whole.stopped
            if own.start <= found.seed_index < own.stop
        ),
    )
