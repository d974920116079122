"""Run directories: the files of a run over a stream of tasks, from which it is resumed.

A run directory belongs to one run, of one method with all its seeds:

- ``run.json``: the identity of the run; a resume must ask for the same.
- ``tasks/0007.json``: scores, losses and times of a finished task.
- ``steps/<n>/``: the state after n finished tasks, a checkpoint of Orbax.
- ``run.lock``: held by the process that uses the directory.

Files and checkpoints take their place by one rename, so a crash loses at most the current task.
Orbax does not verify the bytes of arrays, so every checkpoint has a digest of them. If processes
share a run, all of them open its directory, which must be on a file system that they share; Orbax
coordinates them, and process 0 writes.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _files
from hmcl_jax.continual.distributed import in_all, in_first, is_first
from hmcl_jax.continual.errors import RunError

SCHEMA = 2
RUN, LOCK, STEPS, TASKS = "run.json", "run.lock", "steps", "tasks"
REMEDY = "Fix the problem above, then rerun with --resume."


class DamagedStep(RuntimeWarning):
    """A checkpoint is damaged; the one before it is used."""


@contextlib.contextmanager
def open_run(
    path: str | os.PathLike[str], identity: Mapping[str, Any], *, resume: bool
) -> Iterator["RunDirectory"]:
    """Opens the directory of a run, makes it if there is none, and locks other processes out.

    Args:
      path: the directory.
      identity: plain data that tells this run from others: config, method, seeds, order of the
        tasks, fingerprint of the store.
      resume: whether an existing run is resumed. If there is none, it starts.

    Raises:
      RunError: if there is a run and `resume` is False, if it is another run, if another process
        uses it, or if there are files of something else.

    Example:
      >>> import tempfile, jax.numpy as jnp
      >>> from hmcl_jax.continual.run_directory import open_run
      >>> out = tempfile.TemporaryDirectory()
      >>> with open_run(out.name, {"method": "hmcl"}, resume=False) as run:
      ...     run.save(1, {"W": jnp.ones(3)}, {"accuracy": [0.5, float("nan")]})
      >>> with open_run(out.name, {"method": "hmcl"}, resume=True) as run:
      ...     state, records = run.restore(lambda finished: {"W": jnp.zeros(3)})
      >>> print(state["W"], records)
      [1. 1. 1.] [{'accuracy': [0.5, nan]}]
      >>> with open_run(out.name, {"method": "ewc"}, resume=True) as run:
      ...     pass
      Traceback (most recent call last):
      hmcl_jax.continual.errors.RunError: ...method: 'hmcl' in the directory, 'ewc' asked for...
      >>> out.cleanup()
    """
    root = Path(path).absolute()
    lock = filelock.FileLock(root / LOCK, timeout=0)
    try:
        in_first(lambda: _claim(root, lock, _plain(identity), resume))
        yield RunDirectory(root)
    finally:
        lock.release()


class RunDirectory:
    """One open run directory; see :func:`open_run`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, finished: int, state: Any, record: Mapping[str, Any]) -> None:
        """Saves the end of a task; returns when it is on disk.

        Args:
          finished: number of finished tasks.
          state: pytree of arrays; these may be typed PRNG keys or of no size.
          record: plain data about the task, such as scores and times; NaN is allowed.
        """
        arrays = {name: _on_host(name, leaf) for name, leaf in _named(state).items()}
        leaves = _described(arrays)
        metadata = {"leaves": leaves, "sha256": _digest(leaves, arrays)}
        # Orbax refuses arrays of no size, and trees of no arrays.
        stored = {name: x for name, x in arrays.items() if x.size}
        stored["finished"] = np.asarray(finished, np.int32)
        body = _files.without_nan(record)

        def write() -> None:
            try:
                if is_first():
                    file = _record_file(self.root, finished)
                    file.parent.mkdir(exist_ok=True)
                    text = json.dumps({**body, "sha256": _files.json_sha256(body)})
                    _files.write_whole(file, text)
                # A step that is there already is a damaged one.
                step = self.root / STEPS / str(finished)
                with _orbax() as ocp:
                    ocp.save(step, stored, overwrite=True, custom_metadata=metadata)
            except Exception as error:
                raise RunError(
                    f"Task {finished} could not be saved in {self.root}: {_reason(error)}. The "
                    f"tasks before it are saved. {REMEDY}"
                ) from error

        in_all(write)

    def restore(self, template: Callable[[int], Any]) -> tuple[Any, list[dict[str, Any]]]:
        """The state at the newest whole checkpoint, and the records of its tasks.

        Before the first there are None and no records. Warns of newer checkpoints that are damaged.

        Args:
          template: gives a pytree like the state after so many tasks. In the place of its NumPy
            arrays come NumPy arrays, for all others JAX arrays.
        """
        errors = []
        for finished in sorted(_steps(self.root), reverse=True):
            try:
                arrays = read_step(self.root, finished)
                break
            except RunError as error:
                errors.append(str(error))
        else:
            if errors:
                raise RunError(
                    f"All checkpoints of {self.root} are damaged; put back a copy of them, or "
                    f"choose another directory with --out. {errors[0]}"
                )
            return None, []
        if errors:
            text = f"{' '.join(errors)} The run is resumed after task {finished}."
            warnings.warn(text, DamagedStep, stacklevel=2)
        like_state = template(finished)
        likes = _named(like_state)
        wanted = _described({name: _raw(like) for name, like in likes.items()})
        if different := diff_identities(_described(arrays), wanted):
            raise RunError(
                f"{self.root / STEPS / str(finished)} holds another state: {'; '.join(different)}. "
                "Choose another directory with --out."
            )
        leaves = [_like(arrays[name], like) for name, like in likes.items()]
        state = jax.tree.unflatten(jax.tree.structure(like_state), leaves)
        return state, [read_record(self.root, number) for number in range(1, finished + 1)]


