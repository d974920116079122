"""Run directories: the files of a run over a stream of tasks, from which it is resumed.

A run directory belongs to one run, of one method with all its seeds:

- ``run.json``: the identity of the run; a resume must ask for the same.
- ``tasks/0007.json``: scores, losses and times of a finished task.
- ``steps/<n>/``: the state after n finished tasks, a checkpoint of Orbax.
- ``run.lock``: held by the process that uses the directory.

Files and checkpoints take their place by one rename, so a crash loses at most the current task.
Orbax does not verify the bytes of arrays, so every checkpoint has a digest of them. Processes that
share a run open the same directory; Orbax coordinates them, and process 0 writes.
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
from typing import Any, NamedTuple

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _files
from hmcl_jax.continual.config import RunError
from hmcl_jax.continual.distributed import in_all, in_first, is_first

SCHEMA = 2
RUN, LOCK, STEPS, TASKS = "run.json", "run.lock", "steps", "tasks"
OTHERWISE = "or choose another directory with --out."


class DamagedStep(RuntimeWarning):
    """A checkpoint is damaged; the one before it is used."""


@contextlib.contextmanager
def open_run(
    path: str | os.PathLike[str], identity: Mapping[str, Any], *, resume: bool
) -> Iterator["RunDirectory"]:
    """Opens or makes the directory of a run, and locks other processes out.

    `identity` is plain data that tells this run from others; another run is refused.
    """
    root = Path(path).absolute()
    lock = filelock.FileLock(root / LOCK, timeout=0)
    try:
        plain = json.loads(json.dumps(identity))  # without tuples, which JSON does not have
        in_first(lambda: _claim(root, lock, plain, resume))
        yield RunDirectory(root)
    finally:
        lock.release()


class RunDirectory(NamedTuple):
    """The directory of a run, while :func:`open_run` holds its lock."""

    root: Path

    def save(self, finished: int, state: Any, record: Mapping[str, Any]) -> None:
        """Saves the end of a task: a pytree of arrays, and plain data in which NaN is allowed."""
        arrays = {name: np.asarray(_raw(x), order="C") for name, x in _named(state).items()}
        metadata = _metadata(arrays)
        # Orbax refuses arrays of no size, and trees of no arrays.
        stored = {name: x for name, x in arrays.items() if x.size}
        stored["finished"] = np.asarray(finished, np.int32)
        body = _files.without_nan(record)

        def write() -> None:
            try:
                if is_first():
                    file = self.root / TASKS / f"{finished:04}.json"
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
                    "tasks before it are saved. Fix the problem above, then rerun with --resume."
                ) from error

        in_all(write)

    def restore(self, template: Callable[[int], Any]) -> tuple[Any, list[dict[str, Any]]]:
        """The state at the newest whole checkpoint (None without one), and its tasks' records.

        `template` makes a pytree like the state after so many tasks; its NumPy arrays are replaced
        by NumPy arrays, all others by JAX arrays.
        """
        errors = []
        for finished in _steps(self.root):
            try:
                arrays = read_step(self.root, finished)
                break
            except RunError as error:
                errors.append(str(error))
        else:
            if errors:
                raise RunError(
                    f"All checkpoints of {self.root} are damaged; put back a copy of them, "
                    f"{OTHERWISE} {errors[0]}"
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


def read_identity(root: Path) -> dict[str, Any]:
    """The identity of the run in a directory."""
    file = root / RUN
    try:
        found = json.loads(file.read_bytes())
        if found["schema"] != SCHEMA:
            raise ValueError(f"schema {found['schema']!r}, this version of hmcl_jax reads {SCHEMA}")
        return dict(found["identity"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{file} is damaged or of another version: {_reason(error)}. Put a copy of it back, "
            f"resume with the version that wrote it, {OTHERWISE}"
        ) from error


def diff_identities(found: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Where two trees of plain data differ: a phrase per dotted path."""

    def flat(tree: Any) -> dict[tuple[str, ...], str]:
        leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda x: not isinstance(x, dict) or not x)
        # By repr: 1, 1.0 and True are equal, but not the same setting.
        return {tuple(key.key for key in path): repr(leaf) for path, leaf in leaves}

    a, b = flat(found), flat(asked)
    return [
        f"{'.'.join(path)}: {a.get(path, 'absent')} in the directory, "
        f"{b.get(path, 'absent')} asked for"
        for path in sorted({*a, *b})
        if a.get(path) != b.get(path)
    ]


