"""What does one correction of a step cost, and against a dense Lyapunov solve?

    python benchmarks/projection.py
    python benchmarks/projection.py --short

One compiled update of `hmcl_project` by itself, for growing rank, dimension d and number M of
modalities, around d = 512, M = 2, rank 32 each. CA is compared with what the paper's equation says
to the letter, by one dense Lyapunov solve of size d per step: by SciPy (Schur), and by the
eigenvectors of H in JAX. An update that only holds the time column is the least that a step can
cost. Sides take turns; medians of single calls are given.

Ranks below 16, and 0, are padded to width 16. q is the width of the shared basis, M times the
width. A step itself has M d (d + 1) entries, and every product with it takes d^2 q operations;
inside the shared basis there are products of d q^2. So exponents are fitted over d q, over d and q
apart, and over the number of operations of CA, 4 d^2 q + 10 d q^2.
"""

import argparse
import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg

import hmcl_jax
from hmcl_jax import Protection, hmcl_project
from hmcl_jax.lyapunov import matmul, solve_lyapunov
from hmcl_jax.projection import basis_image
from hmcl_jax.transform import VARIANTS
from timing import claim, exponent, median, per_call, print_json, print_table

MIDDLE = {"d": 512, "M": 2, "rank": 32}


def make_problem(d: int, M: int, rank: int) -> tuple[dict, dict, Protection]:
    """Heads, a step and a protection of so many directions per modality."""
    modalities = [f"m{i}" for i in range(M)]
    keys = jax.random.split(jax.random.key(d + M + rank), 3 * M)
    heads, delta, points = {}, {}, {}
    for number, m in enumerate(modalities):
        noise = 0.1 * jax.random.normal(keys[3 * number], (d, d + 1)) / np.sqrt(d)
        heads[m] = hmcl_jax.identity_head(d) + noise.at[:, 0].set(0)
        delta[m] = 1e-3 * jax.random.normal(keys[3 * number + 1], (d, d + 1))
        points[m] = jax.random.normal(keys[3 * number + 2], (2 * d, d)) / np.sqrt(d)
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), points)
    # A share this small is reached by the first direction: the rank is min_rank.
    protection = hmcl_jax.protect(moments, heads, variance=1e-6, min_rank=rank)
    return heads, delta, protection


def updates(variant: str, heads: dict, delta: dict, protection: Protection | None) -> Any:
    """A function that corrects one step."""
    tx = hmcl_project(variant)  # alone: AdamW and the anchor cost the same in every variant
    state = hmcl_jax.begin_task(tx.init(heads), heads, protection)
    update = jax.jit(tx.update)
    return lambda: update(delta, state, heads)[0]


@jax.jit
def equation(delta: dict, protection: Protection) -> tuple[jax.Array, jax.Array]:
    """H and the right-hand side of the Lyapunov equation, (d, d)."""
    image = basis_image(protection)
    H = sum(matmul(U, U.T) for U in image.values())
    F = sum(matmul(delta[m][:, 1:], protection.basis[m], U.T) for m, U in image.items())
    return H, F - F.T


@jax.jit
def turn_by(omega: jax.Array, delta: dict, protection: Protection) -> dict:
    """The step in which protected directions move by omega."""
    found = {}
    for m, U in basis_image(protection).items():
        V, block = protection.basis[m], delta[m][:, 1:]
        spatial = block - matmul(matmul(block, V) - matmul(omega, U), V.T)
        found[m] = jnp.concatenate([jnp.zeros_like(delta[m][:, :1]), spatial], axis=1)
    return found


def dense_scipy(delta: dict, protection: Protection, dtype: str) -> Any:
    def correct() -> dict:
        # The paper's equation to the letter: one solve of size d, whatever the rank.
        H, rhs = (np.asarray(x, dtype) for x in equation(delta, protection))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # H is singular, and SciPy says that it perturbs it
            omega = scipy.linalg.solve_continuous_lyapunov(H, rhs)
        return turn_by(jnp.asarray(omega, jnp.float32), delta, protection)

    return correct


def dense_eigh(delta: dict, protection: Protection) -> Any:
    @jax.jit
    def correct(delta: dict, protection: Protection) -> dict:
        return turn_by(solve_lyapunov(*equation(delta, protection)), delta, protection)

    return lambda: correct(delta, protection)


def off(found: dict, exact: dict) -> float:
    """Largest deviation, relative to the largest entry."""
    size = max(float(jnp.abs(x).max()) for x in exact.values())
    return max(float(jnp.abs(found[m] - exact[m]).max()) for m in exact) / size


