"""The Lorentz layer as a Flax (Linen) module; the only part of the core that needs Flax."""

from typing import Any

import jax
import jax.numpy as jnp

from hmcl_jax._extras import require
from hmcl_jax.head import apply_head, identity_head

nn = require("flax.linen", "flax")


class LorentzHead(nn.Module):  # type: ignore[name-defined]
    """The Lorentz layer as a Flax (Linen) module, initialised to ``[0 | I]``.

    Its one parameter is called ``W``; a model's heads are named to :func:`hmcl_jax.hmcl_project` by
    their paths, for example ``heads={"image": "params/image_head/W"}``.

    Attributes:
      K: squared radius of the hyperboloid.
      param_dtype: of the head.

    Example:
      >>> import jax
      >>> from hmcl_jax import LorentzHead
      >>> x = jax.numpy.ones((3, 4))
      >>> module = LorentzHead()
      >>> variables = module.init(jax.random.key(0), x)
      >>> print((module.apply(variables, x) == x).all())
      True
    """

    K: float = 10.0
    param_dtype: Any = jnp.float32

    @nn.compact  # type: ignore[untyped-decorator, unused-ignore]
    def __call__(self, x: jax.Array) -> jax.Array:
        W = self.param("W", lambda key: identity_head(x.shape[-1], self.param_dtype))
        return apply_head(W, x, K=self.K)
