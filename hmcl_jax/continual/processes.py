"""Several processes, on one host or many, that share one run.

All of them do the same and hold the same, but only process 0 writes. Whatever may fail in one of
them, as only process 0 sees the run directories, is done through :func:`in_all`, so that none waits
for one that has gone.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from hmcl_jax.continual.checkpoint import Run, RunError, check_neighbours, open_run
from hmcl_jax.continual.config import ConfigError
from hmcl_jax.continual.recovery import usable_step

Result = TypeVar("Result")


def start_processes(
    coordinator: str | None = None, processes: int | None = None, process_id: int | None = None
) -> None:
    """Joins this process to the others; before anything else is done with JAX.

    Args:
      coordinator: ``HOST:PORT`` of process 0, on a port that is free there.
      processes: how many there are.
      process_id: which of them this is, from 0.

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
    """Whether this is process 0, the only one that writes."""
    return jax.process_index() == 0


def in_all(action: Callable[[], Result]) -> Result:
    """Does something in every process; if it fails in one, it fails in all.

    Example:
      >>> from hmcl_jax.continual.processes import in_all
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
            raise RunError(f"process {number} stopped; what it printed says why.")
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
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf, order="C") for leaf in leaves]
    raw = [array.reshape(-1).view(np.uint8) for array in arrays]
    sent = np.concatenate([*raw, np.zeros(1, np.uint8)])  # never empty
    received = np.asarray(multihost_utils.broadcast_one_to_all(sent))
    found, start = [], 0
    for leaf, array in zip(leaves, arrays, strict=True):
        part = received[start : start + array.nbytes]
        start += array.nbytes
        array = np.frombuffer(part.tobytes(), array.dtype).reshape(array.shape)
        found.append(jnp.asarray(array) if isinstance(leaf, jax.Array) else array)
    return jax.tree.unflatten(structure, found)


def check_same(asked: Any) -> None:
    """Refuses processes that do not ask for the same; `asked` is plain data."""
    text = json.dumps(asked, sort_keys=True)
    own = np.frombuffer(hashlib.sha256(text.encode()).digest(), np.uint8)
    first = from_first(own)

    def compare() -> None:
        if not np.array_equal(own, first):
            raise ConfigError(
                f"Process {jax.process_index()} is asked for something else than process 0; give "
                "all processes the same stream, methods, seeds and settings."
            )

    in_all(compare)


class SharedRun:
    """A run directory that process 0 has open, for all processes; see :class:`Run`."""

    def __init__(self, run: Run | None) -> None:
        self._run = run

    def latest(self) -> int | None:
        run = self._run
        number = in_all(lambda: (run.latest() or 0) if run is not None else 0)
        return int(from_first(np.array(number))) or None

    def usable(self) -> int | None:
        """As :func:`usable_step`."""
        run = self._run
        number = in_all(lambda: (usable_step(run) or 0) if run is not None else 0)
        return int(from_first(np.array(number))) or None

    def save(self, finished: int, state: Any, record: Mapping[str, Any]) -> None:
        run = self._run
        in_all(lambda: run.save(finished, state, record) if run is not None else None)

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]]:
        run = self._run
        found = in_all(lambda: run.restore(template) if run is not None else None)
        state, record = found or (template, {})
        raw = np.frombuffer(json.dumps(record).encode(), np.uint8)
        size = int(from_first(np.array(len(raw))))
        raw = from_first(np.resize(raw, size))
        return from_first(state), json.loads(raw.tobytes())


@contextlib.contextmanager
def open_shared_run(
    out: Path, identity: Mapping[str, Any], *, resume: bool
) -> Iterator[Run | SharedRun]:
    """As :func:`open_run` in `out`, in the folder of the method; in process 0, for all."""
    with contextlib.ExitStack() as stack:

        def enter() -> Run:
            check_neighbours(out, identity)
            return stack.enter_context(open_run(out / identity["method"], identity, resume=resume))

        run = in_first(enter)
        yield SharedRun(run) if run is None or jax.process_count() > 1 else run
