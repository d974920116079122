"""A damaged newest step: it is set aside, and the run goes on from the one before it.

Only if the step before it can be read whole. If it cannot, it is not one file that is damaged but
something else is wrong, such as a disk or a missing package, and nothing is moved.
"""

import warnings
from pathlib import Path

from hmcl_jax.continual.checkpoint import Run, RunError, latest_step, read_arrays, read_note

ASIDE = "damaged"


class DamagedStep(RuntimeWarning):
    """The newest step of a run is damaged; the one before it is used."""


def usable_step(run: Run) -> int | None:
    """The newest step from which a run can go on, every checksum compared.

    Args:
      run: an open run; a damaged newest step is renamed ``steps/<n>.damaged``, never deleted.

    Returns:
      The number of finished tasks, None before the first.

    Raises:
      RunError: if the newest step cannot be read and there is none before it that can.

    Example:
      >>> import tempfile, jax.numpy as jnp
      >>> from hmcl_jax.continual.checkpoint import open_run
      >>> from hmcl_jax.continual.recovery import usable_step
      >>> out = tempfile.TemporaryDirectory()
      >>> with open_run(out.name, {"method": "hmcl"}, resume=False) as run:
      ...     run.save(1, {"W": jnp.ones(3)}, {})
      ...     print(usable_step(run))
      1
      >>> out.cleanup()
    """
    newest = run.latest()
    if newest is None:
        return None
    step = run.steps / str(newest)
    try:
        _check(step)
    except RunError as error:
        before = latest_step(run.steps, below=newest)
        if before is None:
            raise
        try:
            _check(run.steps / str(before))
        except RunError:
            raise error from None
        aside = _set_aside(step)
        warnings.warn(
            f"Step {newest} of {run.steps} is damaged and was renamed {aside.name}; the run goes "
            f"on from step {before}. What was found: {error}",
            DamagedStep,
            stacklevel=2,
        )
        return before
    return newest


def _check(step: Path) -> None:
    read_arrays(step, read_note(step)["leaves"])


def _set_aside(step: Path) -> Path:
    """Renames a step so that it is no longer one."""
    number = 1
    while True:
        aside = step.with_name(f"{step.name}.{ASIDE}{'' if number == 1 else f'-{number}'}")
        if not aside.exists():
            break
        number += 1
    try:
        return step.rename(aside)
    except OSError as error:
        raise RunError(
            f"{step} is damaged and cannot be renamed: {error.strerror}. Delete it and resume from "
            f"step {latest_step(step.parent, below=int(step.name))}."
        ) from error
