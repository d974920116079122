"""Has a task changed since the run began? Stores are mapped, so others can write to them."""

import hashlib

import numpy as np

from hmcl_jax.data.store import StoreError, Task


def task_digest(task: Task) -> str:
    """SHA-256 of all arrays of a task.

    Args:
      task: of a store.

    Example:
      >>> from hmcl_jax.continual.unchanged import task_digest
      >>> from hmcl_jax.data.synthetic import synthetic_stream
      >>> first, second = synthetic_stream(tasks=2, dimension=8)
      >>> task_digest(first) == task_digest(second)
      False
    """
    found = hashlib.sha256()
    for name, array in sorted(task.arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def check_unchanged(task: Task, before: str) -> None:
    """Refuses to go on with a task that is not what it was; nothing of it was saved.

    Args:
      task: that was learned.
      before: its digest when the run began.

    Raises:
      StoreError: if it is another now.
    """
    if task_digest(task) != before:
        raise StoreError(
            f"Task {task.name!r} of the store changed during the run, so what was learned of it is "
            "not kept. Put the store back as it was and go on with --resume, or choose another "
            "--out."
        )