# Identities


def check_neighbours(out: Path, identity: Mapping[str, Any]) -> None:
    """Refuses a folder that holds runs of another experiment, whatever their method.

    Args:
      out: the folder of all runs of an experiment.
      identity: of one of the runs that are to go into it.
    """
    asked = _plain(identity)
    of_method = {key: asked[key] for key in ("method", "settings")}
    for path in sorted(out.glob(f"*/{RUN}")):
        try:
            found = read_identity(path.parent)
        except RunError:
            continue  # opening that run says what is wrong with it
        if different := diff_identities({**found, **of_method}, asked):
            raise RunError(
                f"{out} holds a run of another experiment, {path.parent.name}: "
                f"{'; '.join(different)}. Choose another folder."
            )


def read_identity(root: Path) -> dict[str, Any]:
    """The identity of the run in a directory; see :func:`open_run`."""
    file = root / RUN
    try:
        found = json.loads(file.read_bytes())
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, this version of hmcl_jax reads {SCHEMA}")
        return dict(found["identity"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{file} is damaged or of another version: {_reason(error)}. Put a copy of it back, "
            "resume with the version that wrote it, or choose another directory with --out."
        ) from error


def diff_identities(found: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where two trees of plain data differ: a phrase per dotted path.

    Example:
      >>> from hmcl_jax.continual.run_directory import diff_identities
      >>> diff_identities({"a": {"b": 1}}, {"a": {"b": 2}})
      ['a.b: 1 in the directory, 2 asked for']
    """

    def flat(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
        if isinstance(tree, Mapping) and tree:
            for key, value in tree.items():
                yield from flat(value, (*path, key))
        else:
            yield path, repr(tree)  # 1, 1.0 and True are equal, but not the same setting

    a, b = dict(flat(found)), dict(flat(asked))
    return [
        f"{'.'.join(path)}: {a.get(path, 'absent')} in the directory, "
        f"{b.get(path, 'absent')} asked for"
        for path in sorted({*a, *b})
        if a.get(path) != b.get(path)
    ]


def _plain(identity: Mapping[str, Any]) -> dict[str, Any]:
    """As it is read back from JSON, which has no tuples."""
    return json.loads(json.dumps(identity))


def _claim(root: Path, lock: filelock.BaseFileLock, identity: dict[str, Any], resume: bool) -> None:
    """Locks a directory; writes the identity of the run, or compares it with the one there."""
    file, there = root / RUN, f"path = {str(root)!r}"
    try:
        if root.is_dir() and not file.exists():
            foreign = set(root.iterdir()) - {root / LOCK, *_files.partials(file)}
            if foreign:
                raise RunError(
                    f"{there} is not empty and holds no {RUN}, but {min(foreign).name!r}; "
                    "choose another directory with --out."
                )
        # Only now: the file of the lock would be left among the files of something else.
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if not file.exists():
            whole = {"schema": SCHEMA, "identity": identity}
            _files.write_whole(file, json.dumps(whole, indent=1, sort_keys=True))
        elif not resume:
            raise RunError(
                f"{there} holds a run already; resume it with --resume, "
                "or choose another directory with --out."
            )
        for cut_off in (root / STEPS).glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(cut_off)
    except filelock.Timeout:
        raise RunError(
            f"{there} is in use by another process; "
            "wait for it or choose another directory with --out."
        ) from None
    except OSError as error:
        raise RunError(f"{there} cannot be used: {_reason(error)}.") from error
    if different := diff_identities(read_identity(root), identity):
        raise RunError(
            f"{there} holds another run: {'; '.join(different)}. "
            "Ask for the same, or choose another directory with --out."
        )


# Records of tasks


def _record_file(root: Path, number: int) -> Path:
    return root / TASKS / f"{number:04}.json"


def read_record(root: Path, number: int) -> dict[str, Any]:
    """The record of a finished task, counted from 1, compared with its checksum."""
    file = _record_file(root, number)
    try:
        body = json.loads(file.read_bytes())
        if body.pop("sha256") != _files.json_sha256(body):
            raise ValueError("it does not match its checksum")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{file} cannot be read: {_reason(error)}. Put a copy of it back, or delete "
            f"{root / STEPS} from step {number} on and rerun with --resume."
        ) from error
    return _with_nan(body)


def _with_nan(tree: Any) -> Any:
    """Plain data with NaN for each None in a list; as the value of a key, None may be meant."""
    if isinstance(tree, dict):
        return {key: _with_nan(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [float("nan") if value is None else _with_nan(value) for value in tree]
    return tree


# Checkpoints


def finished_tasks(root: Path) -> int:
    """Number of the newest checkpoint, whole or not; 0 if there is none."""
    return max(_steps(root), default=0)


def _steps(root: Path) -> list[int]:
    return [int(step.name) for step in (root / STEPS).glob("*") if step.name.isdecimal()]


def read_step(root: Path, finished: int) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by their paths in the state, compared with their digest.

    Raises:
      RunError: if it is damaged.
    """
    step = root / STEPS / str(finished)
    try:
        with _orbax() as ocp:
            metadata = ocp.metadata(step).custom_metadata
            leaves = metadata["leaves"]
            blank = {name: np.zeros(x["shape"], x["dtype"]) for name, x in leaves.items()}
            stored = {name: x for name, x in blank.items() if x.size}
            arrays = ocp.load(step, {**stored, "finished": np.zeros((), np.int32)})
        if int(arrays.pop("finished")) != finished:
            raise ValueError("it is of another number of tasks")
        arrays = {name: np.asarray(arrays.get(name, x)) for name, x in blank.items()}
        if _described(arrays) != leaves or _digest(leaves, arrays) != metadata["sha256"]:
            raise ValueError("its arrays do not match their digest")
    except MemoryError:
        raise
    except Exception as error:  # Orbax and TensorStore raise many kinds
        raise RunError(f"{step} is damaged: {_reason(error)}.") from error
    return arrays


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Orbax, imported here because that takes a second; its logs repeat what its errors say."""
    from orbax.checkpoint import v1 as ocp

    levels = {log: log.level for log in map(logging.getLogger, ("absl", "asyncio"))}
    try:
        for log in levels:
            log.setLevel(logging.CRITICAL)
        yield ocp
    finally:
        for log, level in levels.items():
            log.setLevel(level)


def _reason(error: BaseException) -> str:
    line = str(error).strip().partition("\n")[0].partition(" [tensorstore_spec")[0]
    return f"{type(error).__name__}: {line}"


def _described(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {n: {"dtype": str(x.dtype), "shape": list(x.shape)} for n, x in arrays.items()}


def _digest(leaves: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(leaves, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _named(tree: Any) -> dict[str, Any]:
    """The leaves of a state by their paths."""
    leaves = jax.tree.leaves_with_path(tree)
    return {f"state{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """The numbers of a PRNG key, or the array itself."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _on_host(name: str, leaf: Any) -> np.ndarray:
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be an array, got {leaf!r}; use jnp.asarray(..., dtype).")
    return np.asarray(_raw(leaf), order="C")


def _like(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array)
