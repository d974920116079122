"""Bad input: an error that names the argument and its value, before anything is done."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import protected, random_problem

from hmcl_jax import (
    apply_head,
    begin_task,
    closest_admissible,
    entailment,
    hmcl,
    hmcl_project,
    identity_head,
    identity_heads,
    init_moments,
    lorentz,
    merge_moments,
    minimal_rotation,
    protect,
    select_heads,
    task_anchor,
    update_moments,
)
from hmcl_jax.objective import pair_loss, prototype_loss

X = np.ones((4, 3), np.float32)
HEADS = identity_heads(["image", "text"], 3)
IMAGE, TEXT = HEADS["image"], HEADS["text"]
LARGER = identity_heads(HEADS, 5)
AUDIO = {**HEADS, "audio": TEXT}
ONE_SEED = {m: W[None] for m, W in HEADS.items()}
NAN_HEAD = TEXT.at[0, 1].set(jnp.nan)
NAN_X = np.where(np.arange(12).reshape(4, 3) == 1, np.nan, X)
ONES = np.ones(4, int)


def moments():
    features = np.float32(np.random.default_rng(0).normal(size=(9, 3)))
    return update_moments(init_moments(HEADS), {"image": features, "text": features})


def protection(**options):
    return protect(moments(), HEADS, **options)


def protection_of(heads):
    return protect(init_moments(heads), heads)


def nan(tree):
    return jax.tree.map(lambda x: x * jnp.nan, tree)


def project(params, **options):
    return hmcl_project("mr", **options).init(params)


def begin(params=HEADS, made_for=HEADS, given=None):
    return begin_task(hmcl(1e-3).init(made_for), params, given)


def rotation_without_params():
    tx = hmcl_project("rotation")
    return tx.update(HEADS, begin_task(tx.init(HEADS), HEADS, protection()))


GEOMETRY = [
    (lambda: lorentz.distance(X, X, K=0.0), r"K .*positive.*K = 0\.0"),
    (lambda: lorentz.lift(X, K="10"), "K must be a number, got K = '10'"),
    (lambda: entailment.entails(X, X, K=np.nan), r"K .*finite.*K = nan"),
    (lambda: lorentz.exp_map0(X, K=np.ones(3)), r"K must be a scalar.*\(3,\)"),
    (lambda: entailment.half_aperture(X, kappa=0.0), r"kappa .*kappa = 0\.0"),
    (lambda: lorentz.lift(1.0), r"x must have shape \(\.\.\., d\).*\(\)"),
    (lambda: lorentz.distance(X, X[:, :2]), r"x \(4, 3\), y \(4, 2\)"),
    (lambda: lorentz.pairwise_distance(X[0], X), r"x must have shape \(n, d\).*\(3,\)"),
    (lambda: lorentz.lift(np.ones(3, np.complex64)), "x must hold real.*complex64"),
    (lambda: lorentz.geodesic_to_origin(X, X), r"fractions must have shape.*\(4, 3\)"),
    (lambda: apply_head(np.eye(3), X), r"W must be a head.*\(3, 3\)"),
    (lambda: apply_head(IMAGE, np.ones((4, 6))), r"z must have 3 space.*\(4, 6\)"),
    (lambda: apply_head(np.ones((3, 4), int), X), "W .*floating dtype, got dtype int"),
    (lambda: identity_head(0), "dim = 0"),
    (lambda: identity_head(3, dtype=int), "dtype must be a floating"),
    (lambda: identity_heads("image", 3), "modalities.*'image'"),
    (lambda: select_heads({"a": 1.0}), r"'a' must be an array, got float.*heads=\{modality"),
    (lambda: select_heads({"a": IMAGE, "b": LARGER["text"]}), "one dimension"),
    (lambda: select_heads(HEADS, {"image": "img"}), r"'img' is not a leaf.*\['image', 'text'\]"),
    (lambda: select_heads({"s": jnp.ones(3)}), r"'s'.*\(3,\).*heads=\{modality: path\}"),
]
OBJECTIVE = [
    (lambda: pair_loss(X, X, tau=0.0), r"tau .*tau = 0\.0"),
    (lambda: pair_loss(X[:3], X, tau=0.1), r"\(3, 3\) and \(4, 3\)"),
    (lambda: pair_loss(X, X, tau=0.1, valid=np.ones(4)), r"valid must be.*\(4,\).*float32"),
    (lambda: pair_loss(X, X, tau=0.1, valid=np.ones(3, bool)), r"valid must be.*\(4,\).*\(3,\)"),
    (lambda: pair_loss(X, X, tau=0.1, entailment_weight=np.nan), "entailment_weight.*finite.*nan"),
    (lambda: pair_loss(X, X, tau=0.1, entailment_weight=-0.5), r"entailment_weight.*= -0\.5"),
    (lambda: prototype_loss(X, X, 4 * ONES, tau=0.1), r"labels must be in \[0, 4\).*got 4"),
    (lambda: prototype_loss(X, X, -2 * ONES, tau=0.1), r"labels must be in \[0, 4\).*got -2"),
    (lambda: prototype_loss(X, X, 1.0 * ONES, tau=0.1), r"labels must be integers.*float"),
    (lambda: prototype_loss(X, X, ONES[:3], tau=0.1), r"labels .*\(4,\).*of shape \(3,\)"),
]
MOMENTS = [
    (lambda: init_moments({}), r"at least one head, got \{\}"),
    (lambda: update_moments(moments(), X), "features must be a mapping.*got ndarray"),
    (lambda: update_moments(moments(), {"audio": X}), r"features\['audio'\].*\['image', 'text'\]"),
    (lambda: update_moments(moments(), {"image": X[:, :2]}), r"features\['image'\].*\(4, 2\)"),
    (lambda: update_moments(moments(), {"image": X[0]}), r"features\['image'\] .*shape \(3,\)"),
    (lambda: update_moments(moments(), {"image": NAN_X}), r"features\['image'\] must be finite"),
    (lambda: update_moments(moments(), {"text": lorentz.lift(X, 1.0)}), r"'text'.*K = 10.*row 0"),
    (lambda: merge_moments(moments(), init_moments(LARGER)), r"one shape.*'image', \(6, 6\)"),
]
PROTECTION = [
    (lambda: protect(HEADS, moments()), "moments must be what init_moments"),
    (lambda: protection(variance=0.0), r"variance must be in \(0, 1\].*= 0\.0"),
    (lambda: protection(variance=1.5), r"variance must be in \(0, 1\].*= 1\.5"),
    (lambda: protection(variance=np.array([0.5, 0.5])), r"variance must be one.*shape \(2,\)"),
    (lambda: protection(min_rank=-1), "min_rank = -1"),
    (lambda: protection(max_rank="3"), "max_rank must be a whole.*'3'"),
    (lambda: protection(min_rank=3, max_rank=2), "min_rank = 3.*max_rank = 2"),
    (lambda: protection(min_rank=0, max_rank=0), "max_rank must be at least 1.*= 0"),
    (lambda: protection(basis="both"), "basis must be one of.*'both'"),
    (lambda: protection(weighting="none"), "weighting must be one of.*'none'"),
    (lambda: protect(init_moments(LARGER), HEADS), r"'image' of shape \(3, 4\).*\(6, 6\)"),
    (lambda: protect(moments(), AUDIO), r"moments must hold.*'audio'.*got \['image', 'text'\]"),
    (lambda: protect(moments(), {"image": IMAGE}), r"moments must hold.*\['image'\].*'text'\]"),
    (lambda: protect(moments(), {**HEADS, "text": NAN_HEAD}), r"params\['text'\] must be finite"),
    (lambda: protect(nan(moments()), HEADS), "moments.*must be finite"),
    (lambda: closest_admissible(X, protection()), "delta must be a mapping.*got ndarray"),
    (lambda: closest_admissible(HEADS, None), "protection must be what.*got NoneType"),
    (lambda: closest_admissible(LARGER, protection()), r"delta\['image'\].*\(3, 4\).*\(5, 6\)"),
    (lambda: minimal_rotation(AUDIO, protection()), r"delta\['audio'\].*\['image', 'text'\]"),
    (lambda: closest_admissible(HEADS, protection(), span="all"), "span must be one of.*'all'"),
]
TRANSFORMATIONS = [
    (lambda: hmcl_project("cb"), "variant must be one of.*'cb'"),
    (lambda: hmcl_project("ca", span="all"), "span must be one of.*'all'"),
    (lambda: hmcl_project("mr", hold_time="no"), "hold_time must be True"),
    (lambda: task_anchor(1.0), r"beta must be in \[0, 1\), got beta = 1\.0"),
    (lambda: task_anchor(-0.1), r"beta .*beta = -0\.1"),
    (lambda: hmcl(1e-3, beta=np.nan), "beta.*nan"),
    (lambda: project({"a/b": TEXT, "a": {"b": TEXT}}), "Two leaves have the path 'a/b'"),
    (lambda: project(HEADS, heads={"u": "image", "v": "image"}), "heads .*once.*'u': 'image'"),
    (lambda: project(HEADS, heads={}), r"heads must name each head once, got heads = \{\}"),
    (lambda: project(HEADS, heads=["image"]), "heads must be a mapping.*got list"),
    (lambda: project({"image": IMAGE[None]}), r"'image'.*\(1, 3, 4\).*vmap"),
    (lambda: task_anchor(0.1).update(HEADS, task_anchor(0.1).init(HEADS)), "task_anchor needs the"),
    (rotation_without_params, r"hmcl_project\('rotation'\) needs the current parameters"),
    (lambda: hmcl_project("mr").update({"image": IMAGE}, project(HEADS)), r"'text'.*\['image'\]"),
]


def assert_refused(call, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert re.search(message, str(caught.value), re.S), str(caught.value)


ALL = [*GEOMETRY, *OBJECTIVE, *MOMENTS, *PROTECTION, *TRANSFORMATIONS]


@pytest.mark.parametrize(("call", "message"), ALL)
def test_bad_input_is_named(call, message):
    assert_refused(call, message)


BASIS = r"protection\.basis\['image'\] must be float32 of shape \(3, '...'\)"
LEAF = r"params leaf 'text' must be float32 of shape \(3, 4\)"
BEGIN = [
    (lambda: begin_task(optax.adam(1e-3).init(HEADS), HEADS, None), "opt_state must hold a state"),
    (lambda: begin(given=moments()), "protection must be what protect.*FeatureM"),
    (lambda: begin(given=nan(protection())), r"protection.*must be finite"),
    (lambda: begin(given=protection_of({"image": IMAGE})), r"Head 'text' has no.*\['image'\]"),
    (lambda: begin(given=protection_of(AUDIO)), r"protection holds 'audio'.*\['image', 'text'\]"),
    (lambda: begin(given=protection_of(LARGER)), rf"{BASIS}.*\(5, 5\)"),
    (lambda: begin(given=protect(moments(), ONE_SEED)), rf"{BASIS}.*\(1, 3, 3\)"),
    (lambda: begin({**HEADS, "text": LARGER["text"]}), rf"{LEAF}.*\(5, 6\)"),
    (lambda: begin({**HEADS, "text": TEXT.astype(jnp.bfloat16)}), rf"{LEAF}.*bfloat16"),
    (lambda: begin({"image": IMAGE}), r"must hold the leaf 'text'.*\['image'\]"),
    (lambda: begin(AUDIO), "leaf 'audio' that the optimizer state does not know"),
    (lambda: begin({**HEADS, "text": NAN_HEAD}), "params leaf 'text' must be finite"),
]


@pytest.mark.parametrize(("call", "message"), BEGIN)
def test_begin_task_names_the_leaf(call, message):
    assert_refused(call, message)


def test_dtype_of_the_protection_is_checked(x64):
    given = protection_of(identity_heads(["image"], 3, "float64"))
    with pytest.raises(ValueError, match=r"basis\['image'\].*float32.*got float64"):
        begin({"image": IMAGE}, made_for={"image": IMAGE}, given=given)


def test_checks_do_not_get_in_the_way_of_tracing(rng):
    problem = random_problem(rng, 4, [2], dtype=np.float32)
    given = protected(problem)
    params = {m: jnp.array(W) for m, W in problem.heads.items()}
    tx = hmcl(1e-2)

    @jax.jit
    def whole(params, beta, K):
        state = begin_task(tx.init(params), params, given)
        anchor = task_anchor(beta)
        updates, _ = anchor.update(params, anchor.init(params), params)
        return state, updates, lorentz.distance(problem.lifted["m0"], problem.lifted["m0"], K)

    whole(params, 0.1, 10.0)
