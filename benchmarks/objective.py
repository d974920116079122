"""How fast are loss and gradient of a minibatch, against PyTorch and against their own products?

    pip install -e '.[torch]'
    python benchmarks/objective.py
    python benchmarks/objective.py --short          # without PyTorch if it is not there

A minibatch of 1024 pairs at d = 512: frozen features through both heads, contrastive and
entailment loss, gradients of both heads. For classification with C = 10, 100, 1,000 classes, where
the prototypes go through their head once per 8 minibatches, and for pairs (retrieval), where both
sides do for every minibatch. Sides take turns in one process, and of its rounds the fastest quarter
counts; per minibatch:

- ours: what a task's training runs, the sum of gradients of 8 minibatches in one program;
- eager: the same loss in PyTorch as published code of such models has it: pair by pair, prototypes
  repeated, and one matrix of distances for each direction of the contrast;
- eager, one: the same with one matrix of distances that serves both directions;
- compiled: "eager, one" by torch.compile;
- products: only the matrix products that ours does, compiled by XLA. Their time over ours is the
  share of the rate of products that the whole objective reaches; eager over products ("limit") is
  about as far as one can get with these products in this precision.
"""

import argparse
import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hmcl_jax.continual import TrainConfig
from hmcl_jax.continual.feed import Feed, Pairs
from hmcl_jax.continual.gradients import Objective
from hmcl_jax.continual.method import MethodState, TaskSpec
from timing import claim, interleave, print_json, print_table, undisturbed

K, TAU, KAPPA, WEIGHT = 10.0, 0.07, 0.1, 0.2


@dataclasses.dataclass(frozen=True)
class Problem:
    """Minibatches of pairs: features of both sides, and which general row belongs to which."""

    kind: str
    general: np.ndarray
    specific: np.ndarray
    labels: np.ndarray
    minibatches: int
    batch: int
    heads: dict[str, np.ndarray]


def make_problem(classes: int | None, batch: int, dim: int, minibatches: int) -> Problem:
    """Random features; `classes` None for pairs."""
    rng = np.random.default_rng(0)
    rows = batch * minibatches
    general = rng.normal(size=(classes or rows, dim)).astype(np.float32) / dim**0.5
    labels = np.arange(rows) if classes is None else rng.integers(0, classes, rows)
    noise = rng.normal(size=(rows, dim)).astype(np.float32) / dim**0.5
    heads = {
        m: (np.eye(dim, dim + 1, k=1) + 0.01 * rng.normal(size=(dim, dim + 1))).astype(np.float32)
        for m in ("text", "image")
    }
    kind = "retrieval" if classes is None else "classification"
    specific = general[labels] + noise
    return Problem(kind, general, specific, labels.astype(np.int32), minibatches, batch, heads)


def ours(problem: Problem) -> Callable[[], Any]:
    """What :mod:`hmcl_jax.continual.gradients` does in an epoch."""
    config = TrainConfig(batch=problem.batch, kappa=KAPPA, entailment_weight=WEIGHT)
    spec = TaskSpec(problem.kind, "text", "image", False, K, TAU, problem.batch, config)
    state = MethodState((), ())
    rows = len(problem.labels)
    order = np.arange(rows, dtype=np.int32)
    data = Pairs(problem.general, problem.specific, np.stack([order, problem.labels], axis=1))
    numbers = map(np.int32, (0, problem.minibatches, rows))
    feed = jax.tree.map(jnp.asarray, Feed(order, data, problem.general, *numbers))
    heads = jax.tree.map(jnp.asarray, problem.heads)

    @jax.jit
    def gradients(heads: Any, feed: Feed) -> Any:
        return Objective(None, spec, state, feed, None).sum(heads, 0, feed.count)

    return lambda: gradients(heads, feed)


def products(problem: Problem) -> Callable[[], Any]:
    """The matrix products of the same work, nothing else."""
    dim, batch = problem.specific.shape[1], problem.batch
    rng = np.random.default_rng(1)
    rows = batch if problem.kind == "retrieval" else len(problem.general)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    lifted, W, G = normal(batch, dim + 1), normal(dim, dim + 1), normal(rows, dim)
    X, M, of_text = normal(batch, dim), normal(rows, batch), normal(rows, dim + 1)
    # Prototypes go through their head once for all minibatches, pairs for each.
    often = 1 if problem.kind == "retrieval" else problem.minibatches

    @jax.jit
    def one(lifted: Any, W: Any, G: Any, X: Any, M: Any) -> Any:
        # The samples' head and its gradient, the inner products, both sides' gradients of these.
        return lifted @ W.T, X.T @ lifted, G @ X.T, M @ X, M.T @ G

    @jax.jit
    def text(of_text: Any, W: Any, G: Any) -> Any:
        return of_text @ W.T, G.T @ of_text

    def run() -> Any:
        for number in range(problem.minibatches):
            found = one(lifted, W, G, X, M)
            if number % often == 0:
                found = (*found, *text(of_text, W, G))
            jax.block_until_ready(found)

    return run


