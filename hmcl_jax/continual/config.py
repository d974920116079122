"""Settings of a run: frozen dataclasses, read from TOML; unknown keys are refused."""

import contextlib
import dataclasses
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ConfigT = typing.TypeVar("ConfigT")


class ConfigError(ValueError):
    """A setting that is unknown, of the wrong type or out of range; the message says which."""


class RunError(ValueError):
    """A run directory that cannot be used as asked; the message says what to do."""


def at_least(name: str, value: int, least: int) -> None:
    """A whole number that is not below `least` and fits in 32 bits."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
        raise ConfigError(
            f"{name} must be a whole number of at least {least} and below 2**31, "
            f"got {name} = {value!r}."
        )


def positive(name: str, value: float) -> None:
    if not (np.isfinite(value) and value > 0):
        raise ConfigError(f"{name} must be positive and finite, got {name} = {value}.")


def not_negative(name: str, value: float) -> None:
    if not (np.isfinite(value) and value >= 0):
        raise ConfigError(f"{name} must be finite and at least 0, got {name} = {value}.")


def fraction(name: str, value: float, *, zero: bool, one: bool) -> None:
    """A number between 0 and 1, which may be the ends if `zero` or `one`."""
    if not (0 < value < 1 or (zero and value == 0) or (one and value == 1)):
        ends = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
        raise ConfigError(f"{name} must be in {ends}, got {name} = {value}.")


def one_of(name: str, value: str, options: tuple[str, ...]) -> None:
    if value not in options:
        raise ConfigError(f"{name} must be one of {', '.join(options)}, got {name} = {value!r}.")


def mesh_shape(text: str) -> tuple[int, int]:
    """Devices along the seeds and along the minibatches: 2 and 4 for ``"2x4"``."""
    found = re.fullmatch("([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", str(text))
    if not found:
        raise ConfigError(
            "mesh must be written SEEDxDATA, devices along the seeds and along the minibatches, "
            f"such as 2x4, got mesh = {text!r}."
        )
    return int(found[1]), int(found[2])


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Passes over the tasks of one kind, and the learning rate of AdamW."""

    epochs: int
    learning_rate: float

    def __post_init__(self) -> None:
        at_least("epochs", self.epochs, 1)
        positive("learning_rate", self.learning_rate)


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """What all methods share: the objective, the schedule, and how the work is laid out.

    Attributes:
      classification, retrieval: schedules of tasks of these kinds.
      batch: pairs of a minibatch.
      step: one optimizer step per ``"epoch"``, on the sum of its minibatches' gradients (the
        paper), or one per ``"minibatch"``.
      weight_decay: of AdamW.
      entailment_weight: factor of the entailment loss.
      kappa: sets the minimum radius of the cones.
      reset_optimizer: whether AdamW's moments begin anew with every task.
      seed_axis: seeds run in one program, at once (``"vmap"``) or one after the other (``"map"``),
        or one program each (``"loop"``); ``"auto"`` chooses by measurements.
      device_memory: MiB of features on the device; tasks with more are fed from the host in
        chunks. Test parts of all tasks together may take as much again.
      mesh: devices along the seeds and along the minibatches of a step, such as ``"2x4"``.
      on_bad: ``"stop"`` a seed whose gradient is not finite, or ``"skip"`` the step.
      spike: a seed stops if its loss rises to this many times its value at the task's start.
    """

    classification: Schedule = Schedule(10, 5e-4)
    retrieval: Schedule = Schedule(15, 5e-5)
    batch: int = 1024
    step: str = "epoch"
    weight_decay: float = 0.0
    entailment_weight: float = 0.2
    kappa: float = 0.1
    reset_optimizer: bool = True
    seed_axis: str = "auto"
    device_memory: float = 2048.0
    mesh: str = "1x1"
    on_bad: str = "stop"
    spike: float = 1000.0

    def __post_init__(self) -> None:
        at_least("batch", self.batch, 2)
        one_of("step", self.step, ("epoch", "minibatch"))
        one_of("seed_axis", self.seed_axis, ("auto", "vmap", "map", "loop"))
        not_negative("weight_decay", self.weight_decay)
        not_negative("entailment_weight", self.entailment_weight)
        positive("kappa", self.kappa)
        positive("device_memory", self.device_memory)
        one_of("on_bad", self.on_bad, ("stop", "skip"))
        if not (np.isfinite(self.spike) and self.spike > 1):
            raise ConfigError(f"spike must be finite and above 1, got spike = {self.spike}.")
        shape = mesh_shape(self.mesh)
        if shape[1] > 1 and self.step == "minibatch":
            raise ConfigError(
                f"Devices cannot share a step of one minibatch, got mesh = {self.mesh!r} with "
                f"step = 'minibatch'; use mesh = '{shape[0]}x1', or step = 'epoch'."
            )
        if shape != (1, 1) and self.seed_axis == "loop":
            raise ConfigError(
                f"seed_axis = 'loop' uses one device, got mesh = {self.mesh!r}; "
                "use seed_axis = 'map' or 'vmap', or mesh = '1x1'."
            )

    def schedule(self, kind: str) -> Schedule:
        return self.classification if kind == "classification" else self.retrieval


def read_toml(path: str | Path) -> dict[str, Any]:
    try:
        return _parse(Path(path).read_text("utf8"))
    except OSError as error:
        raise ConfigError(f"config = {str(path)!r} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"config = {str(path)!r} is not TOML: {error}.") from error


def _parse(text: str) -> dict[str, Any]:
    table = tomllib.loads(text)
    repr(table)  # raises ValueError if a number has too many digits for messages
    return table


def from_mapping(default: ConfigT, table: Mapping[str, Any], where: str = "") -> ConfigT:
    """A frozen dataclass like `default` with the values of a table, whose path is `where`.

    Tables inside are for dataclasses inside.
    """
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where or 'The config'} must be a table, got {table!r}.")
    # Fields of a method that are no settings cannot be set by a table.
    settings = [f.name for f in dataclasses.fields(default) if f.metadata.get("setting", True)]  # type: ignore[arg-type]
    hints = typing.get_type_hints(type(default))
    changes = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in settings:
            known = f"known are {', '.join(sorted(settings))}" if settings else "there are none"
            raise ConfigError(f"{path} is not a setting; {known}.")
        old = getattr(default, key)
        if dataclasses.is_dataclass(old):
            changes[key] = from_mapping(old, value, path)
        else:
            changes[key] = _as_type(path, value, hints[key])
    try:
        return dataclasses.replace(default, **changes)  # type: ignore[type-var]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None


def _as_type(path: str, value: Any, wanted: Any) -> Any:
    kinds = typing.get_args(wanted) if isinstance(wanted, types.UnionType) else (wanted,)
    if float in kinds and isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # a whole number beyond the range of floats
            return float(value)
    if type(value) in kinds:
        return value
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise ConfigError(f"{path} must be of type {names}, got {value!r}.")


def parse_override(text: str) -> dict[str, Any]:
    """A table from ``"section.key=value"``, with the value in TOML's notation or a bare word."""
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"A setting is written section.key=value, got {text!r}.")
    try:
        found = _parse(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        found = value.strip()
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"The value of {key.strip()} is not TOML: {error}.") from error
    for part in reversed(parts):
        found = {part: found}
    return found


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested tables, those of `over` on top."""
    merged = dict(base)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged
