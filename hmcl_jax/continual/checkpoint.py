"""Run directories: what a run over a stream of tasks leaves on disk, and how it is resumed.

A run directory belongs to one run, of one method with all its seeds:

- ``run.json``: what identifies the run; a resume must ask for the same.
- ``steps/<n>/``: the state after n finished tasks, an Orbax checkpoint, which is written once.
- ``run.lock``: locked by the process that uses the directory.

A step comes to be by one rename, so a crash at any moment loses at most the current task. It holds
the SHA-256 of every array and of its record, and :meth:`Run.restore` gives back exactly what was
saved, or fails. Nothing is unpickled. One process writes, even if several share the run; arrays
spread over several are refused.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import _checks, _files
from hmcl_jax.continual.differences import differences

SCHEMA = 1
RUN = "run.json"
LOCK = "run.lock"
STEPS = "steps"
OF_METHOD = ("method", "settings")
PRNGS = ("threefry2x32", "rbg", "unsafe_rbg")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunError(ValueError):
    """A run directory that cannot be used as asked; the message says what to do."""


@contextlib.contextmanager
def open_run(
    path: str | os.PathLike[str], identity: Mapping[str, Any], *, resume: bool
) -> Iterator["Run"]:
    """Opens the directory of a run, a new one or one to resume, for this process alone.

    Args:
      path: the directory; made if there is none.
      identity: what makes the run the run it is, as JSON: config, method, seeds, order of the
        tasks, fingerprint of the store.
      resume: whether a run that is there already goes on. If none is there, it starts.

    Yields:
      The run, until the end of the ``with`` block.

    Raises:
      RunError: if there is a run and `resume` is False, if it is another run, if another process
        uses it, or if there are files of something else.

    Example:
      >>> import tempfile, jax.numpy as jnp
      >>> from hmcl_jax.continual.checkpoint import open_run
      >>> out = tempfile.TemporaryDirectory()
      >>> with open_run(out.name, {"method": "hmcl"}, resume=False) as run:
      ...     run.save(1, {"W": jnp.ones(3)}, {"accuracy": [[0.5, None]]})
      >>> with open_run(out.name, {"method": "hmcl"}, resume=True) as run:
      ...     state, record = run.restore({"W": jnp.zeros(3)})
      ...     print(run.latest(), state["W"], record)
      1 [1. 1. 1.] {'accuracy': [[0.5, None]]}
      >>> with open_run(out.name, {"method": "ewc"}, resume=True) as run:
      ...     pass
      Traceback (most recent call last):
      hmcl_jax.continual.checkpoint.RunError: ...method: 'hmcl' in the directory, 'ewc' asked for...
      >>> out.cleanup()
    """
    root = Path(path).absolute()
    asked = _plain("identity", identity)
    lock = _claim(root)
    run = None
    try:
        _identify(root, asked, resume)
        run = Run(root / STEPS)
        yield run
    finally:
        if run is not None:
            run.closed = True
        fcntl.flock(lock, fcntl.LOCK_UN)
        lock.close()


def check_neighbours(out: Path, identity: Mapping[str, Any]) -> None:
    """Refuses a folder that holds runs of another experiment, whatever their method.

    Args:
      out: the folder of all runs of an experiment.
      identity: of a run that is to go into it; its method and settings may differ.
    """
    asked = {k: v for k, v in _plain("identity", identity).items() if k not in OF_METHOD}
    for path in sorted(out.glob(f"*/{RUN}")):
        try:
            found = json.loads(path.read_text("utf8"))["identity"]
            found = {k: v for k, v in found.items() if k not in OF_METHOD}
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError):
            continue  # the run itself says what is wrong with it
        if different := differences(found, asked, "in the directory", "asked for"):
            raise RunError(
                f"{out} holds a run of another experiment, {path.parent.name}: "
                f"{'; '.join(different)}. Choose another folder."
            )


class Run:
    """One open run directory; see :func:`open_run`.

    Attributes:
      steps: directory of the steps.
      closed: whether the ``with`` block has ended.
    """

    def __init__(self, steps: Path) -> None:
        self.steps = steps
        self.closed = False
        self._clean()

    def latest(self) -> int | None:
        """The number of finished tasks in the newest step, None before the first."""
        return latest_step(self.steps)

    def save(self, finished: int, state: Any, record: Mapping[str, Any]) -> None:
        """Saves the state at the end of a task; returns when it is on disk.

        Args:
          finished: number of finished tasks, one more than :meth:`latest`.
          state: pytree of arrays; these may be typed PRNG keys or of no size.
          record: what else is to be kept, as JSON: scores (None for NaN), times.

        Raises:
          RunError: if the step is not the next one, if the state or the record cannot be kept, or
            if writing fails, as on a full disk. Earlier steps are never touched.
        """
        _checks.integer("finished", finished, 1)
        following = (self.latest() or 0) + 1
        if self.closed or finished != following:
            reason = "the run is closed" if self.closed else f"the next step is {following}"
            raise RunError(
                f"finished = {finished} cannot be saved in {self.steps}: {reason}. "
                "Steps are written once, in order, inside `with open_run(...)`."
            )
        leaves, arrays = {}, {}
        for name, leaf in _named(state)[0].items():
            array = _on_host(name, leaf)
            leaves[name] = {
                "kind": _kind(leaf),
                "dtype": str(array.dtype),
                "shape": list(array.shape),
                "sha256": _digest(array),
            }
            if _is_key(leaf):
                leaves[name]["prng"] = str(jax.random.key_impl(leaf))
            if array.size:  # Orbax refuses arrays of no size.
                arrays[name] = array
        note = {"finished": int(finished), "record": _plain("record", record), "leaves": leaves}
        note["sha256"] = _files.json_sha256(note)
        # Orbax refuses empty trees, but a method may have no state.
        arrays["finished"] = np.asarray(finished, np.int32)
        try:
            with _orbax() as ocp:
                save = ocp.save if jax.process_count() == 1 else _save_alone
                save(self.steps / str(finished), arrays, custom_metadata=note)
        except Exception as error:
            self._clean()
            raise RunError(
                f"Step {finished} could not be saved in {self.steps}: {_reason(error)}. The steps "
                "before it are whole: once this is mended, resume the run."
            ) from error

    def restore(self, template: Any) -> tuple[Any, dict[str, Any]]:
        """The state and the record of the newest step, exactly as they were saved.

        Args:
          template: pytree like the state, of arrays or :class:`jax.ShapeDtypeStruct`. NumPy arrays
            give NumPy arrays, all others JAX arrays, with the template's sharding if it has one.
            Weak types are not kept.

        Returns:
          The state, with the structure of `template`, and the record.

        Raises:
          RunError: if there is no step, if the step is damaged, or if the template has other
            leaves, shapes or dtypes.
        """
        finished = self.latest()
        if finished is None:
            raise RunError(f"{self.steps} holds no step to restore; start with the first task.")
        step = self.steps / str(finished)
        likes, structure = _named(template)
        note = read_note(step)
        leaves = note["leaves"]
        kinds = {name: leaf["kind"] for name, leaf in leaves.items()}
        wanted = {name: _kind(like) for name, like in likes.items()}
        if different := differences(kinds, wanted, f"in step {finished}", "in the template"):
            raise RunError(f"The template does not fit {step}: {'; '.join(different)}.")
        arrays = read_arrays(step, leaves)
        state = [
            _place(name, arrays[name], like, leaves[name].get("prng"))
            for name, like in likes.items()
        ]
        return jax.tree.unflatten(structure, state), note["record"]

    def _clean(self) -> None:
        """Removes what is left of saves that did not come to their end."""
        for half in self.steps.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(half, ignore_errors=True)


def latest_step(steps: Path, below: int | None = None) -> int | None:
    """The number of the newest step, or of the newest `below` another; None if there is none."""
    names = (step.name for step in steps.glob("*"))
    found = (int(name) for name in names if re.fullmatch("[1-9][0-9]*", name))
    return max((number for number in found if below is None or number < below), default=None)


def _claim(root: Path) -> IO[str]:
    """Makes the directory if need be, and locks it; the kernel unlocks it if the process dies."""
    try:
        if root.is_dir():
            foreign = set(root.iterdir()) - {root / LOCK, *_files.partials(root / RUN)}
            if foreign and not (root / RUN).exists():
                raise RunError(
                    f"path = {str(root)!r} is not empty and holds no {RUN}, but "
                    f"{min(foreign).name!r}; choose another directory with --out."
                )
        root.mkdir(parents=True, exist_ok=True)
        lock = open(root / LOCK, "a+", encoding="ascii")  # noqa: SIM115
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        except BaseException:
            lock.close()
            raise
    except BlockingIOError:
        holder = (root / LOCK).read_text("ascii", "replace") or "unknown"
        raise RunError(
            f"path = {str(root)!r} is in use by another process, pid {holder}; "
            "wait for it or choose another directory with --out."
        ) from None
    except OSError as error:
        raise RunError(f"path = {str(root)!r} cannot be used: {_reason(error)}.") from error
    return lock


def _identify(root: Path, asked: dict[str, Any], resume: bool) -> None:
    """Writes who the run is, or compares it with who is asked for."""
    file = root / RUN
    try:
        if new := not file.exists():
            whole = {"schema": SCHEMA, "identity": asked}
            _files.write_whole(file, json.dumps(whole, indent=1, sort_keys=True))
    except OSError as error:
        raise RunError(f"path = {str(root)!r} cannot be used: {_reason(error)}.") from error
    if not (new or resume):
        raise RunError(
            f"path = {str(root)!r} holds a run already; go on with it with --resume, "
            "or choose another directory with --out."
        )
    identity = read_identity(root)
    if different := differences(identity, asked, "in the directory", "asked for"):
        raise RunError(
            f"path = {str(root)!r} holds another run: {'; '.join(different)}. "
            "Ask for the same, or choose another directory with --out."
        )


def read_identity(root: Path) -> dict[str, Any]:
    """Who the run in a directory is; see :func:`open_run`."""
    file = root / RUN
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RunError(f"path = {str(root)!r} cannot be used: {_reason(error)}.") from error
    try:
        found = json.loads(data)
        schema, identity = found["schema"], dict(found["identity"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
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


@contextlib.contextmanager
def _orbax(partial: bool = False) -> Iterator[Any]:
    """Orbax without its log; imported here, because that takes a second."""
    from orbax.checkpoint import v1 as ocp  # type: ignore[import-untyped, unused-ignore]

    context = ocp.Context()
    context.asynchronous.create_directories_asynchronously = False
    context.pytree.loading.partial_load = partial
    if jax.process_count() > 1:  # the others do not read, so none is waited for
        context.multiprocessing.active_processes = {jax.process_index()}
        context.multiprocessing.primary_host = jax.process_index()
    logs = [logging.getLogger(name) for name in ("absl", "asyncio")]
    levels = [log.level for log in logs]
    try:
        for log in logs:
            log.setLevel(logging.CRITICAL)
        with context:
            yield ocp
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)


def _save_alone(step: Path, arrays: dict[str, np.ndarray], custom_metadata: Any) -> None:
    """Saves in one process of several, where `ocp.save` waits for the others whatever is asked."""
    import orbax.checkpoint as ocp  # type: ignore[import-untyped, unused-ignore]

    here = jax.process_index()
    options = ocp.options.MultiprocessingOptions(primary_host=here, active_processes={here})
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=options)
    with ocp.Checkpointer(handler, multiprocessing_options=options) as checkpointer:
        tree = ocp.args.PyTreeSave(arrays)
        checkpointer.save(step, args=tree, custom_metadata=custom_metadata)


def read_note(step: Path) -> dict[str, Any]:
    """What stands beside the arrays of a step, compared with its checksum."""
    with _reading(step) as ocp:
        note = ocp.metadata(step).custom_metadata or {}
        if note.get("sha256") != _files.json_sha256(note) or note["finished"] != int(step.name):
            raise ValueError("its record does not match its checksum")
        if not isinstance(note["record"], dict):
            raise ValueError("its record is none")
        for name, leaf in note["leaves"].items():
            shape = leaf["shape"]
            if not (isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)):
                raise ValueError(f"{name} has no shape")
            if not all(isinstance(leaf[key], str) for key in ("kind", "dtype", "sha256")):
                raise ValueError(f"{name} is not described")
            if leaf.get("prng") not in (PRNGS if leaf["kind"].startswith("key<") else (None,)):
                raise ValueError(f"{name} has no kind of random numbers that is known")
    return dict(note)


def read_arrays(
    step: Path, leaves: Mapping[str, Mapping[str, Any]], partial: bool = False
) -> dict[str, np.ndarray]:
    """Arrays of a step, all or a part of them, compared with their checksums."""
    with _reading(step, partial) as ocp:
        _check_shapes(ocp.metadata(step).metadata, leaves)
        blank = {n: np.zeros(leaf["shape"], leaf["dtype"]) for n, leaf in leaves.items()}
        stored = {name: array for name, array in blank.items() if array.size}
        arrays = blank | ocp.load(step, stored | {"finished": np.zeros((), np.int32)})
        for name, leaf in leaves.items():
            if _digest(arrays[name]) != leaf["sha256"]:
                raise ValueError(f"{name} does not match its checksum")
    return {name: arrays[name] for name in leaves}


def _check_shapes(stored: Any, leaves: Mapping[str, Mapping[str, Any]]) -> None:
    """Compares with what Orbax knows of its arrays, before memory is taken for them."""
    if stored is None:
        raise ValueError("its list of arrays, or a file that it rests on, is damaged")
    for name, leaf in leaves.items():
        if 0 in leaf["shape"]:
            continue
        found = stored[name]
        if [*found.shape] != leaf["shape"] or str(found.dtype) != leaf["dtype"]:
            raise ValueError(f"{name} has shape {found.shape}, not {leaf['shape']}")


@contextlib.contextmanager
def _reading(step: Path, partial: bool = False) -> Iterator[Any]:
    """Orbax, with an explanation of whatever damaged files provoke in it."""
    try:
        with _orbax(partial) as ocp:
            yield ocp
    except MemoryError:
        raise
    except Exception as error:
        number = int(step.name)
        before = latest_step(step.parent, below=number)
        later = " and those of all later steps" if latest_step(step.parent) != number else ""
        raise RunError(
            f"Step {step.name} cannot be read: {_reason(error)}. If it is damaged, delete the "
            f"directory {step}{later} and resume from "
            f"{f'step {before}' if before else 'the beginning'}."
        ) from error


def _reason(error: BaseException) -> str:
    """What went wrong, in one line; a full disk is looked for in the causes too."""
    cause: BaseException | None = error
    while cause is not None:
        for code in FULL:
            # TensorStore has no OSError, only its text.
            if getattr(cause, "errno", None) == code or os.strerror(code) in str(cause):
                return f"the disk is full or a quota is reached ({os.strerror(code)})"
        cause = cause.__cause__ or cause.__context__
    line = str(error).strip().partition("\n")[0].partition(" [tensorstore_spec")[0]
    return f"{type(error).__name__}: {line}"


def _plain(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON makes of a mapping."""
    _checks.instance(name, value, Mapping, "a mapping")
    try:
        return dict(json.loads(json.dumps(dict(value), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise RunError(
            f"{name} must hold only what JSON has: {error}. Use None for NaN, lists for arrays."
        ) from error


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def _named(tree: Any) -> tuple[dict[str, Any], Any]:
    """The leaves of a state by their paths, and its structure."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    named = {f"state{jax.tree_util.keystr(path)}": leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise RunError("Two leaves of the state have one path; name its dict keys apart.")
    for name, leaf in named.items():
        if not isinstance(leaf, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
            raise TypeError(
                f"{name} must be an array, got {leaf!r}; use jnp.asarray(..., dtype), or keep it "
                "in the record."
            )
    return named, structure


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _kind(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"


def _on_host(name: str, leaf: Any) -> np.ndarray:
    """The numbers of an array, C-contiguous."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        raise TypeError(f"{name} must be an array, got {leaf!r}.")
    if isinstance(leaf, jax.Array):
        if not leaf.is_fully_addressable:
            raise RunError(f"{name} is spread over several processes; gather it on one to save it.")
        if _is_key(leaf):
            leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf, order="C")
    numbers = jnp.issubdtype(array.dtype, np.number) or array.dtype == np.bool_
    if not (numbers and array.dtype.isnative):
        raise RunError(f"{name} must hold numbers in native byte order, got dtype {array.dtype}.")
    return array


def _place(name: str, array: np.ndarray, like: Any, prng: str | None) -> Any:
    """The array where and as the template wants it."""
    if isinstance(like, np.ndarray):
        return array
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise RunError(
            f"{name} was saved as {array.dtype}, which JAX would round to "
            f"{jax.dtypes.canonicalize_dtype(array.dtype)}; set JAX_ENABLE_X64=1 as when it was "
            "saved."
        )
    value = array if prng is None else jax.random.wrap_key_data(jnp.asarray(array), impl=prng)
    # Only what the template has put somewhere on purpose is tied to that place.
    return jax.device_put(value, like.sharding if getattr(like, "committed", True) else None)