def with_torch(problem: Problem, matrices: int, compiled: bool) -> Callable[[], Any] | None:
    """The loss in PyTorch with one or two matrices of distances; None if it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    heads = {m: torch.tensor(W, requires_grad=True) for m, W in problem.heads.items()}
    general, specific = torch.tensor(problem.general), torch.tensor(problem.specific)
    labels = torch.tensor(problem.labels, dtype=torch.long)

    def points(W: Any, x: Any) -> Any:
        time = torch.sqrt(K + (x * x).sum(-1, keepdim=True))
        return torch.cat([time, x], -1) @ W.T

    # The margins 1e-6 keep the gradients of acosh, acos and asin finite, as published code has it.
    def logits(x: Any, y: Any, x0: Any, y0: Any) -> Any:
        inner = (x @ y.T - x0[:, None] * y0[None, :]) / K
        return -(K**0.5) * torch.acosh(torch.clamp(-inner, min=1 + 1e-6)) / TAU

    def loss(text: Any, image: Any, general: Any, specific: Any) -> Any:
        g, s = points(text, general), points(image, specific)
        g0, s0 = (torch.sqrt(K + (x * x).sum(-1)) for x in (g, s))
        of_general = logits(g, s, g0, s0)
        of_specific = of_general.T if matrices == 1 else logits(s, g, s0, g0)
        target = torch.arange(len(g))
        cross = torch.nn.functional.cross_entropy
        contrast = (cross(of_general, target) + cross(of_specific, target)) / 2
        matched = ((g * s).sum(-1) - g0 * s0) / K
        r = g.norm(dim=-1)
        cosine = (s0 + g0 * matched) / (r * torch.sqrt(torch.clamp(matched**2 - 1, min=1e-6)))
        angle = torch.acos(torch.clamp(cosine, -1 + 1e-6, 1 - 1e-6))
        aperture = torch.asin(torch.clamp(2 * KAPPA * K**0.5 / r, max=1 - 1e-6))
        return contrast + WEIGHT * torch.relu(angle - aperture).mean()

    if compiled:
        loss = torch.compile(loss)

    def run() -> Any:
        for W in heads.values():
            W.grad = None
        total = 0.0
        for number in range(problem.minibatches):
            at = slice(number * problem.batch, (number + 1) * problem.batch)
            value = loss(heads["text"], heads["image"], general[labels[at]], specific[at])
            value.backward()
            total += value.item()
        return {m: W.grad.numpy() for m, W in heads.items()}, total

    return run


def measure(problem: Problem, repeats: int, compiled: bool) -> dict[str, float]:
    """Seconds per minibatch of every side, after a check that they agree."""
    sides = {"ours": ours(problem), "products": products(problem)}
    eager, one = (with_torch(problem, matrices, False) for matrices in (2, 1))
    if eager is not None and one is not None:
        sides |= {"eager": eager, "eager, one": one}
        gradients, loss = sides["ours"]()
        expected, total = eager()
        if abs(float(loss) - total) > 1e-3 * abs(total):
            raise SystemExit(f"objective: losses differ, ours {float(loss)}, PyTorch's {total}.")
        for m, g in expected.items():
            off = float(np.abs(np.asarray(gradients[m]) - g).max() / np.abs(g).max())
            if off > 1e-2:
                raise SystemExit(f"objective: gradients of {m} differ by {off:.1e}.")
    if compiled and (fast := with_torch(problem, 1, True)) is not None:
        sides["compiled"] = fast
    # PyTorch's threads spin for a while and would take the cores of the next side.
    times = interleave(sides, repeats, settle=True)
    return {name: undisturbed(values) / problem.minibatches for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--short", action="store_true", help="smaller, for a first look")
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--compiled", action="store_true", help="torch.compile too (slow to start)")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.repeats = 3
    names = {10: "C = 10", 100: "C = 100", 1000: "C = 1,000", None: "pairs"}
    rows, numbers, claims = [], {}, []
    # With few classes eager code wastes most: it repeats the prototypes for every pair.
    wanted = {10: 15.0, 100: 10.0, 1000: 4.0, None: 4.0}
    for classes, name in names.items():
        problem = make_problem(classes, arguments.batch, arguments.dim, 8)
        found = measure(problem, arguments.repeats, arguments.compiled)
        share = found["products"] / found["ours"]
        others = ("eager", "eager, one", "compiled")
        times = {side: found[side] / found["ours"] for side in others if side in found}
        cells = [f"{times[side]:.1f} x" if side in times else "-" for side in others]
        rows.append([name, 1e3 * found["ours"], 1e3 * found["products"], f"{share:.2f}", *cells])
        limit = found["eager"] / found["products"] if "eager" in found else None
        rows[-1].append("-" if limit is None else f"{limit:.1f} x")
        numbers[name] = {"limit": limit, "seconds": found, "share of products": share}
        numbers[name]["times"] = times
        if "eager" in times:
            text = f"{name}: eager PyTorch over ours"
            claims.append(claim(text, times["eager"], least=wanted[classes]))
        if classes in (1000, None):
            claims.append(claim(f"{name}: share of the rate of products", share, least=0.7))
    header = ["minibatch", "ours, ms", "products, ms", "share"]
    print_table([*header, *(f"{side} / ours" for side in others), "limit"], rows)
    print_json("objective", batch=arguments.batch, d=arguments.dim, rows=numbers, claims=claims)


if __name__ == "__main__":
    main()
