"""Zero-shot and single-task scores, hierarchy and near-duplicates of the pocket stream."""

import functools

import jax
import numpy as np
import optax
import scipy.stats

import hmcl_jax
from hmcl_jax import apply_head, lorentz, objective
from hmcl_jax.data.store import Task

NEAR_DUPLICATE = 0.99


@functools.partial(jax.jit, static_argnames="K")
def _distances(general: jax.Array, specific: jax.Array, K: float) -> jax.Array:
    return lorentz.pairwise_distance(general, specific, K)


def recall(distances: np.ndarray, pairs: np.ndarray, k: int = 5) -> float:
    """Mean of R@k in both directions; a hit is any paired item among the k nearest."""
    together = np.zeros(distances.shape, bool)
    together[pairs[:, 1], pairs[:, 0]] = True
    hits = []
    for d, match in ((distances, together), (distances.T, together.T)):
        nearest = np.argsort(d, axis=1, kind="stable")[:, :k]
        hits.append(np.take_along_axis(match, nearest, axis=1).any(axis=1).mean())
    return float(np.mean(hits))


def score(task: Task, heads: dict[str, jax.Array], K: float) -> float:
    """Top-1 accuracy, or symmetric R@5, on the test part."""
    if task.kind == "classification":
        general, specific = task.arrays["prototypes"], task.arrays["test_features"]
    else:
        general, specific = task.arrays["test_general"], task.arrays["test_specific"]
    general = apply_head(heads[task.general], np.float32(general), K)
    specific = apply_head(heads[task.specific], np.float32(specific), K)
    distances = np.asarray(_distances(general, specific, K))
    if task.kind == "classification":
        return float((distances.argmin(axis=0) == task.arrays["test_labels"]).mean())
    return recall(distances, task.arrays["test_pairs"])


def single_task(task: Task, K: float, tau: float, steps: int = 120, batch: int = 512) -> float:
    """Score after training the heads on this task alone: AdamW, one step per minibatch."""
    dim = task.arrays["test_features" if task.classes else "test_specific"].shape[1]
    heads = hmcl_jax.identity_heads([task.general, task.specific], dim)
    tx = optax.adamw(optax.cosine_decay_schedule(1e-3, steps), weight_decay=0.0)

    def loss(heads, general, specific, labels):
        specific = apply_head(heads[task.specific], specific, K)
        if task.kind == "classification":
            general = apply_head(heads[task.general], general, K)
            return objective.prototype_loss(general, specific, labels, tau=tau, K=K)
        return objective.pair_loss(
            apply_head(heads[task.general], general, K), specific, tau=tau, K=K
        )

    @jax.jit
    def step(heads, state, *data):
        updates, state = tx.update(jax.grad(loss)(heads, *data), state, heads)
        return optax.apply_updates(heads, updates), state

    state = tx.init(heads)
    rng = np.random.default_rng(0)
    count = task.size("train")
    for _ in range(steps):
        rows = rng.choice(count, min(batch, count), replace=False)
        if task.kind == "classification":
            data = (
                np.float32(task.arrays["prototypes"]),
                np.float32(task.arrays["train_features"][rows]),
                task.arrays["train_labels"][rows].astype(np.int32),
            )
        else:
            pairs = task.arrays["train_pairs"][rows]
            data = (
                np.float32(task.arrays["train_general"][pairs[:, 1]]),
                np.float32(task.arrays["train_specific"][pairs[:, 0]]),
                np.zeros(len(rows), np.int32),
            )
        heads, state = step(heads, state, *data)
    return score(task, heads, K)


def hierarchy(trees: list[dict[str, str]], radius: dict[str, float]) -> dict[str, float]:
    """Whether parents lie nearer the origin than children, over trees ``{child: parent}``."""
    right, radii, depths = [], [], []
    for parent in trees:
        right += [radius[p] < radius[c] for c, p in parent.items()]
        for name in sorted({*parent, *parent.values()}):
            radii.append(radius[name])
            depth = 0
            while name in parent:
                name, depth = parent[name], depth + 1
            depths.append(depth)
    correlation = scipy.stats.spearmanr(radii, depths)
    return {
        "tree_pairs": len(right),
        "parents_nearer": round(float(np.mean(right)), 4),
        "spearman": round(float(correlation.statistic), 4),
        "p_value": float(f"{correlation.pvalue:.3g}"),
    }


def nearest_cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For every row of `a` the largest cosine with a row of `b`."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return np.concatenate(
        [(a[i : i + 1024] @ b.T).max(axis=1) for i in range(0, len(a), 1024)] or [np.zeros(0)]
    )
