"""Zero-shot and single-task scores, hierarchy and near-duplicates of the pocket stream."""

import dataclasses
import io

import jax
import numpy as np
import optax
import scipy.stats
from PIL import Image

import hmcl_jax
from hmcl_jax import apply_head, lorentz, objective
from hmcl_jax.data.store import Task
from pocket.encoders import PictureEncoder
from pocket.stream import TaskPlan

# Cosine of picture features beyond which two pictures count as copies; copy_cosines() shows that
# nearly all copies moved by a pixel or made a little smaller lie beyond it. Where different
# pictures do too (simple sketches, digits), it costs training data and nothing else.
NEAR_DUPLICATE = 0.94


_pairwise = jax.jit(lorentz.pairwise_distance, static_argnames="K")


def distances(general: np.ndarray, specific: np.ndarray, K: float) -> np.ndarray:
    """Lorentz distances of all points."""
    return np.asarray(_pairwise(np.float32(general), np.float32(specific), K=K))


def recall(far: np.ndarray, pairs: np.ndarray, k: int = 5) -> float:
    """Mean of R@k in both directions; a hit is any paired item among the k nearest."""
    together = np.zeros(far.shape, bool)
    together[pairs[:, 1], pairs[:, 0]] = True
    hits = []
    for d, match in ((far, together), (far.T, together.T)):
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
    far = distances(general, specific, K)
    if task.kind == "classification":
        return float((far.argmin(axis=0) == task.arrays["test_labels"]).mean())
    return recall(far, task.arrays["test_pairs"])


def single_task(task: Task, K: float, tau: float, steps: int = 120, batch: int = 512) -> float:
    """Score after training the heads on this task alone.

    AdamW with one step per minibatch; of several learning rates, and of not training at all, the
    one that is best on a fifth of the training part, which is then trained on as a whole.
    """
    rng = np.random.default_rng(0)
    order = rng.permutation(task.size("train"))
    held, rest = order[: len(order) // 5], order[len(order) // 5 :]
    trained = {
        rate: _train_alone(task, K, tau, rest, rate, steps, batch) for rate in (1e-5, 1e-4, 1e-3)
    }
    trained[0.0] = _identity(task)
    validation = _validation(task, held)
    best = max(sorted(trained), key=lambda rate: score(validation, trained[rate], K))
    everything = np.sort(order)
    heads = _train_alone(task, K, tau, everything, best, steps, batch) if best else trained[0.0]
    return score(task, heads, K)


def _identity(task: Task) -> dict[str, jax.Array]:
    dim = task.arrays["test_features" if task.classes else "test_specific"].shape[1]
    return hmcl_jax.identity_heads([task.general, task.specific], dim)


def _validation(task: Task, rows: np.ndarray) -> Task:
    """A task whose test part is some of the training part."""
    arrays = dict(task.arrays)
    if task.kind == "classification":
        arrays |= {f"test_{x}": task.arrays[f"train_{x}"][rows] for x in ("features", "labels")}
    else:
        pairs = task.arrays["train_pairs"][rows]
        for column, side in enumerate(("specific", "general")):
            found, pairs[:, column] = np.unique(pairs[:, column], return_inverse=True)
            arrays[f"test_{side}"] = task.arrays[f"train_{side}"][found]
        arrays["test_pairs"] = pairs
    return dataclasses.replace(task, arrays=arrays)


def _train_alone(
    task: Task, K: float, tau: float, chosen: np.ndarray, rate: float, steps: int, batch: int
) -> dict[str, jax.Array]:
    tx = optax.adamw(optax.cosine_decay_schedule(rate, steps), weight_decay=0.0)

    def loss(heads, general, specific, labels):
        specific = apply_head(heads[task.specific], specific, K)
        general = apply_head(heads[task.general], general, K)
        if task.kind == "classification":
            return objective.prototype_loss(general, specific, labels, tau=tau, K=K)
        return objective.pair_loss(general, specific, tau=tau, K=K)

    @jax.jit
    def step(heads, state, *data):
        updates, state = tx.update(jax.grad(loss)(heads, *data), state, heads)
        return optax.apply_updates(heads, updates), state

    heads = _identity(task)
    state = tx.init(heads)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        rows = rng.choice(chosen, min(batch, len(chosen)), replace=False)
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
    return heads


def hierarchy(tasks: list[Task]) -> dict[str, float]:
    """Whether parents lie nearer the origin than children, and texts nearer than pictures."""
    right, radii, depths, pictures = [], [], [], []
    for task in tasks:
        specific = task.arrays["test_features" if task.classes else "test_specific"]
        pictures.append(np.linalg.norm(np.float32(specific), axis=1))
        if not task.tree:
            continue
        parent = dict(task.tree)
        found = np.linalg.norm(np.float32(task.arrays["tree_features"]), axis=1)
        radius = dict(zip(task.tree_names, found.tolist(), strict=True))
        right += [radius[p] < radius[c] for c, p in parent.items()]
        for name in task.tree_names:
            radii.append(radius[name])
            depth = 0
            while name in parent:
                name, depth = parent[name], depth + 1
            depths.append(depth)
    correlation = scipy.stats.spearmanr(radii, depths)
    return {
        "radius of texts": round(float(np.mean(radii)), 3),
        "radius of pictures": round(float(np.mean(np.concatenate(pictures))), 3),
        "tree pairs": len(right),
        "parents nearer": round(float(np.mean(right)), 4),
        "spearman": round(float(correlation.statistic), 4),
        "p": float(f"{correlation.pvalue:.3g}"),
    }


def copy_cosines(encoder: PictureEncoder, plans: list[TaskPlan]) -> dict[str, list[float]]:
    """Cosines between pictures and slightly altered copies of them, to place the threshold."""
    shown = [p.draw() for plan in plans for p in plan.pictures[:: len(plan.pictures) // 16]]

    def compressed(pixels: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
        return np.asarray(Image.open(buffer))

    def smaller(pixels: np.ndarray) -> np.ndarray:
        inside = np.asarray(Image.fromarray(pixels).resize((218, 218), Image.Resampling.BICUBIC))
        return np.pad(inside, ((3, 3), (3, 3), (0, 0)), mode="edge")

    alterations = {
        "moved by a pixel": lambda pixels: np.roll(pixels, 1, axis=(0, 1)),
        "3 % smaller": smaller,
        "compressed": compressed,
    }
    plain = encoder.features(shown)
    found = {}
    for name, alter in alterations.items():
        other = encoder.features([alter(pixels) for pixels in shown])
        norms = np.linalg.norm(plain, axis=1) * np.linalg.norm(other, axis=1)
        cosines = (plain * other).sum(axis=1) / norms
        quantiles = [round(float(q), 4) for q in np.quantile(cosines, [0.01, 0.5])]
        found[name] = [*quantiles, round(float(np.mean(cosines > NEAR_DUPLICATE)), 4)]
    return found


def nearest_cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For every row of `a` the largest cosine with a row of `b`."""
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (a, b))
    return np.concatenate(
        [(a[i : i + 1024] @ b.T).max(axis=1) for i in range(0, len(a), 1024)] or [np.zeros(0)]
    )
