r"""Dual-sided null-space projection of the raw gradient (Liu et al. 2025, DNS).

Per modality m two second moments are kept: :math:`C_m` of its frozen features and :math:`D_m` of
its partners' outputs. With projectors :math:`P_m` on the leading directions of C and :math:`Q_m` on
those of D, the gradient loses the part that both sides see, :math:`G_m - Q_m G_m P_m`, so that
:math:`z_a^\top \Delta W_a^\top (W_b z_b)` vanishes on old pairs at full rank.

The original takes every singular value above 0 into Q. In floating point that is all of them: Q is
then the identity, and the projection one-sided, G (I - P). ``left_tolerance = 0`` reproduces this;
above 0 it is relative to the largest singular value.

The original divides all moments by the number of pairs of all modalities together, so that a
modality that appears late is hardly protected; ``count = "all"`` reproduces this. Here each is
divided by the pairs of its own modality, which is the same if every task has the same modalities.

Entries of the projected gradient that are below the rounding of the projection are set to 0: AdamW
would make whole steps of them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax import lorentz
from hmcl_jax._checks import PRECISION
from hmcl_jax.continual.config import fraction, not_negative, one_of
from hmcl_jax.continual.method import Heads, Method, MethodState, TaskData, TaskSpec


@dataclasses.dataclass(frozen=True)
class Dns(Method):
    """DNS."""

    lambda_min: float = 0.1  # singular values of C above it are protected; the original's default
    include_time: bool = True  # whether features are lifted; else the time column is left free
    left_tolerance: float = 0.0  # protected: singular values of D above this share of the largest
    count: str = "modality"  # moments are means over its pairs, or over "all" pairs

    sweepable = ("lambda_min",)

    def check(self) -> None:
        not_negative("lambda_min", self.lambda_min)
        fraction("left_tolerance", self.left_tolerance, zero=True, one=False)
        one_of("count", self.count, ("modality", "all"))

    def init(self, heads: Heads) -> MethodState:
        def zeros(*shape: int) -> Heads:
            return {m: jnp.zeros(shape, W.dtype) for m, W in heads.items()}

        seeds, dim, columns = next(iter(heads.values())).shape
        shared = {
            "inputs": zeros(columns, columns),
            "directions": zeros(columns, columns),
            "values": zeros(columns),
            "samples": {m: jnp.zeros((), jnp.int32) for m in heads},
        }
        own = {"outputs": zeros(seeds, dim, dim), "left": zeros(seeds, dim, dim)}
        return MethodState(shared, own)

    def combine(
        self,
        gradients: tuple[Heads, ...],
        heads: Heads,
        state: MethodState,
        num_minibatches: jax.Array,
        spec: TaskSpec,
    ) -> Heads:
        product = functools.partial(jnp.matmul, precision=PRECISION)
        least, found = self.lambda_min, {}
        for m, G in gradients[0].items():
            kept = state.shared["values"][m] > least
            V = state.shared["directions"][m] * kept[None, :].astype(G.dtype)
            seen = product(state.own["left"][m], G)
            rest = G - product(product(seen, V), V.T)
            # An entry is a difference of sums over a row, whose rounding grows with its length.
            size = jnp.linalg.norm(G, axis=1) + jnp.linalg.norm(seen, axis=1)
            rounding = 4 * jnp.finfo(G.dtype).eps * G.shape[1] ** 0.5 * size
            exact = ~jnp.any(kept)  # nothing is taken away
            found[m] = jnp.where((jnp.abs(rest) > rounding[:, None]) | exact, rest, 0)
        return found

    def end_task(self, state: MethodState, heads: Heads, data: TaskData) -> MethodState:
        """Means over all pairs so far, n' = n + N: C <- (n / n') C + X^T X / n'."""
        spec, shared, own = data.spec, state.shared, state.own
        before = {m: int(n) for m, n in shared["samples"].items()}
        if self.count == "all":
            before = dict.fromkeys(before, max(before.values()))
            now = {m: n + len(data.pairs) for m, n in before.items()}
        else:
            now = {m: n + int(np.sum(data.counts.get(m, 0))) for m, n in before.items()}
        added = {}
        for modality, features in data.features.items():
            times = data.counts[modality]
            total = jnp.zeros_like(shared["inputs"][modality])
            for start in range(0, len(features), 4096):
                rows = np.asarray(features[start : start + 4096], total.dtype)
                missing = 4096 - len(rows)
                weights = np.pad(times[start : start + 4096], (0, missing)).astype(total.dtype)
                padded = np.pad(rows, ((0, missing), (0, 0)))
                total = total + _moment(padded, weights, spec.K, self.include_time)
            added[modality] = total
        partners = {spec.general: spec.specific, spec.specific: spec.general}
        inputs, outputs = dict(shared["inputs"]), dict(own["outputs"])
        for modality, partner in partners.items():
            keep, count = before[modality] / now[modality], now[modality]
            inputs[modality] = keep * inputs[modality] + added[modality] / count
            # The partner's outputs, W C W^T, need no pass over its features.
            moment = _through(heads[partner], added[partner] / count)
            outputs[modality] = keep * outputs[modality] + moment
        spectra = {m: _spectrum(C) for m, C in inputs.items()}
        return state._replace(
            shared={
                "inputs": inputs,
                "directions": {m: vectors for m, (_, vectors) in spectra.items()},
                "values": {m: values for m, (values, _) in spectra.items()},
                "samples": {m: jnp.int32(n) for m, n in now.items()},
            },
            own={
                "outputs": outputs,
                "left": {m: _left(D, self.left_tolerance) for m, D in outputs.items()},
            },
        )


@functools.partial(jax.jit, static_argnames="include_time")
def _moment(rows: jax.Array, weights: jax.Array, K: float, include_time: bool) -> jax.Array:
    lifted = lorentz.lift(rows, K)
    if not include_time:
        lifted = lifted.at[:, 0].set(0)
    return jnp.matmul((lifted * weights[:, None]).T, lifted, precision=PRECISION)


@jax.jit
def _through(W: jax.Array, moment: jax.Array) -> jax.Array:
    """Second moments of outputs, W C W^T, for all seeds."""
    return jnp.einsum("sij,jk,slk->sil", W, moment, W, precision=PRECISION)


@jax.jit
def _spectrum(C: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.linalg.eigh((C + C.T) / 2)


@functools.partial(jax.jit, static_argnames="tolerance")
def _left(D: jax.Array, tolerance: float) -> jax.Array:
    def one(D: jax.Array) -> jax.Array:
        if tolerance == 0:  # all singular values above 0: numerically all of them, once any is
            return jnp.where(jnp.any(D != 0), jnp.eye(D.shape[0], dtype=D.dtype), 0)
        values, vectors = _spectrum(D)
        kept = vectors * (values > jnp.maximum(tolerance * values[-1], 0))[None, :].astype(D.dtype)
        return jnp.matmul(kept, kept.T, precision=PRECISION)

    return jax.lax.map(one, D)
