"""A whole continual run written down again from the paper, in float64 with numpy alone.

One seed, one pair, one feature at a time where that is the shorter way to say it. Gradients of the
contrast are the textbook ones; those of the cones are complex steps, exact to rounding.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

B1, B2, EPS = 0.9, 0.999, 1e-8  # of AdamW


class Lesson(NamedTuple):
    """A task's training pairs."""

    kind: str
    general: str
    specific: str
    general_features: np.ndarray
    specific_features: np.ndarray
    pairs: np.ndarray  # rows (specific, general)


@dataclasses.dataclass(frozen=True)
class Setup:
    """What a run is asked to do; `correction` is None, "mr" or "ca"."""

    K: float
    tau: float
    epochs: dict
    rates: dict
    batch: int
    kappa: float = 0.1
    entailment_weight: float = 0.2
    weight_decay: float = 0.0
    step: str = "epoch"
    reset_optimizer: bool = True
    correction: str | None = None
    span: str = "protected"
    placement: str = "post"
    betas: dict = dataclasses.field(default_factory=dict)
    variance: float = 1.0
    min_rank: int = 0
    pull: float = 0.0  # weight of the mean squared way of the points
    ahead: float = 0.0  # how far ahead along the gradient a second one is taken, from task 2 on


class Learned(NamedTuple):
    """What is known after a task."""

    heads: dict
    losses: list  # by epoch
    ranks: dict  # protected during the task


# The geometry


def lift(x, K):
    return np.concatenate([np.sqrt(K + (x * x).sum(1, keepdims=True)), x], axis=1)


def products(x, y, K):
    """Lorentz products of all pairs of rows."""
    x, y = lift(x, K), lift(y, K)
    return x[:, 1:] @ y[:, 1:].T - np.outer(x[:, 0], y[:, 0])


def outside(general, specific, K, kappa):
    """max(0, ext - aper) of each pair of rows, as the paper writes it; complex if they are."""
    x, y = lift(general, K), lift(specific, K)
    radius = np.sqrt((general * general).sum(1))
    gamma = ((general * specific).sum(1) - x[:, 0] * y[:, 0]) / K
    exterior = np.arccos((y[:, 0] + x[:, 0] * gamma) / (radius * np.sqrt(gamma**2 - 1)))
    sine = 2 * kappa * np.sqrt(K) / radius
    aperture = np.where(sine.real < 1, np.arcsin(np.where(sine.real < 1, sine, 0)), np.pi / 2)
    excess = exterior - aperture
    return np.where(excess.real > 0, excess, 0)


def pair_loss(general, specific, setup):
    """Loss of a minibatch, and its gradients towards the points of both sides."""
    K, tau, n = setup.K, setup.tau, len(general)
    u = -products(general, specific, K) / K
    logits = -np.sqrt(K) * np.arccosh(u) / tau
    exp = np.exp(logits - logits.max())
    rows, columns = exp.sum(1, keepdims=True), exp.sum(0, keepdims=True)
    contrast = np.log(rows).mean() / 2 + np.log(columns).mean() / 2 + logits.max()
    loss = contrast - np.trace(logits) / n
    by_logits = ((exp / rows + exp / columns) / 2 - np.eye(n)) / n
    by_u = by_logits * -np.sqrt(K) / (tau * np.sqrt(u * u - 1))
    times = [lift(x, K)[:, :1] for x in (general, specific)]
    by_general = (by_u @ times[1] * general / times[0] - by_u @ specific) / K
    by_specific = (by_u.T @ times[0] * specific / times[1] - by_u.T @ general) / K

    weight, tiny = setup.entailment_weight / n, 1e-30
    loss += weight * outside(general, specific, K, setup.kappa).sum()
    for j in range(general.shape[1]):
        step = np.zeros_like(general, complex)
        step[:, j] = 1j * tiny
        forward = outside(general + step, specific + 0j, K, setup.kappa)
        sideways = outside(general + 0j, specific + step, K, setup.kappa)
        by_general[:, j] += weight * forward.imag / tiny
        by_specific[:, j] += weight * sideways.imag / tiny
    return loss, by_general, by_specific


# One task


def minibatch_gradient(heads, lesson, chosen, setup):
    """Loss of some pairs and its gradient towards every head."""
    features = {
        lesson.general: lesson.general_features[chosen[:, 1]].astype(np.float64),
        lesson.specific: lesson.specific_features[chosen[:, 0]].astype(np.float64),
    }
    lifted = {m: lift(x, setup.K) for m, x in features.items()}
    points = {m: z @ heads[m].T for m, z in lifted.items()}
    loss, *of_points = pair_loss(points[lesson.general], points[lesson.specific], setup)
    gradient = {m: np.zeros_like(W) for m, W in heads.items()}
    for m, by_points in zip((lesson.general, lesson.specific), of_points, strict=True):
        way = points[m] - features[m]
        loss += setup.pull * (way**2).sum() / len(chosen)
        gradient[m] += (by_points + 2 * setup.pull * way / len(chosen)).T @ lifted[m]
    return loss, gradient


def total_gradient(heads, lesson, minibatches, setup):
    """Sums over minibatches."""
    found = [minibatch_gradient(heads, lesson, chosen, setup) for chosen in minibatches]
    return sum(loss for loss, _ in found), {m: sum(g[m] for _, g in found) for m in heads}


