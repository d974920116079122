"""MR, CA, defect and strain against brute force, and their properties."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import (
    best_rotation_residuals,
    brute_force,
    fitted_outputs,
    protected,
    protected_span,
    random_problem,
    skew_basis,
)

import hmcl_jax
from hmcl_jax.projection import SPANS, rotation_angle

# Compiled, because each of the many shapes would otherwise compile operation by operation.
closest_admissible = jax.jit(hmcl_jax.closest_admissible, static_argnames=("span", "hold_time"))
minimal_rotation = jax.jit(hmcl_jax.minimal_rotation, static_argnames="hold_time")
lorentz_defect, strain = jax.jit(hmcl_jax.lorentz_defect), jax.jit(hmcl_jax.strain)
shared_rotation = jax.jit(hmcl_jax.shared_rotation, static_argnames="span")
ambient = functools.partial(closest_admissible, span="ambient")
PROJECTIONS = {"mr": minimal_rotation, "ca": closest_admissible, "ambient": ambient}
every_projection = pytest.mark.parametrize("project", PROJECTIONS.values(), ids=PROJECTIONS)
every_span = pytest.mark.parametrize("span", SPANS)

pytestmark = pytest.mark.usefixtures("strict_dtypes")


@pytest.fixture(autouse=True)
def exact(x64):
    """Everything here runs in float64 unless the arrays say otherwise."""


@pytest.mark.parametrize("modalities", [1, 2, 3])
@pytest.mark.parametrize("dim", [3, 5])
def test_agrees_with_brute_force_of_the_constrained_problem(dim, modalities):
    # Ranks 0..d mixed, with and without w0.
    rng = np.random.default_rng(10 * dim + modalities)
    for k in range(8):
        ranks = rng.integers(0, dim + 1, size=modalities).tolist()
        problem = random_problem(rng, dim, ranks, time_column=bool(k % 2))
        protection = protected(problem)
        assert [int(r) for r in protection.rank.values()] == ranks
        for span, project in zip((None, *SPANS), PROJECTIONS.values(), strict=True):
            check_against_brute_force(project(problem.delta, protection), problem, span)


def check_against_brute_force(ours, problem, span, atol=1e-10):
    reference = brute_force(problem, span)
    for name in problem.heads:
        np.testing.assert_array_equal(ours[name][:, 0], 0)
        np.testing.assert_allclose(ours[name][:, 1:], reference[name], atol=atol)


def test_the_spans_agree_at_full_rank_and_differ_below(rng):
    for ranks in ([5, 5], [2, 5], [3, 3], [0, 1]):
        problem = random_problem(rng, 5, ranks)
        protection = protected(problem)
        steps = [closest_admissible(problem.delta, protection, span=s) for s in SPANS]
        apart = max(np.abs(steps[0][name] - steps[1][name]).max() for name in problem.heads)
        full = np.linalg.matrix_rank(protection.shared_basis) == 5
        assert apart < 1e-12 if full else apart > 1e-2
        for step in steps:
            assert float(lorentz_defect(step, protection)) < 1e-20


def test_shared_features_of_two_modalities_make_the_stacked_images_singular(rng):
    problem = random_problem(rng, 6, [3, 3])
    same = dict.fromkeys(problem.lifted, problem.lifted["m0"])
    heads = dict.fromkeys(problem.heads, problem.heads["m0"])
    problem = problem._replace(lifted=same, heads=heads)
    for span in SPANS:
        step = closest_admissible(problem.delta, protected(problem), span=span)
        check_against_brute_force(step, problem, span)


@pytest.mark.parametrize(("dim", "modalities"), [(3, 1), (8, 2)])
def test_full_rank_reproduces_the_papers_algorithm(rng, dim, modalities):
    problem = random_problem(rng, dim, [dim] * modalities, samples=4 * dim, time_column=False)
    inverse = {}  # of the paper's C
    for name, z in problem.lifted.items():
        y = z @ problem.heads[name].T
        inverse[name] = np.linalg.inv(np.linalg.pinv(y) @ z[:, 1:])
    H = sum(c.T @ c for c in inverse.values())
    F = sum(problem.delta[name][:, 1:] @ c for name, c in inverse.items())
    omega = hmcl_jax.solve_lyapunov(H, F - F.T)
    protection = protected(problem)
    rotation = shared_rotation(problem.delta, protection)
    assert rotation.outside is None
    np.testing.assert_allclose(hmcl_jax.generator(rotation, protection), omega, atol=1e-9)
    for name, step in closest_admissible(problem.delta, protection).items():
        np.testing.assert_allclose(step[:, 1:], omega @ inverse[name].T, atol=1e-9)


@pytest.mark.parametrize(
    ("dim", "ranks"),
    [(128, [50, 0, 32]), pytest.param(512, [512, 512], marks=pytest.mark.slow)],
)
def test_float32_satisfies_the_constraint(rng, dim, ranks):
    problem = random_problem(rng, dim, ranks, samples=dim + 88, dtype=np.float32)
    with jax.enable_x64(False):
        protection = protected(problem)
        assert protection.shared_basis.dtype == jnp.float32
        steps = [closest_admissible(problem.delta, protection, span=span) for span in SPANS]
    before, *after = best_rotation_residuals(problem, problem.delta, *steps)
    assert before > 0.1
    assert max(after) < 1e-5
    assert all(np.abs(x).max() > 0 for step in steps for x in step.values())


@pytest.mark.parametrize("ranks", [[2, 5], [6, 0, 3]])
def test_defect_is_the_papers_least_squares_value(rng, ranks):
    dim = 6
    problem = random_problem(rng, dim, ranks)
    columns, target = [], []
    for omega in skew_basis(dim):
        motions = [fitted_outputs(problem, name)[1] @ omega.T for name in problem.heads]
        columns.append(np.concatenate([motion.ravel() for motion in motions]))
    for name in problem.heads:
        x, _ = fitted_outputs(problem, name)
        target.append((x @ problem.delta[name][:, 1:].T).ravel())
    target, design = np.concatenate(target), np.stack(columns, axis=1)
    residual = target - design @ np.linalg.lstsq(design, target, rcond=1e-12)[0]
    expected = (residual**2).sum() + sum((x[:, 0] ** 2).sum() for x in problem.delta.values())
    ours = lorentz_defect(problem.delta, protected(problem))
    np.testing.assert_allclose(float(ours), expected, rtol=1e-9)


def test_defect_in_float32_sees_that_a_step_is_admissible(rng):
    # Features with a large common mean and a steep spectrum, and heads of different sizes.
    dim = 128
    spread = 0.3 * rng.normal(size=(2, 1000, dim)) / np.arange(1, dim + 1)
    x = np.float32(spread + 1 / np.sqrt(dim))
    heads = {m: np.float32(hmcl_jax.identity_head(dim)) * s for m, s in (("a", 1), ("b", 1e-2))}
    with jax.enable_x64(False):
        moments = hmcl_jax.update_moments(hmcl_jax.init_moments(heads), {"a": x[0], "b": x[1]})
        protection = hmcl_jax.protect(moments, heads, variance=0.99)
        delta = {m: np.float32(rng.normal(size=(dim, dim + 1))) for m in heads}
        before = float(lorentz_defect(delta, protection))
        after = float(lorentz_defect(closest_admissible(delta, protection), protection))
    assert before > 1e4
    assert after < 1e-7 * before  # of squares, with heads a hundred times apart in size


def test_strain_of_a_full_rank_motion_is_the_papers_fit(rng):
    problem = random_problem(rng, 5, [5, 5])
    parts = strain(problem.delta, protected(problem))
    for name in problem.heads:
        x, y = fitted_outputs(problem, name)
        z0 = x @ np.linalg.pinv(x) @ problem.lifted[name][:, :1]
        motion = np.concatenate([z0, x], axis=1) @ problem.delta[name].T
        B = (np.linalg.pinv(y) @ motion).T
        np.testing.assert_allclose(parts[name].symmetric, (B + B.T) / 2, atol=1e-9)
        np.testing.assert_allclose(parts[name].generator, (B - B.T) / 2, atol=1e-9)
        np.testing.assert_allclose(parts[name].residual, 0, atol=1e-9)


def test_strain_of_an_admissible_motion_is_one_generator(rng):
    problem = random_problem(rng, 5, [1, 3, 5])
    protection = protected(problem)
    step = closest_admissible(problem.delta, protection)
    parts = strain(step, protection)
    free = strain(problem.delta, protection)
    U = hmcl_jax.basis_image(protection)
    for m in parts:
        np.testing.assert_allclose(parts[m].symmetric, 0, atol=1e-10)
        np.testing.assert_allclose(parts[m].residual, 0, atol=1e-10)
        np.testing.assert_allclose(parts[m].generator, -parts[m].generator.T, atol=1e-12)
        assert np.abs(free[m].symmetric).max() > 1e-2
        for n in parts:
            gap = U[n].T @ (parts[m].generator - parts[n].generator) @ U[m]
            np.testing.assert_allclose(gap, 0, atol=1e-10)
            if m != n:
                wide = U[n].T @ (free[m].generator - free[n].generator) @ U[m]
                assert np.abs(wide).max() > 1e-2


def test_residual_strain_is_what_no_map_of_the_outputs_explains(rng):
    problem = random_problem(rng, 4, [3], time_column=False)
    W = problem.heads["m0"]
    span = np.linalg.svd(problem.lifted["m0"][:, 1:])[2][:3].T
    W[:, 1:] = W[:, 1:] @ (np.eye(4) - np.outer(span[:, 0], span[:, 0]))  # one image collapses
    parts = strain(problem.delta, protected(problem))["m0"]
    x, y = fitted_outputs(problem, "m0")
    motion = (
        x @ problem.delta["m0"][:, 1:].T
        + (x @ np.linalg.pinv(x) @ problem.lifted["m0"][:, :1]) @ problem.delta["m0"][:, :1].T
    )
    unexplained = motion - y @ np.linalg.pinv(y, rcond=1e-10) @ motion
    residual = (np.asarray(parts.residual) ** 2).sum()
    np.testing.assert_allclose(residual, (unexplained**2).sum(), rtol=1e-9)


@every_span
def test_absent_modality_turns_with_the_others_and_new_one_passes(rng, span):
    problem = random_problem(rng, 6, [4, 4, 0])
    protection = protected(problem)
    candidates = {"m0": problem.delta["m0"], "m2": problem.delta["m2"]}  # m1 is absent
    ca = closest_admissible(candidates, protection, span=span)
    assert np.abs(ca["m1"]).max() > 1e-2
    absent = problem._replace(delta={**candidates, "m1": np.zeros((6, 7))})
    check_against_brute_force(ca, absent, span)
    np.testing.assert_array_equal(ca["m2"][:, 1:], problem.delta["m2"][:, 1:])


@every_projection
def test_the_time_column_can_be_released(rng, project):
    problem = random_problem(rng, 5, [2, 3])
    step = project(problem.delta, protected(problem), hold_time=False)
    for name in step:
        np.testing.assert_array_equal(step[name][:, 0], problem.delta[name][:, 0])


def test_small_images_do_not_spoil_the_conditioning(rng):
    # One modality shrunk by 1e-5: the rotation it asks for is large, the displacement is not.
    problem = random_problem(rng, 8, [3, 3], time_column=False)
    problem.heads["m1"][:] *= 1e-5
    for span in SPANS:
        ca = closest_admissible(problem.delta, protected(problem), span=span)
        check_against_brute_force(ca, problem, span, atol=1e-7)


@every_span
def test_cayley_rotation_is_exact_and_shared(rng, span):
    problem = random_problem(rng, 9, [3, 4], time_column=False)
    protection = protected(problem)
    delta = {m: 3 * x for m, x in problem.delta.items()}
    rotation = shared_rotation(delta, protection, span=span)
    assert (rotation.outside is None) == (span == "protected")
    omega = np.asarray(hmcl_jax.generator(rotation, protection))
    R = np.linalg.solve(np.eye(9) - omega / 2, np.eye(9) + omega / 2)
    moves = jax.jit(hmcl_jax.rotate)(rotation, protection)
    for name, U in hmcl_jax.basis_image(protection).items():
        V = np.asarray(protection.basis[name])
        np.testing.assert_allclose(moves[name], (R - np.eye(9)) @ np.asarray(U) @ V.T, atol=1e-11)


@every_span
def test_rotation_satisfies_its_lyapunov_equation(rng, span):
    problem = random_problem(rng, 7, [2, 4])
    protection = protected(problem)
    rotation = shared_rotation(problem.delta, protection, span=span)
    omega = hmcl_jax.generator(rotation, protection)
    angles = jnp.linalg.eigvals(omega).imag  # in pairs of one size
    np.testing.assert_allclose(rotation_angle(rotation), jnp.sqrt((angles**2).sum() / 2), rtol=1e-9)
    U = hmcl_jax.basis_image(protection)
    H = sum(u @ u.T for u in U.values())
    F = sum(problem.delta[m][:, 1:] @ protection.basis[m] @ U[m].T for m in U)
    left, right = omega @ H + H @ omega, F - F.T
    Q = protected_span(problem)
    if span == "protected":  # what is left of the equation inside the span, and Omega stays there
        np.testing.assert_allclose(Q @ Q.T @ omega @ Q @ Q.T, omega, atol=1e-11)
        left, right = Q.T @ left @ Q, Q.T @ right @ Q
    np.testing.assert_allclose(left, right, atol=1e-11)
    np.testing.assert_allclose(omega, -omega.T, atol=1e-13)
