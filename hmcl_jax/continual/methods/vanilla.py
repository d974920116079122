"""Plain fine-tuning: AdamW and nothing else."""

import dataclasses

from hmcl_jax.continual.method import Method


@dataclasses.dataclass(frozen=True)
class VanillaSettings:
    """There is nothing to set."""


def make(name: str, settings: VanillaSettings) -> Method:
    """The record of plain fine-tuning."""
    return Method(name, settings)
