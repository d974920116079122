"""The compiled functions of a run: the only place that knows jit, the seed axis and the mesh.

Every function is pure and sees one seed; here it is compiled for all seeds. A program is known by
its function, the method and the :class:`TaskSpec`. The gradient of the objective is the same for
all methods without an `extra_loss`, so they share it, and it does not depend on the names of
modalities or on which other heads there are.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import gradients as one_seed
from hmcl_jax.continual.config import TrainConfig, mesh_shape
from hmcl_jax.continual.feed import Feed
from hmcl_jax.continual.gradients import Objective, Total
from hmcl_jax.continual.mesh import DeviceMesh
from hmcl_jax.continual.method import (
    Heads,
    Method,
    MethodState,
    TaskSpec,
    TrainState,
    at_current_heads,
)

Gradients = tuple[Heads, ...]


def apply_sweep(method: Method, sweep: Mapping[str, Any]) -> Method:
    """The method with the settings of a sweep, for one seed or for all."""
    return dataclasses.replace(method, **sweep) if sweep else method


class Programs:
    """Compiled programs, shared by the methods of a run; `config` gives seed axis and mesh."""

    def __init__(self, config: TrainConfig) -> None:
        self.seed_axis = config.seed_axis
        if self.seed_axis == "auto":
            # A CPU does not spread a batch of small products over its cores, and is slowed by it.
            self.seed_axis = "map" if jax.default_backend() == "cpu" else "vmap"
        self.mesh = DeviceMesh(mesh_shape(config.mesh))
        self._compiled: dict[Any, Any] = {}
        self._methods: list[Method] = []  # kept alive, because programs are known by their id

    def count(self) -> int:
        """Programs compiled so far."""
        return sum(program._cache_size() for program in self._compiled.values())

    def probe(self, method: Method, spec: TaskSpec, number: int) -> Callable[..., Heads]:
        """``(state, shared, gradients) -> heads``: where a gradient is taken."""
        spec = _without_rows(spec)
        if method.probes(spec)[number] is at_current_heads:
            return lambda state, shared, gradients: state.heads

        def one(of_seed: tuple[TrainState, Gradients], fed: Any, shared: Any) -> Heads:
            state, gradients = of_seed
            swept = apply_sweep(method, state.sweep)
            own = MethodState(shared, state.method_state)
            return swept.probes(spec)[number](state.heads, gradients, own)

        run = self._program(f"probe{number}", method, spec, one)

        def probe(state: TrainState, shared: Any, gradients: Gradients) -> Heads:
            return run((state._replace(opt_state=()), gradients), (), shared)

        return probe

    def accumulate(self, method: Method, spec: TaskSpec) -> Callable[..., Total]:
        """``(state, shared, point, total, feed) -> total``: adds the gradient of a feed."""
        names: dict[str, str] | None = None
        known: Method | None = method
        if method.extra_loss is None and not method.per_minibatch:
            # The same objective for all such methods and modalities, so they share a program: its
            # key has no method, other names, and defaults for settings that it does not depend on.
            names = {spec.general: "general", spec.specific: "specific"}
            given, general, specific = spec.train, names[spec.general], names[spec.specific]
            train = TrainConfig(kappa=given.kappa, entailment_weight=given.entailment_weight)
            spec = dataclasses.replace(
                spec, general=general, specific=specific, is_first=False, train=train
            )
            known = None
        axis = self.mesh.data_axis

        def one(of_seed: Any, fed: Any, of_all: Any) -> Total:
            (state, point, total), (shared, feed) = of_seed, of_all
            own = MethodState(shared, state.method_state)
            swept = apply_sweep(known, state.sweep) if known else None
            objective = Objective(swept, spec, own, feed._replace(per_seed=fed), axis)
            return one_seed.accumulate(objective, point, total, feed.count, axis)

        run = self._program("accumulate", known, spec, one)

        def accumulate(
            state: TrainState, shared: Any, point: Heads, total: Total, feed: Feed
        ) -> Total:
            own, of_all = state._replace(heads={}, opt_state=()), feed._replace(per_seed=())
            if names is None:
                return run((own, point, total), feed.per_seed, (shared, of_all))
            point, gradient = (
                {name: tree[m] for m, name in names.items()} for tree in (point, total.gradient)
            )
            of_seeds = (TrainState({}, (), (), {}), point, Total(gradient, total.loss))
            found = run(of_seeds, feed.per_seed, ((), of_all))
            gradient = {m: found.gradient[name] for m, name in names.items()}
            return Total({**total.gradient, **gradient}, found.loss)

        return accumulate

    def update(self, method: Method, spec: TaskSpec) -> Callable[..., Any]:
        """``(state, shared, gradients, num_minibatches) -> (state, metrics)``: one step."""
        spec = _without_rows(spec)

        def one(of_seed: tuple[TrainState, Gradients], fed: Any, of_all: Any) -> Any:
            (state, gradients), (shared, num_minibatches) = of_seed, of_all
            swept = apply_sweep(method, state.sweep)
            gradient = gradients[0]
            if not method.per_minibatch:
                own = MethodState(shared, state.method_state)
                gradient = swept.combine(gradients, state.heads, own, num_minibatches, spec)
                one_seed.check_combined(swept, gradient, state.heads)
            after, metrics = one_seed.step(swept, spec, state, gradient)
            return after.heads, _changed(after.opt_state, state.opt_state), metrics

        run = self._program("update", method, spec, one)

        def update(
            state: TrainState, shared: Any, gradients: Gradients, num_minibatches: Any
        ) -> tuple[TrainState, dict[str, jax.Array]]:
            heads, changed, metrics = run((state, gradients), (), (shared, num_minibatches))
            opt_state = _with_changes(state.opt_state, changed)
            return state._replace(heads=heads, opt_state=opt_state), metrics

        return update

    def step_each(self, method: Method, spec: TaskSpec) -> Callable[..., Any]:
        """``(state, shared, loss, feed) -> (state, loss, metrics)``: a step per minibatch."""

        def one(of_seed: tuple[TrainState, jax.Array], fed: Any, of_all: Any) -> Any:
            (state, loss), (shared, feed) = of_seed, of_all
            own = MethodState(shared, state.method_state)
            swept = apply_sweep(method, state.sweep)
            objective = Objective(swept, spec, own, feed._replace(per_seed=fed), None)
            after, loss, metrics = one_seed.step_each(objective, state, loss, feed.count)
            return after.heads, after.opt_state, loss, metrics

        run = self._program("step_each", method, spec, one)

        def step_each(state: TrainState, shared: Any, loss: jax.Array, feed: Feed) -> Any:
            of_all = (shared, feed._replace(per_seed=()))
            heads, opt_state, loss, metrics = run((state, loss), feed.per_seed, of_all)
            return state._replace(heads=heads, opt_state=opt_state), loss, metrics

        return step_each

    def init_optimizer(self, method: Method, spec: TaskSpec) -> Callable[[Heads], Any]:
        """``heads -> opt_state`` for all seeds."""
        key = ("init", id(method), dataclasses.replace(_without_rows(spec), is_first=False))
        if key not in self._compiled:
            self._methods.append(method)
            self._compiled[key] = jax.jit(jax.vmap(method.optimizer(spec).init))
        return self._compiled[key]

    def _program(
        self, name: str, method: Method | None, spec: TaskSpec, one: Callable[..., Any]
    ) -> Callable[..., Any]:
        """`one`, a function ``(of seed, fed, of all)``, compiled for all seeds."""
        if method is not None:
            later = dataclasses.replace(spec, is_first=False)
            if len(method.probes(spec)) == len(method.probes(later)):
                spec = later  # the first task is like the others, so it shares their programs
        key = (name, id(method), spec)
        if key not in self._compiled:
            if method is not None:
                self._methods.append(method)
            self._compiled[key] = self._compile(name, one)
        program = self._compiled[key]
        return self._one_by_one(program) if self.seed_axis == "loop" else program

    def _compile(self, name: str, one: Callable[..., Any]) -> Any:
        def seeds(of_seeds: Any, fed: Any, of_all: Any) -> Any:
            if self.seed_axis == "vmap":
                return jax.vmap(one, in_axes=(0, 0, None))(of_seeds, fed, of_all)
            return jax.lax.map(lambda parts: one(*parts, of_all), (of_seeds, fed))

        def single(seed: Any, of_seeds: Any, fed: Any, of_all: Any) -> Any:
            of_seed, fed = jax.tree.map(
                lambda x: jax.lax.dynamic_slice_in_dim(x, seed, 1), (of_seeds, fed)
            )
            return seeds(of_seed, fed, of_all)

        run = single if self.seed_axis == "loop" else self.mesh.map(seeds)
        run.__name__ = name  # for logs and profiles
        return jax.jit(run)

    @staticmethod
    def _one_by_one(program: Callable[..., Any]) -> Callable[..., Any]:
        def run(of_seeds: Any, fed: Any, of_all: Any) -> Any:
            seeds = len(jax.tree.leaves(of_seeds)[0])
            found = [program(np.int32(seed), of_seeds, fed, of_all) for seed in range(seeds)]
            return jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)

        return run


def _without_rows(spec: TaskSpec) -> TaskSpec:
    """The spec of a program that sees no minibatch, so that tasks of all sizes share it."""
    return dataclasses.replace(spec, batch_rows=0)


def _changed(after: Any, before: Any) -> Any:
    """`after` with None for what a step has not touched, such as an anchor: it is not copied."""
    return jax.tree.map(lambda new, old: None if new is old else new, after, before)


def _with_changes(before: Any, changed: Any) -> Any:
    """What :func:`_changed` was given."""
    return jax.tree.map(
        lambda new, old: old if new is None else new, changed, before, is_leaf=lambda x: x is None
    )