class AdamW:
    def __init__(self):
        self.steps, self.first, self.second = 0, {}, {}

    def propose(self, heads, gradient, rate, decay):
        """The displacement it wants, by head."""
        self.steps += 1
        found = {}
        for m, g in gradient.items():
            self.first[m] = B1 * self.first.get(m, 0.0) + (1 - B1) * g
            self.second[m] = B2 * self.second.get(m, 0.0) + (1 - B2) * g * g
            first = self.first[m] / (1 - B1**self.steps)
            second = self.second[m] / (1 - B2**self.steps)
            found[m] = -rate * (first / (np.sqrt(second) + EPS) + decay * heads[m])
        return found


def learn(heads, lesson, place, seed, setup, adamw, bases):
    """A task from its start to its end; `bases` are the protected directions."""
    start = {m: W.copy() for m, W in heads.items()}
    images = {m: W[:, 1:] @ bases[m] for m, W in start.items()}
    kind, losses = lesson.kind, []

    def correct(step):
        if setup.correction is None:
            return step
        return admissible(step, bases, images, setup.span if setup.correction == "ca" else None)

    for epoch in range(setup.epochs[kind]):
        order = np.random.default_rng([seed, place, epoch]).permutation(len(lesson.pairs))
        ordered = lesson.pairs[order]
        minibatches = np.split(ordered, range(setup.batch, len(order), setup.batch))
        parts = [[chosen] for chosen in minibatches] if setup.step == "minibatch" else [minibatches]
        losses.append(0.0)
        for part in parts:
            loss, gradient = total_gradient(heads, lesson, part, setup)
            losses[-1] += loss / len(minibatches)
            if setup.ahead and place > 0:
                there = {m: W + setup.ahead * gradient[m] for m, W in heads.items()}
                _, second = total_gradient(there, lesson, part, setup)
                gradient = {m: gradient[m] + second[m] / len(part) for m in heads}
            if setup.placement == "pre":
                gradient = correct(gradient)
            step = adamw.propose(heads, gradient, setup.rates[kind], setup.weight_decay)
            if setup.placement != "pre":
                step = correct(step)
            beta = setup.betas[kind] if setup.placement == "post+anchor" else 0.0
            heads = {m: beta * start[m] + (1 - beta) * (W + step[m]) for m, W in heads.items()}
    return heads, losses


# What is protected


def protected_directions(features, setup, dim):
    """Leading right singular vectors of all features that were learned, by the rank rule."""
    if not features:
        return np.zeros((dim, 0))
    _, scales, rows = np.linalg.svd(np.concatenate(features), full_matrices=False)
    shares = np.cumsum(scales**2) / np.sum(scales**2)
    rank = max(1 + int(np.sum(shares < setup.variance - 1e-12)), setup.min_rank)
    return rows[: min(rank, int(np.sum(scales > 1e-6 * scales[0])))].T


def admissible(step, bases, images, span):
    """The closest step that holds the time columns and turns all images by one rotation, or none.

    Least squares over the skew matrices in a span, one unknown for every pair of its axes.
    """
    dim = len(next(iter(bases.values())))
    omega = np.zeros((dim, dim))
    U = np.concatenate([images[m] for m in step], axis=1)
    if span and U.size:
        axes = np.eye(dim)
        if span == "protected":
            axes, scales, _ = np.linalg.svd(U)
            axes = axes[:, : int(np.sum(scales > 1e-9 * scales[0]))]
        wanted = np.concatenate([step[m][:, 1:] @ bases[m] for m in step], axis=1)
        skew = [
            np.outer(axes[:, i], axes[:, j]) - np.outer(axes[:, j], axes[:, i])
            for i, j in zip(*np.triu_indices(axes.shape[1], 1), strict=True)
        ]
        if skew:
            moved = np.stack([(A @ U).ravel() for A in skew], axis=1)
            angles = np.linalg.lstsq(moved, wanted.ravel(), rcond=1e-12)[0]
            omega = np.tensordot(angles, skew, axes=1)
    corrected = {}
    for m, candidate in step.items():
        V, spatial = bases[m], candidate[:, 1:]
        kept = spatial - spatial @ V @ V.T + omega @ images[m] @ V.T
        corrected[m] = np.concatenate([np.zeros((dim, 1)), kept], axis=1)
    return corrected


def run(lessons, seed, setup):
    """All tasks one after the other; what is known after each."""
    dim = lessons[0].general_features.shape[1]
    heads, learned, adamw = {}, [], AdamW()
    seen: dict = {}
    for place, lesson in enumerate(lessons):
        for m in (lesson.general, lesson.specific):
            heads = {m: np.eye(dim, dim + 1, k=1), **heads}
        if setup.reset_optimizer:
            adamw = AdamW()
        bases = {m: protected_directions(seen.get(m, []), setup, dim) for m in heads}
        heads, losses = learn(dict(heads), lesson, place, seed, setup, adamw, bases)
        learned.append(Learned(heads, losses, {m: V.shape[1] for m, V in bases.items()}))
        # Every pair shows both of its rows once.
        for m, rows in (
            (lesson.general, lesson.general_features[lesson.pairs[:, 1]]),
            (lesson.specific, lesson.specific_features[lesson.pairs[:, 0]]),
        ):
            seen.setdefault(m, []).append(rows.astype(np.float64))
    return learned
