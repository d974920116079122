"""Draws docs/method.svg: what one step does to old points, with and without the correction.

    python docs/draw_method.py docs/method.svg

Nothing is sketched: in three dimensions, old images and texts lie in a plane, new ones do not. One
candidate step, and what minimal_rotation and closest_admissible make of it, move all points through
their heads; the picture shows the plane. Needs matplotlib (the extra `report`).
"""

import sys

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

from hmcl_jax import identity_heads, init_moments, protect, update_moments
from hmcl_jax.head import apply_head
from hmcl_jax.projection import closest_admissible, minimal_rotation

COLOURS = {"image": "#2b6cb0", "text": "#c05621"}
MARKS = {"image": "o", "text": "s"}


def points() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Old points in the plane of the first two axes, texts nearer the origin; new ones off it."""
    rng = np.random.default_rng(3)
    angles = np.linspace(0.3, 2 * np.pi + 0.3, 6, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles), np.zeros(6)], axis=1)
    old = {"image": 2.0 * circle, "text": 1.0 * circle}
    off = np.array([0.0, 0.0, 1.6])
    new = {"image": 0.9 * rng.normal(size=(2, 3)) * [1, 1, 0] + off}
    return old, new


def main() -> None:
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "hmcl_jax"  # the same file every time
    from matplotlib import pyplot as plt

    old, new = points()
    heads = identity_heads(["image", "text"], dim=3)
    moments = update_moments(init_moments(heads), {m: jnp.asarray(x) for m, x in old.items()})
    protection = protect(moments, heads, variance=0.999)
    keys = jax.random.split(jax.random.key(1), 2)
    turn = jnp.array([[0.0, 0.0, -0.45, 0.0], [0.0, 0.45, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    delta = {
        m: turn + 0.25 * jax.random.normal(k, (3, 4)) for m, k in zip(heads, keys, strict=True)
    }
    steps = {
        "AdamW's step": delta,
        "minimal rotation (MR)": minimal_rotation(delta, protection),
        "closest admissible (CA)": closest_admissible(delta, protection),
    }
    figure, panels = plt.subplots(1, 3, figsize=(9, 3.6), sharex=True, sharey=True)
    for axes, (title, step) in zip(panels, steps.items(), strict=True):
        axes.set_title(title, fontsize=10)
        axes.set_aspect("equal")
        axes.axis("off")
        axes.plot(0, 0, "+", color="grey")
        for group, filled in ((old, True), (new, False)):
            for modality, x in group.items():
                before = np.asarray(apply_head(heads[modality], jnp.asarray(x)))
                after = np.asarray(apply_head(heads[modality] + step[modality], jnp.asarray(x)))
                colour = COLOURS[modality]
                face = colour if filled else "white"
                axes.scatter(
                    *before[:, :2].T, s=28, marker=MARKS[modality], color=face, edgecolor=colour
                )
                for start, end in zip(before, after, strict=True):
                    if np.linalg.norm(end[:2] - start[:2]) > 1e-3:
                        arrow = {"arrowstyle": "->", "color": colour, "lw": 1.2}
                        arrow |= {"shrinkA": 0, "shrinkB": 0}
                        axes.annotate("", end[:2], start[:2], arrowprops=arrow)
        axes.set_xlim(-3.0, 3.0)
        axes.set_ylim(-3.0, 3.0)
    handles = [
        plt.Line2D([], [], ls="", marker=MARKS[m], color=c, label=f"old {m}")
        for m, c in COLOURS.items()
    ]
    handles.append(
        plt.Line2D(
            [], [], ls="", marker="o", mfc="white", color=COLOURS["image"], label="new image"
        )
    )
    figure.legend(handles=handles, loc="lower center", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.08, 1, 0.97))
    figure.savefig(sys.argv[1], metadata={"Date": None} if sys.argv[1].endswith("svg") else None)


if __name__ == "__main__":
    main()
