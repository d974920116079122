"""The methods, by name."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from hmcl_jax.continual.config import ConfigError, TrainConfig, from_mapping
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods.cflat import Cflat
from hmcl_jax.continual.methods.derpp import Derpp
from hmcl_jax.continual.methods.dns import Dns
from hmcl_jax.continual.methods.ewc import Ewc
from hmcl_jax.continual.methods.gem import Agem, Gem
from hmcl_jax.continual.methods.hmcl import Hmcl
from hmcl_jax.continual.methods.joint import Joint
from hmcl_jax.continual.methods.nullspace import Nullspace


class Entry(NamedTuple):
    """A method that has a name."""

    method: Method  # with its default settings
    about: str
    # Bytes carried from task to task besides the heads, in float32, for d dimensions, M modalities,
    # S seeds and n stored pairs. None grows with the number of tasks.
    memory: str
    reference: str


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MOMENTS = "16 * M * (d + 1)**2"
METHODS: dict[str, Entry] = {
    "vanilla": Entry(Method(), "plain fine-tuning", "0", "-"),
    "hmcl_mr": Entry(
        Hmcl(variant="mr"),
        "steps that leave old points where they are",
        _MOMENTS,
        "the HMCL paper, minimal rotation",
    ),
    "hmcl_ca": Entry(
        Hmcl(variant="ca"),
        "steps that turn old points by one shared rotation, to first order",
        _MOMENTS,
        "the HMCL paper, closest admissible update",
    ),
    "hmcl_rotation": Entry(
        Hmcl(variant="rotation"),
        "the same with the rotation accumulated and applied as a finite one",
        _MOMENTS,
        "this package; see hmcl_jax.transform",
    ),
    "ewc": Entry(
        Ewc(),
        "a quadratic penalty where the old loss was sensitive",
        "12 * S * M * d * (d + 1)",
        "Kirkpatrick et al. 2017, Overcoming catastrophic forgetting in neural networks",
    ),
    "gem": Entry(
        Gem(),
        "no step against the gradient on a memory of any old task",
        "S * n * (16 * d + 12)",
        "Lopez-Paz and Ranzato 2017, Gradient episodic memory",
    ),
    "cflat": Entry(
        Cflat(),
        "flat minima around AdamW, with distillation of similarities",
        "4 * S * M * d * (d + 1) + S * n * (16 * d + 12)",
        "Bian et al. 2024, C-Flat; Cha et al. 2021, Co2L",
    ),
    "dns": Entry(
        Dns(),
        "gradients without the part that old inputs and old partners both see",
        "8 * M * (d + 1)**2 + 8 * S * M * d**2",
        "Liu et al. 2025, Continual multimodal contrastive learning",
    ),
    "agem": Entry(
        Agem(),
        "no step against the mean gradient on the memory",
        "S * n * (16 * d + 12)",
        "Chaudhry et al. 2019, Efficient lifelong learning with A-GEM",
    ),
    "derpp": Entry(
        Derpp(),
        "replay of stored pairs, which should also stay where they were",
        "S * n * (16 * d + 12)",
        "Buzzega et al. 2020, Dark experience for general continual learning",
    ),
    "nullspace": Entry(
        Nullspace(),
        "steps without the directions of old inputs, the Euclidean twin of hmcl_mr",
        _MOMENTS,
        "after Wang et al. 2021, Training networks in null space of feature covariance",
    ),
    "joint": Entry(
        Joint(),
        "all tasks at once: not continual, an upper bound",
        "0, but it needs all data of the tasks",
        "-",
    ),
}


def check_name(name: str) -> None:
    """Refuses names that cannot be those of folders, or would be folders elsewhere."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigError(
            f"A method's name must be letters, digits, '_' or '-', at most 64, got {name!r}."
        )


def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """A method by name, with some of its settings replaced.

    Args:
      name: one of :data:`METHODS`, or a name of one's own if `settings` say the ``"method"``.
      settings: by name, as in a config file; a table ``"train"`` among them replaces settings that
        otherwise all methods share.

    Example:
      >>> from hmcl_jax.continual import make_method
      >>> print(make_method("hmcl_mr", {"beta": 0.1}).beta)
      0.1
      >>> print(make_method("early", {"method": "hmcl_mr", "placement": "pre"}).name)
      early
    """
    table = dict(settings or {})
    base = table.pop("method", name)
    train = table.pop("train", {})
    if not isinstance(base, str) or base not in METHODS:
        raise ConfigError(
            f"methods must be among {', '.join(METHODS)}, or have a table "
            f"[methods.{name}] with method = one of them; got {base!r}."
        )
    check_name(name)
    from_mapping(TrainConfig(), train, f"methods.{name}.train")
    method = from_mapping(METHODS[base].method, table, f"methods.{name}")
    try:
        method.check()
    except Exception as error:  # a user's method may check with `assert`
        what = "" if isinstance(error, ConfigError) else f"{type(error).__name__}: "
        raise ConfigError(f"methods.{name}: {what}{error}") from error
    return dataclasses.replace(method, name=name, train=train)


def list_methods() -> str:
    """Every method with its settings, memory and reference, as text."""
    lines = [
        "Memory: bytes carried from task to task besides the heads, for d dimensions,",
        "M modalities, S seeds and n stored pairs; it never grows with the number of tasks.",
    ]
    for name, entry in METHODS.items():
        values = entry.method.settings().items()
        settings = ", ".join(f"{key} = {value!r}" for key, value in values) or "none"
        lines += [
            "",
            f"{name}: {entry.about}",
            f"  settings: {settings}",
            f"  memory: {entry.memory}",
            f"  reference: {entry.reference}",
        ]
    return "\n".join(lines)
