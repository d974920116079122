"""Several processes, on one host or many, that share one run.

All of them compute and hold the same; process 0 writes. Whatever may fail in one of them runs in
:func:`in_all`, so that the others do not wait forever.
"""

import hashlib
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from hmcl_jax.continual.config import ConfigError, RunError

Result = TypeVar("Result")


def start_processes(
    coordinator: str | None = None, processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins this process to the others, before any other use of JAX.

    Without arguments, JAX takes them from the environment of a cluster that it knows.
    """
    # JAX would wait for minutes, or end the process.
    if coordinator is not None and not re.fullmatch(r".+:\d+", coordinator):
        raise ConfigError(f"--coordinator must be HOST:PORT, got {coordinator!r}.")
    if None not in (processes, process_id) and process_id not in range(processes or 0):
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
    """Does something in every process; if it fails in one, it fails in all."""
    if jax.process_count() == 1:
        return action()
    try:
        result = action()
    except Exception:  # the others wait until they hear of it
        multihost_utils.process_allgather(np.array(True))
        raise
    failed = multihost_utils.process_allgather(np.array(False))
    if failed.any():
        raise RunError(f"process {np.argmax(failed)} stopped; its output says why.")
    return result


def in_first(action: Callable[[], Result]) -> Result | None:
    """Does something in process 0 alone, which gets the result; the others wait for it."""
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
    digest = hashlib.sha256(json.dumps(arguments, sort_keys=True).encode()).digest()
    digests = multihost_utils.process_allgather(np.frombuffer(digest, np.uint8), tiled=True)
    different = (digests.reshape(-1, len(digest)) != digests[: len(digest)]).any(axis=1)
    if different.any():
        raise ConfigError(
            f"Process {different.argmax()} was started with different arguments from process 0. "
            "Start every process with the same stream, methods, seeds and settings."
        )