def _check_neighbours(root: Path, identity: Mapping[str, Any]) -> None:
    """Refuses a folder with runs of another experiment, whatever their method."""
    of_method = ("method", "settings")
    asked = {key: value for key, value in identity.items() if key not in of_method}
    for path in sorted({*root.parent.glob(f"*/{RUN}")} - {root / RUN}):
        try:
            found = read_identity(path.parent)
        except RunError:
            continue  # opening that run says what is wrong with it
        found = {key: value for key, value in found.items() if key not in of_method}
        if different := diff_identities(found, asked):
            raise RunError(
                f"{root.parent} holds a run of another experiment, {path.parent.name}: "
                f"{'; '.join(different)}. Choose another folder."
            )


def _claim(root: Path, lock: filelock.BaseFileLock, identity: dict[str, Any], resume: bool) -> None:
    """Locks a directory; writes the identity of the run, or compares it with the one there."""
    _check_neighbours(root, identity)
    file, there = root / RUN, f"path = {str(root)!r}"
    try:
        ours = {root / LOCK, *_files.partials(file)}
        if root.is_dir() and not file.exists() and (foreign := set(root.iterdir()) - ours):
            name = min(foreign).name
            raise RunError(f"{there} holds no {RUN}, but {name!r}; delete that, {OTHERWISE}")
        # Only now: the file of the lock would be left among the files of something else.
        root.mkdir(parents=True, exist_ok=True)
        lock.acquire()
        if not file.exists():
            whole = {"schema": SCHEMA, "identity": identity}
            _files.write_whole(file, json.dumps(whole, indent=1, sort_keys=True))
        elif not resume:
            raise RunError(f"{there} holds a run already; resume it with --resume, {OTHERWISE}")
        for cut_off in (root / STEPS).glob("*.orbax-checkpoint-tmp*"):
            # Orbax may still be writing what failed; it replaces the rest by itself.
            shutil.rmtree(cut_off, ignore_errors=True)
    except filelock.Timeout:
        raise RunError(f"{there} is in use by another process; wait for it, {OTHERWISE}") from None
    except OSError as error:
        raise RunError(f"{there} cannot be used: {_reason(error)}.") from error
    if different := diff_identities(read_identity(root), identity):
        raise RunError(
            f"{there} holds another run: {'; '.join(different)}. Ask for the same, {OTHERWISE}"
        )


def read_record(root: Path, number: int) -> dict[str, Any]:
    """The record of a finished task, counted from 1, compared with its checksum."""
    file = root / TASKS / f"{number:04}.json"
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


def _steps(root: Path) -> list[int]:
    """Numbers of finished tasks with a checkpoint, whole or not, the newest first."""
    steps = [int(step.name) for step in (root / STEPS).glob("*") if step.name.isdecimal()]
    return sorted(steps, reverse=True)


def finished_tasks(root: Path) -> int:
    """Number of the newest checkpoint, whole or not; 0 if there is none."""
    return max(_steps(root), default=0)


def read_step(root: Path, finished: int) -> dict[str, np.ndarray]:
    """The arrays of a checkpoint by their paths in the state, compared with their digest."""
    step = root / STEPS / str(finished)
    try:
        with _orbax() as ocp:
            metadata = ocp.metadata(step).custom_metadata
            leaves = metadata["leaves"].items()
            blank = {name: np.zeros(leaf["shape"], leaf["dtype"]) for name, leaf in leaves}
            stored = {name: x for name, x in blank.items() if x.size}
            loaded = ocp.load(step, {**stored, "finished": np.zeros((), np.int32)})
        arrays = {name: np.asarray(loaded.get(name, x)) for name, x in blank.items()}
        if _metadata(arrays) != metadata:
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


def _metadata(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    leaves = _described(arrays)
    digest = hashlib.sha256(json.dumps(leaves, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(arrays[name].reshape(-1).view(np.uint8).data)
    return {"leaves": leaves, "sha256": digest.hexdigest()}


def _named(tree: Any) -> dict[str, Any]:
    """The leaves of a state by their paths."""
    leaves = jax.tree.leaves_with_path(tree)
    return {f"state{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array)
