"""The rank rule, the bases, weighting, padding and seeds."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import moments_of, protected, random_problem

import hmcl_jax
from hmcl_jax.protection import bucket, empty_protection, restrict

pytestmark = pytest.mark.usefixtures("strict_dtypes")


def features_with_spectrum(rng, energies, dim, samples=200):
    """Features whose second moment has exactly these eigenvalues (times the sample count)."""
    left = np.linalg.qr(rng.normal(size=(samples, len(energies))))[0] * np.sqrt(samples)
    right = np.linalg.qr(rng.normal(size=(dim, dim)))[0][:, : len(energies)]
    return left * np.sqrt(energies) @ right.T, right


def protect_one(x, **options):
    heads = hmcl_jax.identity_heads(["image"], x.shape[1], x.dtype)
    moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), {"image": x})
    return hmcl_jax.protect(moments, heads, **options)


@pytest.mark.parametrize(
    ("options", "rank"),
    [
        ({"variance": 0.5}, 1),  # reached exactly, up to rounding
        ({"variance": 0.81}, 3),
        ({"variance": 0.96}, 4),
        ({"variance": 1.0}, 5),
        ({"variance": 0.1, "min_rank": 3}, 3),
        ({"variance": 0.1, "min_rank": 8}, 5),  # no more directions than there are
        ({"variance": 0.96, "max_rank": 2}, 2),
        ({"variance": 0.1, "min_rank": 0}, 1),
    ],
)
def test_rank_rule(dtype, rng, options, rank):
    x, right = features_with_spectrum(rng, [50, 30, 15, 4, 1], dim=12)
    protection = protect_one(x.astype(dtype), **options)
    assert int(protection.rank["image"]) == rank
    V = np.asarray(protection.basis["image"])
    np.testing.assert_array_equal(V[:, rank:], 0)
    kept = V[:, :rank]
    orthonormal, span = (5e-7, 1e-4) if dtype == jnp.float32 else (1e-14, 1e-10)
    np.testing.assert_allclose(kept.T @ kept, np.eye(rank), atol=orthonormal)
    np.testing.assert_allclose(kept @ kept.T, right[:, :rank] @ right[:, :rank].T, atol=span)


def test_the_rank_does_not_depend_on_the_scale_of_the_features(dtype):
    # Half of the energy is in the first direction, up to rounding.
    x = np.diag(np.sqrt([3.0, 2.0, 1.0]))
    for scale in (1, 0.1, 0.3, 0.7, 1.1, 100):
        protection = protect_one((scale * x).astype(dtype), variance=0.5)
        assert int(protection.rank["image"]) == 1


@pytest.mark.parametrize(
    ("rank", "dim", "width"),
    [(0, 512, 16), (16, 512, 16), (17, 512, 32), (300, 512, 512), (5, 8, 8), (65, 100, 100)],
)
def test_widths_are_bucketed(rank, dim, width):
    assert bucket(rank, dim) == width


def test_image_of_the_basis_is_the_least_squares_fit(x64, rng):
    problem = random_problem(rng, 6, [3, 4])
    protection = protected(problem)
    images = hmcl_jax.basis_image(protection)
    for name, z in problem.lifted.items():
        V = np.asarray(protection.basis[name])[:, : int(protection.rank[name])]
        fit = np.linalg.lstsq(z[:, 1:] @ V, z @ problem.heads[name].T, rcond=None)[0]
        np.testing.assert_allclose(np.asarray(images[name])[:, : V.shape[1]], fit.T, atol=1e-11)


def test_joint_basis_is_one_basis_of_the_summed_moments(x64, rng):
    problem = random_problem(rng, 8, [2, 3, 0], time_column=False)
    protection = protected(problem, basis="joint")
    ranks = {m: int(r) for m, r in protection.rank.items()}
    assert ranks == {"m0": 5, "m1": 5, "m2": 0}
    np.testing.assert_array_equal(protection.basis["m0"], protection.basis["m1"])
    V = np.asarray(protection.basis["m0"])
    for name in ("m0", "m1"):
        x = problem.lifted[name][:, 1:]
        np.testing.assert_allclose(x @ V @ V.T, x, atol=1e-11)
        U = np.asarray(hmcl_jax.basis_image(protection)[name])
        np.testing.assert_allclose(U, problem.heads[name][:, 1:] @ V, atol=1e-11)
    step = hmcl_jax.closest_admissible(problem.delta, protection)
    assert float(hmcl_jax.lorentz_defect(step, protection)) < 1e-20
    # Directions in which only the other modality has energy add nothing to the defect.
    found, own = (
        hmcl_jax.lorentz_defect(problem.delta, p) for p in (protection, protected(problem))
    )
    np.testing.assert_allclose(found, own, rtol=1e-9)


def test_weighting_by_tasks_lets_a_small_task_count(x64, rng):
    large, small = np.zeros((1000, 4)), np.zeros((10, 4))
    large[:, 0], small[:, 1] = rng.normal(size=1000) + 3, rng.normal(size=10) + 3
    heads = hmcl_jax.identity_heads(["image"], 4, jnp.float64)
    moments = hmcl_jax.init_moments(heads)
    for x in (large, small):
        moments = hmcl_jax.end_task(hmcl_jax.update_moments(moments, {"image": x}))
    by_samples = hmcl_jax.protect(moments, heads, variance=0.9)
    by_tasks = hmcl_jax.protect(moments, heads, variance=0.9, weighting="tasks")
    assert int(by_samples.rank["image"]) == 1
    assert int(by_tasks.rank["image"]) == 2
    # A task that has not been ended counts as one more.
    again = hmcl_jax.update_moments(
        hmcl_jax.end_task(hmcl_jax.update_moments(hmcl_jax.init_moments(heads), {"image": large})),
        {"image": small},
    )
    open_task = hmcl_jax.protect(again, heads, variance=0.9, weighting="tasks")
    sizes = (jax.tree.map(np.abs, protection) for protection in (open_task, by_tasks))
    chex.assert_trees_all_close(*sizes, atol=1e-10)


def test_every_seed_may_have_its_own_share(x64, rng):
    problem = random_problem(rng, 9, [5, 4])
    seeds = {m: np.stack([W, 2 * W, W[::-1]]) for m, W in problem.heads.items()}
    moments = moments_of(problem)
    for variance, shares in ((0.9, [0.9] * 3), (jnp.array([0.3, 0.8, 1.0]), [0.3, 0.8, 1.0])):
        together = hmcl_jax.protect(moments, seeds, variance=variance)
        for k, share in enumerate(shares):
            mine = jax.tree.map(lambda x, k=k: x[k], together)
            one = {m: W[k] for m, W in seeds.items()}
            alone = hmcl_jax.protect(moments, one, variance=share)
            chex.assert_trees_all_equal(mine.rank, alone.rank)
            images = hmcl_jax.basis_image(mine), hmcl_jax.basis_image(alone)
            for name in problem.heads:
                np.testing.assert_allclose(images[0][name], images[1][name], atol=1e-10)
    assert len(set(together.rank["m0"].tolist())) > 1
    with pytest.raises(ValueError, match=r"variance must be one number, or one per seed .*\(2,\)"):
        hmcl_jax.protect(moments, seeds, variance=jnp.array([0.1, 0.2]))
    with pytest.raises(ValueError, match=r"variance must be in \(0, 1\]"):
        hmcl_jax.protect(moments, seeds, variance=jnp.array([0.1, 0.2, 1.3]))


def test_moments_may_have_the_seed_axis_too(x64, rng):
    problems = [random_problem(np.random.default_rng(seed), 6, [2, 3]) for seed in range(3)]
    moments = [moments_of(p) for p in problems]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *moments)
    heads = {m: np.stack([p.heads[m] for p in problems]) for m in problems[0].heads}
    together = hmcl_jax.protect(stacked, heads, variance=1.0)
    for k, problem in enumerate(problems):
        mine = jax.tree.map(lambda x, k=k: x[k], together)
        expected = hmcl_jax.closest_admissible(problem.delta, protected(problem))
        for name, step in hmcl_jax.closest_admissible(problem.delta, mine).items():
            np.testing.assert_allclose(step, expected[name], atol=1e-10)


@pytest.mark.parametrize("wrap", [jax.jit, lambda f: lambda *a: jax.vmap(f, (None, 0))(*a)])
def test_protect_works_inside_transformations(rng, wrap):
    problem = random_problem(rng, 7, [3, 2], dtype=np.float32)
    moments, heads = moments_of(problem), problem.heads
    if wrap is not jax.jit:
        heads = {m: W[None] for m, W in heads.items()}
    inside = wrap(lambda m, h: hmcl_jax.protect(m, h, variance=0.9))(moments, heads)
    outside = hmcl_jax.protect(moments, heads, variance=0.9)
    for name in heads:
        V, expected = inside.basis[name], outside.basis[name]
        np.testing.assert_allclose(V @ V.mT, expected @ expected.mT, atol=1e-5)


def test_the_width_inside_jit_fits_the_limit_of_the_rank(rng):
    problem = random_problem(rng, 40, [3], dtype=np.float32)
    for limit, width in ((3, 16), (33, 40), (None, 40)):
        compiled = jax.jit(lambda m, h, limit=limit: hmcl_jax.protect(m, h, max_rank=limit))
        made = jax.eval_shape(compiled, moments_of(problem), problem.heads)
        assert made.basis["m0"].shape == (40, width)


def test_an_empty_protection_has_the_shapes_of_a_narrow_one(rng):
    problem = random_problem(rng, 100, [3, 2, 0], dtype=np.float32)
    empty = empty_protection(problem.heads)
    chex.assert_trees_all_equal_shapes_and_dtypes(empty, protected(problem))
    assert not any(np.any(x) for x in jax.tree.leaves(empty))


def test_a_part_turns_only_if_the_rest_is_unprotected_seed_by_seed(rng):
    problem = random_problem(rng, 5, [2, 3, 0], dtype=np.float32)
    whole = protected(problem)
    part = {**problem.lifted, "m1": problem.lifted["m1"][:0]}
    free = protected(problem._replace(lifted=part))
    assert restrict(whole, list(problem.heads)) is whole
    both = jax.tree.map(lambda *x: jnp.stack(x), whole, free)
    for seed, full in ((0, whole), (1, free)):
        for ours in (
            restrict(full, ["m0"]),
            jax.tree.map(lambda x, seed=seed: x[seed], restrict(both, ["m0"])),
        ):
            assert all(list(by_modality) == ["m0"] for by_modality in ours[:5])
            for field in ("basis", "energy", "time", "rank"):
                part = getattr(ours, field)["m0"]
                np.testing.assert_array_equal(part, getattr(full, field)["m0"])
            np.testing.assert_array_equal(ours.coordinates["m0"], full.coordinates["m0"] * seed)
            np.testing.assert_array_equal(ours.shared_basis, full.shared_basis * seed)
            np.testing.assert_array_equal(ours.shared_scales, full.shared_scales * seed)
