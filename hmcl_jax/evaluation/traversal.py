r"""From a picture to the origin: which text is nearest on the way.

The origin of the hyperboloid, ``[ROOT]``, stands for the most general concept. A traversal walks
from a picture to it in equal steps of the tangent space at the origin, and finds the nearest text
of a pool at each step. With the entailment filter, only the root and texts whose cone holds the
point count.

All points of one walk lie on one ray, so a text has the same angle to all of them. With :math:`r`
and :math:`s` the radii of text and point and :math:`c` the chord between their directions,

.. math::
  \sinh^2 \frac{d}{2 \sqrt K} = \sinh^2 \frac{d_r - d_s}{2 \sqrt K} + \frac{r s\, c^2}{4 K},

where :math:`d_r` and :math:`d_s` are the distances to the origin. Unlike the Lorentz inner product,
this does not cancel, and the chord is computed once per walk.
"""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.typing import NDArray

from hmcl_jax import _checks, lorentz
from hmcl_jax.data.store import Store, Task
from hmcl_jax.entailment import half_aperture
from hmcl_jax.head import apply_head, check_head

ROOT = "[ROOT]"
PARTS = ("tree", "classes", "captions")
# (text, step) pairs that are computed together, 8 MB in float32.
BLOCK_ENTRIES = 2**21


@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """Texts that a traversal may find."""

    names: tuple[str, ...]  # each occurs once
    features: NDArray[np.float32]  # (m, d), frozen
    kinds: tuple[str, ...]  # in the pools from a store "tree", "classes" or "captions"
    modality: str = "text"  # whose head maps them


@dataclasses.dataclass(frozen=True, eq=False)
class Traversal:
    """Walks from pictures to the origin; arrays have shape ``(..., n, steps)``."""

    names: tuple[str, ...]  # of the texts, and last "[ROOT]"
    nearest: NDArray[np.int32]  # index of the nearest text from each point; -1 for the root
    distances: NDArray[np.floating]  # from the point to that text
    radii: NDArray[np.floating]  # of the points
    entailing: bool  # whether texts that do not entail the point were left out

    def path(self, *index: int) -> tuple[str, ...]:
        """The texts on one walk in their order, each once; it ends with ``"[ROOT]"``.

        The index is that of the picture, after that of the seed if there are seeds.
        """
        steps = self.nearest[index]
        if steps.ndim != 1:
            raise ValueError(f"index must be one number per leading axis, got {index}.")
        return tuple(dict.fromkeys(self.names[i] for i in steps))