def growth(ranks: list[int], dims: list[int], counts: list[int], repeats: int) -> tuple[list, dict]:
    """Times over rank, d and M, and the exponents with which they grow."""
    shapes = {(d, MIDDLE["M"], rank) for d, rank in itertools.product(dims, ranks)}
    shapes |= {(MIDDLE["d"], M, MIDDLE["rank"]) for M in counts}
    made = {shape: make_problem(*shape) for shape in sorted(shapes)}
    sides = {(v, *shape): updates(v, *found) for shape, found in made.items() for v in VARIANTS}
    times = per_call(sides, repeats)
    rows = []
    for shape, (_, _, protection) in made.items():
        width = int(protection.basis["m0"].shape[1])
        q = int(protection.shared_basis.shape[1])
        seconds = {v: median(times[v, *shape]) for v in VARIANTS}
        rows.append({**dict(zip("dM", shape, strict=False)), "rank": shape[2], "width": width})
        rows[-1] |= {"q": q, "seconds": seconds}
    fits = {}
    # Below rank 16 all are padded to one width, so the time does not grow there.
    square = [r for r in rows if r["M"] == MIDDLE["M"] and r["rank"] >= 16]
    for variant in VARIANTS:
        t = [r["seconds"][variant] for r in square]
        d, q = ([float(r[name]) for r in square] for name in "dq")
        design = np.stack([np.log(d), np.log(q), np.ones(len(d))], axis=1)
        in_d, in_q, _ = np.linalg.lstsq(design, np.log(t), rcond=None)[0]
        work = [4 * x**2 * y + 10 * x * y**2 for x, y in zip(d, q, strict=True)]
        fits[variant] = {"d*q": exponent(np.multiply(d, q), t), "d": float(in_d), "q": float(in_q)}
        fits[variant]["operations"] = exponent(work, t)
    return rows, fits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--short", action="store_true", help="fewer shapes, 5 repeats")
    arguments = parser.parse_args()
    ranks, dims, counts = [8, 16, 32, 64, 128], [256, 512, 1024], [2, 3, 4]
    if arguments.short:
        ranks, dims, counts, arguments.repeats = [8, 32, 64], [256, 512], [2, 3], 5
    rows, fits = growth(ranks, dims, counts, arguments.repeats)
    head = ["d", "M", "rank", "q", *(f"{v} (ms)" for v in VARIANTS)]
    names = ("d", "M", "rank", "q")
    print_table(
        head, [[*(r[n] for n in names), *(1e3 * r["seconds"][v] for v in VARIANTS)] for r in rows]
    )
    print_table(
        ["time of", "~ (d q)^p, p", "~ d^a q^b, a", "b", "~ operations^p, p"],
        [[v, f["d*q"], f["d"], f["q"], f["operations"]] for v, f in fits.items()],
    )

    heads, delta, protection = make_problem(**MIDDLE)
    plain = jax.jit(lambda delta: {m: W.at[:, 0].set(0) for m, W in delta.items()})
    sides = {v: updates(v, heads, delta, protection) for v in VARIANTS}
    sides["only the time column held"] = lambda: plain(delta)
    times = per_call(sides, 2 * arguments.repeats)
    dense = {
        "ca": sides["ca"],
        "dense, SciPy, float32": dense_scipy(delta, protection, "float32"),
        "dense, SciPy, float64": dense_scipy(delta, protection, "float64"),
        "dense, eigh in JAX": dense_eigh(delta, protection),
    }
    dense_times = per_call(dense, max(3, arguments.repeats // 3))
    exact = dense["dense, SciPy, float64"]()
    seconds = {side: median(values) for side, values in {**times, **dense_times}.items()}
    seconds["ca"] = median(times["ca"])
    print_table(
        ["side", "ms", "x ca", "off by"],
        [
            [side, 1e3 * s, s / seconds["ca"], off(dense[side](), exact) if side in dense else ""]
            for side, s in seconds.items()
        ],
    )
    base, scipy_dense = median(dense_times["ca"]), "dense, SciPy, float32"
    claims = [
        claim("dense SciPy route / ca", seconds[scipy_dense] / base, least=20),
        claim("ca / mr", seconds["ca"] / seconds["mr"], most=3),
        claim("exponent of the time of ca over d q", fits["ca"]["d*q"], most=1),
        claim("exponent of the time of ca over operations", fits["ca"]["operations"], most=1),
    ]
    print_json("projection", growth=rows, exponents=fits, seconds=seconds, claims=claims)


if __name__ == "__main__":
    main()
