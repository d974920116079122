"""Several processes, on one host or many, that share one run.

All of them do the same and hold the same; process 0 writes. Whatever may fail in one of them is
done through :func:`in_all`, so that none waits for one that has gone.
"""

import hashlib
import json
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.errors import RunError

Result = TypeVar("Result")


def start_processes(
    coordinator: str | None = None, processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins this process to the others; before anything else is done with JAX.

    Args:
      coordinator: ``HOST:PORT`` of process 0, on a port that is free there.
      processes: how many there are.
      process_id: number of this one, from 0.

    Without all three, they are taken from the environment of the cluster, as far as JAX knows it.

    Raises:
      ConfigError: if some are missing or wrong, or if JAX finds no cluster or no coordinator.
    """
    given = {"coordinator": coordinator, "processes": processes, "process-id": process_id}
    missing = [f"--{name}" for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise ConfigError(
            f"--coordinator, --processes and --process-id go together; {', '.join(missing)} "
            "is missing."
        )
    if coordinator is not None and processes is not None and process_id is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal():
            raise ConfigError(f"--coordinator must be HOST:PORT, got {coordinator!r}.")
        if not 0 <= process_id < processes:
            raise ConfigError(
                "--process-id must be at least 0 and below --processes, "
                f"got --process-id {process_id} --processes {processes}."
            )
    try:
        jax.distributed.initialize(coordinator, processes, process_id)
    except (RuntimeError, ValueError, OSError) as error:
        line = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"The processes could not be joined: {line} On clusters that JAX does not know, give "
            "--coordinator HOST:PORT --processes N --process-id I."
        ) from error


def is_first() -> bool:
    """Whether this is process 0, the one that writes."""
    return jax.process_index() == 0


def in_all(action: Callable[[], Result]) -> Result:
    """Does something in every process; if it fails in one, it fails in all.

    Example:
      >>> from hmcl_jax.continual.distributed import in_all
      >>> in_all(lambda: 2 + 2)
      4
    """
    result, failure = None, None
    try:
        result = action()
    except Exception as error:
        failure = error
    if jax.process_count() > 1:
        failed = multihost_utils.process_allgather(np.array(failure is not None))
        if failure is None and failed.any():
            number = int(np.argmax(failed))
            raise RunError(f"process {number} stopped; its output says why.")
    if failure is not None:
        raise failure
    return result  # type: ignore[return-value]


def in_first(action: Callable[[], Result]) -> Result | None:
    """Does something in process 0 alone, where the result is; the others wait for it."""
    return in_all(lambda: action() if is_first() else None)


def from_first(tree: Any) -> Any:
    """Arrays as process 0 has them, bit by bit; all processes have some of the same shapes."""
    if jax.process_count() == 1:
        return tree
    arrays = jax.tree.map(lambda leaf: np.asarray(leaf, order="C"), tree)
    raw = jax.tree.map(lambda x: x.reshape(-1).view(np.uint8), arrays)  # sums of floats may round
    sent = multihost_utils.broadcast_one_to_all(raw)
    return jax.tree.map(
        lambda x, like: jnp.asarray(np.asarray(x).view(like.dtype).reshape(like.shape)),
        sent,
        arrays,
    )


def check_same(arguments: Any) -> None:
    """Refuses processes that were started with different arguments, which are plain data."""
    text = json.dumps(arguments, sort_keys=True)
    digest = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)

    def compare() -> None:
        try:
            multihost_utils.assert_equal(digest)
        except AssertionError as error:
            raise ConfigError(
                f"Process {jax.process_index()} was started with different arguments from process "
                "0. Start every process with the same stream, methods, seeds and settings."
            ) from error

    in_all(compare)