def _direction(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    r = lorentz.radius(x)
    return x / jnp.where(r > 0, r, 1)[..., None], r


@functools.partial(jax.jit, static_argnames=("steps", "entailing"))
def _walks(
    images: jax.Array, texts: jax.Array, K: jax.Array, kappa: jax.Array, steps: int, entailing: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Nearest text (the root is -1), its distance, and the radius of the point, for each seed.

    From (seeds, n, d) and (seeds, m, d), each is (seeds, n, steps).
    """

    def of_seed(points: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        images, texts = points
        dtype = images.dtype
        fractions = jnp.linspace(0, 1, steps, dtype=dtype)
        # The root stands in front, so that it wins against texts at the origin.
        texts = jnp.concatenate([jnp.zeros_like(texts[:1]), texts])
        unit, r = _direction(texts)
        r0, aperture = lorentz.time_coordinate(texts, K), half_aperture(texts, K, kappa)
        r, r0, aperture = (x[:, None] for x in (r, r0, aperture))

        def entails(s: jax.Array, s0: jax.Array, chord2: jax.Array) -> jax.Array:
            # As in `entailment`: angle <= aperture <= pi/2, with
            # tan(angle) = sqrt(K) across / outward and no arc tangent.
            across = s * jnp.sqrt(jnp.maximum(chord2 * (1 - chord2 / 4), 0))
            along = s - s * chord2 / 2
            ahead = along > 0  # there the two terms of the outward part cancel
            cancelled = K * (s - r - s * chord2 / 2) * (along + r) - (r * across) ** 2
            outward = jnp.where(
                ahead, cancelled / jnp.where(ahead, r0 * along + r * s0, 1), r0 * along - r * s0
            )
            inside = jnp.sqrt(K) * across * jnp.cos(aperture) <= outward * jnp.sin(aperture)
            # A text at the point itself entails it, where the angle is noise; so does the root.
            near = 16 * jnp.finfo(dtype).eps * r
            return inside | ((s - r) ** 2 + s * r * chord2 <= near**2) | (r <= 0)

        def walk(image: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            direction, start = _direction(image)
            # Radii are points of a hyperboloid with one space dimension.
            s = lorentz.geodesic_to_origin(start[None], fractions, K)[None, :, 0]
            s0 = jnp.sqrt(K + s**2)
            chord2 = jnp.sum((unit - direction[None, :]) ** 2, axis=-1)[:, None]
            scale = r0 * s + r * s0
            radial = (s - r) * (s + r) / jnp.where(scale > 0, scale, 1)
            h = radial**2 / (2 * (1 + jnp.sqrt(1 + radial**2))) + s * r * chord2 / (4 * K)
            if entailing:
                h = jnp.where(entails(s, s0, chord2), h, jnp.inf)
            best = jnp.argmin(h, axis=0).astype(jnp.int32)
            distance = 2 * jnp.sqrt(K) * lorentz.arsinh(jnp.sqrt(jnp.min(h, axis=0)))
            return best - 1, distance, s[0]

        size = max(1, BLOCK_ENTRIES // (texts.shape[0] * steps))
        return jax.lax.map(walk, images, batch_size=min(size, images.shape[0]))

    return jax.lax.map(of_seed, (images, texts))


def traverse(
    images: ArrayLike,
    texts: ArrayLike,
    names: Sequence[str],
    *,
    steps: int = 20,
    K: ArrayLike = 10.0,
    kappa: ArrayLike = 0.1,
    entailing: bool = True,
) -> Traversal:
    """Walks from each picture to the origin and finds the nearest text at each step.

    Args:
      images: points to start from, shape ``(n, d)``, or ``(seeds, n, d)``.
      texts: points of the pool, shape ``(m, d)``, or ``(seeds, m, d)``.
      names: the m texts. The root is added.
      steps: points on each walk, both ends included.
      K: squared radius of the hyperboloid.
      kappa: sets the minimum radius of the cones, see :func:`hmcl_jax.entailment.half_aperture`.
      entailing: whether texts that do not entail the point are left out.

    Returns:
      A :class:`Traversal`.

    Example:
      >>> from hmcl_jax.evaluation import traverse
      >>> texts = [[1.8, 0.2], [1.0, -0.1], [0.9, 1.5]]
      >>> walks = traverse([[3.0, 0.0]], texts, ["puppy", "dog", "car"], steps=8)
      >>> print(walks.path(0))
      ('puppy', 'dog', '[ROOT]')
      >>> print(walks.nearest[0])  # puppy does not entail the later points, root is -1
      [ 0  1  1  1  1 -1 -1 -1]
    """
    _checks.integer("steps", steps, 2)
    images, texts = _checks.as_points(images=images, texts=texts)
    _checks.same_dimension(images=images, texts=texts)
    seeds = images.shape[:-2]
    matched = images.ndim in (2, 3) and texts.ndim == images.ndim and texts.shape[:-2] == seeds
    if not matched or not images.size or not texts.size:
        raise ValueError(
            "images and texts must have shapes (n, d) and (m, d) with n, m >= 1, or both with an "
            f"axis of seeds in front, got shapes {images.shape} and {texts.shape}."
        )
    if isinstance(names, str) or len(names) != texts.shape[-2] or ROOT in names:
        raise ValueError(
            f"names must be a list of one name per text, without {ROOT!r}, which is always in the "
            f"pool, got {len(names)} names for {texts.shape[-2]} texts."
        )
    _checks.finite("images", images)
    _checks.finite("texts", texts)
    K = _checks.positive("K", K, images.dtype)
    kappa = _checks.positive("kappa", kappa, images.dtype)
    if not seeds:
        images, texts = images[None], texts[None]
    walks = _walks(images, texts, K, kappa, steps=int(steps), entailing=bool(entailing))
    nearest, distances, radii = (np.asarray(x if seeds else x[0]) for x in walks)
    return Traversal((*names, ROOT), nearest, distances, radii, bool(entailing))


def compare_heads(
    heads: Mapping[str, Mapping[str, ArrayLike]],
    features: ArrayLike,
    pool: Pool,
    *,
    modality: str = "image",
    K: ArrayLike = 10.0,
    **options: Any,
) -> dict[str, Traversal]:
    """The same walks through several heads, for example at a task's end and at the stream's.

    Args:
      heads: by label, ``{modality: W}``, each ``(d, d + 1)`` or ``(seeds, d, d + 1)``.
      features: frozen features of the pictures, shape ``(n, d)``.
      pool: the texts.
      modality: of the pictures.
      K: squared radius of the hyperboloid.
      **options: `steps`, `kappa` and `entailing` of :func:`traverse`.

    Returns:
      By label, a :class:`Traversal`.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.evaluation import Pool, compare_heads
      >>> pool = Pool(("dog", "cat"), [[1.0, 0.1], [0.1, 1.0]], ("noun", "noun"))
      >>> heads = hmcl_jax.identity_heads(["image", "text"], dim=2)
      >>> print(compare_heads({"final": heads}, [[3, 0.1]], pool)["final"].path(0))
      ('dog', '[ROOT]')
    """

    def moved(W: ArrayLike, features: ArrayLike) -> jax.Array:
        W = jnp.asarray(W)
        check_head("heads", W)
        (z,) = _checks.as_points(features=features)
        apply = jax.vmap(apply_head, (0, None, None)) if W.ndim == 3 else apply_head
        return apply(W, z, K)

    walks = {}
    for label, by_modality in heads.items():
        missing = {modality, pool.modality} - set(by_modality)
        if missing:
            raise ValueError(f"heads[{label!r}] must have heads for {sorted(missing)}.")
        images = moved(by_modality[modality], features)
        texts = moved(by_modality[pool.modality], pool.features)
        walks[label] = traverse(images, texts, pool.names, K=K, **options)
    return walks


def task_pool(task: Task, parts: Sequence[str] = ("tree", "classes")) -> Pool:
    """The texts of a task whose features its store holds.

    - ``"tree"``: the names in its class tree, from leaves to categories (``tree_features``);
    - ``"classes"``: its classes, at their prototypes;
    - ``"captions"``: the captions of its test part. A store has no words of captions; a caption at
      the point of a name in the tree has that name, others ``"caption 17 of <task>"``.

    Args:
      task: of a store.
      parts: which, in order; of texts with the same name, the first is kept.

    Example:
      >>> import hmcl_jax
      >>> from hmcl_jax.evaluation import task_pool
      >>> pool = task_pool(hmcl_jax.load_pocket()["cifar10"])
      >>> print(len(pool.names), pool.names[:3], pool.features.shape)
      12 ('airplane', 'animal', 'automobile') (12, 512)
    """
    return _pool([task], parts)


def store_pool(store: Store, parts: Sequence[str] = ("tree", "classes")) -> Pool:
    """As :func:`task_pool`, of all tasks of a store with the first task's general modality."""
    tasks = [task for task in store if task.general == store.tasks[0].general]
    return _pool(tasks, parts)


def _pool(tasks: Sequence[Task], parts: Sequence[str]) -> Pool:
    if isinstance(parts, str) or not parts or not set(parts) <= set(PARTS):
        raise ValueError(f"parts must be some of {PARTS}, got {parts!r}.")
    texts: dict[str, tuple[str, np.ndarray]] = {}
    for part in parts:
        for task in tasks:
            for name, point in _texts(task, part):
                texts.setdefault(name, (part, point))
    texts.pop(ROOT, None)  # traverse adds it
    if not texts:
        listed = ", ".join(task.name for task in tasks)
        raise ValueError(f"The store has no {' or '.join(parts)} for {listed}.")
    kinds, points = zip(*texts.values(), strict=True)
    return Pool(tuple(texts), np.stack(points).astype(np.float32), kinds, tasks[0].general)


def _texts(task: Task, part: str) -> Iterable[tuple[str, np.ndarray]]:
    tree = task.arrays.get("tree_features", ())
    named = zip(task.tree_names, tree, strict=True) if len(tree) else ()
    if part == "tree":
        return named
    if part == "classes":
        return zip(task.classes, task.arrays["prototypes"] if task.classes else (), strict=True)
    if task.kind != "retrieval":
        return ()
    known = {point.tobytes(): name for name, point in named}
    return (
        (known.get(point.tobytes(), f"caption {row} of {task.name}"), point)
        for row, point in enumerate(task.arrays["test_general"])
    )
