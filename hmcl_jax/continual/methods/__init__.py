"""The methods, by name: each a frozen dataclass of settings and a function that makes a record."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hmcl_jax.continual.config import ConfigError, TrainConfig, from_mapping
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import (
    cflat,
    derpp,
    dns,
    ewc,
    gem,
    hmcl,
    joint,
    nullspace,
    vanilla,
)


class Entry(NamedTuple):
    """A method that can be asked for by name.

    Attributes:
      settings: its defaults.
      make: name and settings to a record.
      about: what it does, in a line.
      memory: bytes it carries from task to task besides the heads, in float32; with d dimensions,
        M modalities, S seeds and n stored pairs. None grows with the number of tasks.
      reference: where it is from.
      knobs: settings that may differ along the seed axis of a sweep; the first is its strength.
    """

    settings: Any
    make: Callable[[str, Any], Method]
    about: str
    memory: str
    reference: str
    knobs: tuple[str, ...] = ()


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_MOMENTS = "16 * M * (d + 1)**2"
METHODS: dict[str, Entry] = {
    "vanilla": Entry(
        vanilla.VanillaSettings(),
        vanilla.make,
        "plain fine-tuning",
        "0",
        "-",
    ),
    "hmcl_mr": Entry(
        hmcl.HmclSettings(variant="mr"),
        hmcl.make,
        "steps that leave old points where they are",
        _MOMENTS,
        "the HMCL paper, minimal rotation",
        ("variance", "beta"),
    ),
    "hmcl_ca": Entry(
        hmcl.HmclSettings(variant="ca"),
        hmcl.make,
        "steps that turn old points by one shared rotation, to first order",
        _MOMENTS,
        "the HMCL paper, closest admissible update",
        ("variance", "beta"),
    ),
    "hmcl_rotation": Entry(
        hmcl.HmclSettings(variant="rotation"),
        hmcl.make,
        "the same with the rotation accumulated and applied as a finite one",
        _MOMENTS,
        "this package; see hmcl_jax.transform",
        ("variance", "beta"),
    ),
    "ewc": Entry(
        ewc.EwcSettings(),
        ewc.make,
        "a quadratic penalty where the old loss was sensitive",
        "12 * S * M * d * (d + 1)",
        "Kirkpatrick et al. 2017, Overcoming catastrophic forgetting in neural networks",
        ("coefficient",),
    ),
    "gem": Entry(
        gem.GemSettings(),
        gem.make,
        "no step against the gradient on a memory of any old task",
        "S * n * (16 * d + 12)",
        "Lopez-Paz and Ranzato 2017, Gradient episodic memory",
        ("margin", "eps"),
    ),
    "cflat": Entry(
        cflat.CflatSettings(),
        cflat.make,
        "flat minima around AdamW, with distillation of similarities",
        "4 * S * M * d * (d + 1) + S * n * (16 * d + 12)",
        "Bian et al. 2024, C-Flat; Cha et al. 2021, Co2L",
        ("power", "rho", "coefficient"),
    ),
    "dns": Entry(
        dns.DnsSettings(),
        dns.make,
        "gradients without the part that old inputs and old partners both see",
        "8 * M * (d + 1)**2 + 8 * S * M * d**2",
        "Liu et al. 2025, Continual multimodal contrastive learning",
        ("lambda_min",),
    ),
    "agem": Entry(
        gem.AgemSettings(),
        gem.make,
        "no step against the mean gradient on the memory",
        "S * n * (16 * d + 12)",
        "Chaudhry et al. 2019, Efficient lifelong learning with A-GEM",
    ),
    "derpp": Entry(
        derpp.DerppSettings(),
        derpp.make,
        "replay of stored pairs, which should also stay where they were",
        "S * n * (16 * d + 12)",
        "Buzzega et al. 2020, Dark experience for general continual learning",
        ("alpha", "beta"),
    ),
    "nullspace": Entry(
        nullspace.NullspaceSettings(),
        nullspace.make,
        "steps without the directions of old inputs, the Euclidean twin of hmcl_mr",
        _MOMENTS,
        "after Wang et al. 2021, Training networks in null space of feature covariance",
        ("variance",),
    ),
    "joint": Entry(
        joint.JointSettings(),
        joint.make,
        "all tasks at once: not continual, an upper bound",
        "0, but it needs all data of the tasks",
        "-",
    ),
}


def check_name(name: str) -> None:
    """Refuses names that could not be those of folders, or would be folders elsewhere."""
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

    Returns:
      The record.

    Example:
      >>> from hmcl_jax.continual.methods import make_method
      >>> print(make_method("hmcl_mr", {"beta": 0.1}).settings.beta)
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
    entry = METHODS[base]
    from_mapping(TrainConfig(), train, f"methods.{name}.train")
    method = entry.make(name, from_mapping(entry.settings, table, f"methods.{name}"))
    return dataclasses.replace(method, train=train)


def list_methods() -> str:
    """Every method with its settings, memory and reference, as text."""
    lines = [
        "Memory: bytes carried from task to task besides the heads, for d dimensions,",
        "M modalities, S seeds and n stored pairs; it never grows with the number of tasks.",
    ]
    for name, entry in METHODS.items():
        values = dataclasses.asdict(entry.settings)
        shown = ", ".join(f"{key} = {value!r}" for key, value in values.items()) or "none"
        lines += [
            "",
            f"{name}: {entry.about}",
            f"  settings: {shown}",
            f"  memory: {entry.memory}",
            f"  reference: {entry.reference}",
        ]
    return "\n".join(lines)
