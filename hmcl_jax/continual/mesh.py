"""Devices that share the training of a task: a mesh with the axes 'seed' and 'data'.

Groups of devices along 'seed' have seeds of their own and never communicate. The devices of a
group, along 'data', share the minibatches of a step: device k of D takes the minibatches k, k + D,
k + 2 D, ..., and one all-reduce per feed and gradient makes their sum whole. Heads, optimizer state
and features are whole on every device of a group, and each steps its own copy.

Only the training of a task is on the mesh. Between tasks every process holds whole, ordinary
arrays, so hooks, scoring and checkpoints do not depend on it, and a run resumes on another mesh.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from hmcl_jax.continual.config import ConfigError, TrainConfig, mesh_shape

SEED, DATA = "seed", "data"


def check_mesh(config: TrainConfig, seeds: int) -> None:
    """Refuses a mesh with too few devices, or one that cannot share this number of seeds."""
    along_seeds, along_data = mesh_shape(config.mesh)
    needed, devices, processes = along_seeds * along_data, jax.device_count(), jax.process_count()
    if needed > devices:
        virtual = f"--xla_force_host_platform_device_count={-(-needed // processes)}"
        raise ConfigError(
            f"mesh = {config.mesh!r} needs {needed} devices, but there are {devices}; use a "
            f"smaller mesh, or virtual devices of the CPU: XLA_FLAGS={virtual} in every process."
        )
    if processes > 1 and needed < devices:
        raise ConfigError(
            f"mesh = {config.mesh!r} has {needed} devices, but {processes} processes must share "
            f"all {devices} that they have; use mesh = '1x{devices}' or another product that is "
            f"{devices}."
        )
    if seeds % along_seeds:
        raise ConfigError(
            f"mesh = {config.mesh!r} shares the seeds among {along_seeds} groups of devices, but "
            f"{seeds} seeds cannot be shared evenly; use a number of seeds that {along_seeds} "
            f"divides, or mesh = '1x{needed}'."
        )


class DeviceMesh:
    """The devices that train a task: one, or a mesh of `shape` ('seed', 'data')."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.shape = shape
        # The axis along which minibatches are shared, if they are.
        self.data_axis = DATA if shape[1] > 1 else None
        self._mesh = None
        if shape != (1, 1):
            # Not Explicit axes, on which vmap and QR fail.
            self._mesh = jax.make_mesh(
                shape,
                (SEED, DATA),
                axis_types=(AxisType.Auto, AxisType.Auto),
                devices=jax.devices()[: shape[0] * shape[1]],
            )

    def map(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """A function ``(of seeds, fed, of all)`` on the mesh; `fed` may come from :meth:`deal`."""
        if self._mesh is None:
            return run
        mesh = self._mesh

        def mapped(of_seeds: Any, fed: Any, of_all: Any) -> Any:
            # A tuple of arrays was dealt; one array is the same order on all devices of a group.
            dealt = (
                jax.tree.map(self._dealt, fed) if isinstance(fed, tuple) else PartitionSpec(SEED)
            )
            specs = (PartitionSpec(SEED), dealt, PartitionSpec())
            # Unchecked, because with checks `jax.grad` itself all-reduces, at every minibatch.
            return jax.shard_map(
                run, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(SEED), check_vma=False
            )(of_seeds, fed, of_all)

        return mapped

    def shard_seeds(self, tree: Any) -> Any:
        """Arrays with a seed axis, the same in all processes, on the devices."""
        return self._put(tree, PartitionSpec(SEED))

    def replicate(self, tree: Any) -> Any:
        """Arrays without one, whole on every device."""
        return self._put(tree, PartitionSpec())

    def deal(self, gathered: Any, rows: int) -> Any:
        """Minibatches ``(seeds, minibatches * rows, ...)``, each on the device that takes it."""
        if self.data_axis is None:
            return self.shard_seeds(gathered)

        def by_device(x: np.ndarray) -> np.ndarray:
            if x.ndim == 1:
                return x
            return x.reshape(len(x), -1, self.shape[1], rows, *x.shape[2:])

        gathered = jax.tree.map(by_device, gathered)
        return jax.tree.map(lambda x: self._put(x, self._dealt(x)), gathered)

    def _dealt(self, x: Any) -> PartitionSpec:
        shared = self.data_axis is not None and x.ndim > 1
        return PartitionSpec(SEED, None, DATA) if shared else PartitionSpec(SEED)

    def _put(self, tree: Any, spec: PartitionSpec) -> Any:
        if self._mesh is None:
            return jax.device_put(tree)
        sharding = NamedSharding(self._mesh, spec)

        def put(leaf: Any) -> jax.Array:
            array = np.asarray(leaf)
            return jax.make_array_from_callback(array.shape, sharding, lambda i: array[i])

        return jax.tree.map(put, tree)

    def whole(self, tree: Any) -> Any:
        """Arrays of the devices as ordinary ones, in every process."""
        if self._mesh is None:
            return tree
        return jax.tree.map(jnp.asarray, multihost_utils.process_allgather(tree, tiled=True))
