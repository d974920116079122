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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _files
from hmcl_jax.continual.distributed import in_all, in_first
from hmcl_jax.continual.errors import RunError
from hmcl_jax.continual.task_record import with_nan

SCHEMA = 2
RUN, LOCK, STEPS, TASKS = "run.json", "run.lock", "steps", "tasks"
OF_METHOD = ("method", "settings")
REMEDY = "Fix the problem above, then rerun with --resume."


class DamagedStep(RuntimeWarning):
    """A checkpoint is damaged; the one before it is used."""


@contextlib.contextmanager
def open_run(
    path: str | os.PathLike[str], identity: Mapping[str, Any], *, resume: bool
) -> Iterator["RunDirectory"]:
    """Opens the directory of a run, a new one or one to resume; others are locked out.

    Args:
      path: the directory; made if there is none.
      identity: plain data that tells this run from others: config, method, seeds, order of the
        tasks, fingerprint of the store.
      resume: whether an existing run is resumed. If there is none, it starts.

    Yields:
      The run directory.

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
      ...     finished = run.latest()
      ...     print(finished, run.load(finished, {"W": jnp.zeros(3)})["W"], run.tasks(finished))
      1 [1. 1. 1.] [{'accuracy': [0.5, nan]}]
      >>> with open_run(out.name, {"method": "ewc"}, resume=True) as run:
      ...     pass
      Traceback (most recent call last):
      hmcl_jax.continual.errors.RunError: ...method: 'hmcl' in the directory, 'ewc' asked for...
      >>> out.cleanup()
    """
    root = Path(path).absolute()
    asked = json.loads(json.dumps(identity))
    with contextlib.ExitStack() as stack:
        in_first(lambda: stack.enter_context(_lock(root)))
        in_first(lambda: _claim(root, asked, resume))
        yield RunDirectory(root)


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

        Raises:
          RunError: if writing fails, as on a full disk. Earlier tasks are never touched.
        """
        arrays = {name: _on_host(name, leaf) for name, leaf in _named(state).items()}
        leaves = _described(arrays)
        note = {"leaves": leaves, "sha256": _digest(leaves, arrays)}
        # Orbax refuses arrays of no size, and trees of no arrays.
        stored = {name: x for name, x in arrays.items() if x.size}
        stored["finished"] = np.asarray(finished, np.int32)

        def write() -> None:
            try:
                if jax.process_index() == 0:
                    _write_record(task_file(self.root, finished), record)
                with _orbax() as ocp:
                    # A step that is there already was found to be damaged.
                    step = self.root / STEPS / str(finished)
                    ocp.save(step, stored, overwrite=True, custom_metadata=note)
            except Exception as error:
                raise RunError(
                    f"Task {finished} could not be saved in {self.root}: {_reason(error)}. The "
                    f"tasks before it are saved. {REMEDY}"
                ) from error

        in_all(write)

    def latest(self) -> int:
        """Number of finished tasks from which the run can be resumed; 0 before the first.

        Warns of newer checkpoints that are damaged.

        Raises:
          RunError: if there are checkpoints, but all are damaged.
        """
        steps = sorted(_steps(self.root), reverse=True)
        errors = []
        for number in steps:
            try:
                read_step(self.root, number)
            except RunError as error:
                errors.append(str(error))
                continue
            if errors:
                text = f"{' '.join(errors)} The run is resumed after task {number}."
                warnings.warn(text, DamagedStep, stacklevel=2)
            return number
        if errors:
            raise RunError(
                f"All checkpoints of {self.root} are damaged; put back a copy of them, or choose "
                f"another directory with --out. {errors[0]}"
            )
        return 0

    def load(self, finished: int, template: Any) -> Any:
        """The state after some tasks, exactly as it was saved.

        Args:
          finished: number of these tasks.
          template: pytree like the state. NumPy arrays give NumPy arrays, all others JAX arrays.

        Raises:
          RunError: if the step is damaged, or the template has other leaves, shapes or dtypes.
        """
        arrays = read_step(self.root, finished)
        likes, structure = _named(template), jax.tree.structure(template)
        found = {name: _kind(x) for name, x in arrays.items()}
        wanted = {name: _kind(_raw(like)) for name, like in likes.items()}
        step = f"step {finished}"
        if different := diff_identities(found, wanted, f"in {step}", "expected"):
            raise RunError(
                f"{self.root / STEPS / str(finished)} holds another state: {'; '.join(different)}. "
                "Choose another directory with --out."
            )
        leaves = [_like(arrays[name], like) for name, like in likes.items()]
        return jax.tree.unflatten(structure, leaves)

    def tasks(self, finished: int) -> list[dict[str, Any]]:
        """The records of the finished tasks."""
        return [read_record(self.root, number) for number in range(1, finished + 1)]


def check_neighbours(out: Path, identities: Iterable[Mapping[str, Any]]) -> None:
    """Refuses a folder that holds runs of another experiment, whatever their method.

    Args:
      out: the folder of all runs of an experiment.
      identities: of runs that are to go into it; their methods and settings may differ.
    """

    def shared(identity: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in identity.items() if key not in OF_METHOD}

    for path in sorted(out.glob(f"*/{RUN}")):
        try:
            found = shared(read_identity(path.parent))
        except RunError:
            continue  # opening that run says what is wrong with it
        for identity in identities:
            asked = shared(json.loads(json.dumps(identity)))
            if different := diff_identities(found, asked):
                raise RunError(
                    f"{out} holds a run of another experiment, {path.parent.name}: "
                    f"{'; '.join(different)}. Choose another folder."
                )


@contextlib.contextmanager
def _lock(root: Path) -> Iterator[None]:
    """Makes the directory if need be, and locks it until the process ends."""
    try:
        if root.is_dir():
            foreign = set(root.iterdir()) - {root / LOCK, *_files.partials(root / RUN)}
            if foreign and not (root / RUN).exists():
                raise RunError(
                    f"path = {str(root)!r} is not empty and holds no {RUN}, but "
                    f"{min(foreign).name!r}; choose another directory with --out."
                )
        root.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(root / LOCK, timeout=0)
        lock.acquire()
    except filelock.Timeout:
        raise RunError(
            f"path = {str(root)!r} is in use by another process; "
            "wait for it or choose another directory with --out."
        ) from None
    except OSError as error:
        raise RunError(f"path = {str(root)!r} cannot be used: {_reason(error)}.") from error
    try:
        yield
    finally:
        lock.release()


def _claim(root: Path, asked: dict[str, Any], resume: bool) -> None:
    """Writes the identity of the run, or compares it with the one that is asked for."""
    file = root / RUN
    try:
        if new := not file.exists():
            whole = {"schema": SCHEMA, "identity": asked}
            _files.write_whole(file, json.dumps(whole, indent=1, sort_keys=True))
    except OSError as error:
        raise RunError(f"path = {str(root)!r} cannot be used: {_reason(error)}.") from error
    if not (new or resume):
        raise RunError(
            f"path = {str(root)!r} holds a run already; resume it with --resume, "
            "or choose another directory with --out."
        )
    for cut_off in (root / STEPS).glob("*.orbax-checkpoint-tmp*"):
        shutil.rmtree(cut_off)
    if different := diff_identities(read_identity(root), asked):
        raise RunError(
            f"path = {str(root)!r} holds another run: {'; '.join(different)}. "
            "Ask for the same, or choose another directory with --out."
        )


def read_identity(root: Path) -> dict[str, Any]:
    """The identity of the run in a directory; see :func:`open_run`."""
    file = root / RUN
    try:
        found = json.loads(file.read_bytes())
        schema, identity = found["schema"], dict(found["identity"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise RunError(
            f"{file} is damaged: {_reason(error)}. "
            "Put a copy of it back, or choose another directory with --out."
        ) from error
    if schema != SCHEMA:
        raise RunError(
            f"{file} has schema {schema!r}, this version of hmcl_jax reads {SCHEMA}; "
            "resume with the version that wrote it, or choose another directory with --out."
        )
    return identity


def diff_identities(
    found: dict[str, Any], asked: dict[str, Any], here: str = "in the directory",
    there: str = "asked for",
) -> list[str]:  # fmt: skip
    """Where two trees of plain data differ: a phrase per dotted path.

    Example:
      >>> from hmcl_jax.continual.run_directory import diff_identities
      >>> diff_identities({"a": {"b": 1}}, {"a": {"b": 2}}, "here", "there")
      ['a.b: 1 here, 2 there']
    """

    def flat(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
        if isinstance(tree, dict) and tree:
            for key, value in tree.items():
                yield from flat(value, (*path, key))
        else:
            yield path, tree

    a, b = dict(flat(found)), dict(flat(asked))

    def said(values: dict[tuple[str, ...], Any], path: tuple[str, ...]) -> str:
        return repr(values[path]) if path in values else "absent"

    return [
        f"{'.'.join(path)}: {said(a, path)} {here}, {said(b, path)} {there}"
        for path in sorted({*a, *b})
        if path not in a or path not in b or json.dumps(a[path]) != json.dumps(b[path])
    ]


# Tasks


def task_file(root: Path, number: int) -> Path:
    """The record of a finished task, counted from 1."""
    return root / TASKS / f"{number:04}.json"


def _write_record(file: Path, record: Mapping[str, Any]) -> None:
    body = _files.without_nan(record)
    file.parent.mkdir(exist_ok=True)
    _files.write_whole(file, json.dumps({**body, "sha256": _files.json_sha256(body)}))


def read_record(root: Path, number: int) -> dict[str, Any]:
    """The record of a finished task, compared with its checksum."""
    file = task_file(root, number)
    try:
        body = json.loads(file.read_bytes())
        if body.pop("sha256") != _files.json_sha256(body):
            raise ValueError("it does not match its checksum")
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise RunError(
            f"{file} cannot be read: {_reason(error)}. Put a copy of it back, or delete "
            f"{root / STEPS} from step {number} on and rerun with --resume."
        ) from error
    return with_nan(body)


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
            note = ocp.metadata(step).custom_metadata
            leaves = note["leaves"]
            blank = {name: np.zeros(x["shape"], x["dtype"]) for name, x in leaves.items()}
            stored = {name: x for name, x in blank.items() if x.size}
            arrays = ocp.load(step, {**stored, "finished": np.zeros((), np.int32)})
        if int(arrays.pop("finished")) != finished:
            raise ValueError("it is of another number of tasks")
        arrays = {name: np.asarray(arrays.get(name, x)) for name, x in blank.items()}
        if _described(arrays) != leaves or _digest(leaves, arrays) != note["sha256"]:
            raise ValueError("its arrays do not match their digest")
    except MemoryError:
        raise
    except Exception as error:
        raise RunError(f"{step} is damaged: {_reason(error)}.") from error
    return arrays


@contextlib.contextmanager
def _orbax() -> Iterator[Any]:
    """Orbax, imported here because that takes a second; its log repeats what exceptions say."""
    from orbax.checkpoint import v1 as ocp  # type: ignore[import-untyped, unused-ignore]

    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.CRITICAL)
        yield ocp
    finally:
        for log, level in zip(logs, levels, strict=True):
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
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {f"state{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _raw(leaf: Any) -> Any:
    """The numbers of a PRNG key, or the array itself."""
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _on_host(name: str, leaf: Any) -> np.ndarray:
    if not isinstance(leaf, jax.Array | np.ndarray):
        raise TypeError(f"{name} must be an array, got {leaf!r}; use jnp.asarray(..., dtype).")
    array = np.asarray(_raw(leaf), order="C")
    if not (jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise TypeError(f"{name} must hold numbers, got dtype {array.dtype}.")
    return array


def _like(array: np.ndarray, like: Any) -> Any:
    if isinstance(like, np.ndarray):
        return array
    if _is_key(like):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(like))
    return jnp.asarray(array)
