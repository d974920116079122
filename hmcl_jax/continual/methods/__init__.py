"""The methods, by name: each a frozen dataclass of settings and a function that makes a record."""

from collections.abc import Callable, Mapping
from typing import Any

from hmcl_jax.continual.config import ConfigError, from_mapping
from hmcl_jax.continual.method import Method
from hmcl_jax.continual.methods import hmcl, vanilla
from hmcl_jax.data.store import NAME

METHODS: dict[str, tuple[Any, Callable[[str, Any], Method]]] = {
    "vanilla": (vanilla.VanillaSettings(), vanilla.make),
    "hmcl_mr": (hmcl.HmclSettings(variant="mr"), hmcl.make),
    "hmcl_ca": (hmcl.HmclSettings(variant="ca"), hmcl.make),
    "hmcl_rotation": (hmcl.HmclSettings(variant="rotation"), hmcl.make),
}


def make_method(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """A method by name, with some of its settings replaced.

    Args:
      name: one of :data:`METHODS`, or a name of one's own if `settings` say the ``"method"``.
      settings: by name, as in a config file.

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
    if base not in METHODS:
        raise ConfigError(
            f"methods must be among {', '.join(METHODS)}, or have a table "
            f"[methods.{name}] with method = one of them; got {base!r}."
        )
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"A method's name must be letters, digits, '_', '.' or '-', got {name!r}."
        )
    default, make = METHODS[base]
    return make(name, from_mapping(default, table, f"methods.{name}"))
