"""Bad input: an error that names the argument and its value, before anything is done."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from problems import protected, random_problem

import hmcl_jax
from hmcl_jax import entailment, lorentz, objective

X = np.ones((4, 3), np.float32)
HEADS = hmcl_jax.identity_heads(["image", "text"], 3)


def moments():
    features = np.float32(np.random.default_rng(0).normal(size=(9, 3)))
    return hmcl_jax.update_moments(
        hmcl_jax.init_moments(HEADS), {"image": features, "text": features}
    )


def protection(**options):
    return hmcl_jax.protect(moments(), HEADS, **options)


def with_nan(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 1, np.nan, x).astype(np.float32)


CASES = {
    # geometry
    "K zero": (lambda: lorentz.distance(X, X, K=0.0), r"K .*positive.*K = 0\.0"),
    "K negative": (lambda: lorentz.lift(X, K=-1.0), r"K .*positive.*K = -1\.0"),
    "K nan": (lambda: entailment.entails(X, X, K=np.nan), r"K .*finite.*K = nan"),
    "K vector": (lambda: lorentz.exp_map0(X, K=np.ones(3)), r"K must be a scalar.*\(3,\)"),
    "kappa": (lambda: entailment.half_aperture(X, kappa=0.0), r"kappa .*kappa = 0\.0"),
    "scalar point": (lambda: lorentz.lift(1.0), r"x must have shape \(\.\.\., d\).*\(\)"),
    "dimension": (lambda: lorentz.distance(X, X[:, :2]), r"x \(4, 3\), y \(4, 2\)"),
    "rows": (lambda: lorentz.inner(X, X[:3]), r"x \(4, 3\), y \(3, 3\)"),
    "pairwise": (lambda: lorentz.pairwise_distance(X[0], X), r"x must have shape \(n, d\).*\(3,\)"),
    "complex": (lambda: lorentz.lift(np.ones(3, np.complex64)), "x must hold real.*complex64"),
    "fractions": (
        lambda: lorentz.geodesic_to_origin(X, np.ones((2, 2), np.float32)),
        r"fractions must have shape \(s,\), got shape \(2, 2\)",
    ),
    # head
    "head": (lambda: hmcl_jax.apply_head(np.eye(3), X), r"W must be a head.*\(3, 3\)"),
    "features": (
        lambda: hmcl_jax.apply_head(HEADS["image"], np.ones((4, 6))),
        r"z must have 3 space components, or 4.*\(4, 6\)",
    ),
    "dim": (lambda: hmcl_jax.identity_head(0), "dim = 0"),
    "modalities": (lambda: hmcl_jax.identity_heads("image", 3), "modalities.*'image'"),
    # objective
    "tau": (lambda: objective.pair_loss(X, X, tau=0.0), r"tau .*tau = 0\.0"),
    "unpaired, fewer": (lambda: objective.pair_loss(X[:3], X, tau=0.1), r"\(3, 3\) and \(4, 3\)"),
    "unpaired": (lambda: objective.pair_loss(X, X[:3], tau=0.1), r"\(4, 3\) and \(3, 3\)"),
    "labels": (
        lambda: objective.prototype_loss(X, X, np.array([0, 1, 4, 2]), tau=0.1),
        r"labels must be in \[0, 4\), got 4",
    ),
    "label negative": (
        lambda: objective.prototype_loss(X, X, np.array([0, 1, -1, 2]), tau=0.1),
        r"labels must be in \[0, 4\), got -1",
    ),
    "label type": (
        lambda: objective.prototype_loss(X, X, np.zeros(4, np.float32), tau=0.1),
        r"labels must be integers of shape \(4,\), got float32 of shape \(4,\)",
    ),
    "too many labels": (
        lambda: objective.prototype_loss(X, X, np.zeros(5, int), tau=0.1),
        r"labels must be integers of shape \(4,\).*of shape \(5,\)",
    ),
    "too few labels": (
        lambda: objective.prototype_loss(X, X, np.zeros(3, int), tau=0.1),
        r"labels must be integers of shape \(4,\).*of shape \(3,\)",
    ),
    "label shape": (
        lambda: objective.prototype_loss(X, X, np.array([0.0, 1.0]), tau=0.1),
        r"labels must be integers of shape \(4,\).*float32 of shape \(2,\)",
    ),
    "valid": (
        lambda: objective.pair_loss(X, X, tau=0.1, valid=np.ones(4)),
        r"valid must be booleans of shape \(4,\).*float32",
    ),
    "valid, too many": (
        lambda: objective.pair_loss(X, X, tau=0.1, valid=np.ones(5, bool)),
        r"valid must be booleans of shape \(4,\).*\(5,\)",
    ),
    "valid, too few": (
        lambda: objective.pair_loss(X, X, tau=0.1, valid=np.ones(3, bool)),
        r"valid must be booleans of shape \(4,\).*\(3,\)",
    ),
    # moments
    "unknown modality": (
        lambda: hmcl_jax.update_moments(moments(), {"audio": X}),
        r"features\['audio'\].*\['image', 'text'\]",
    ),
    "feature shape": (
        lambda: hmcl_jax.update_moments(moments(), {"image": X[:, :2]}),
        r"features\['image'\] must have 3 space components.*\(4, 2\)",
    ),
    "feature rank": (
        lambda: hmcl_jax.update_moments(moments(), {"image": X[0]}),
        r"features\['image'\] must have shape \(n, 3\), got shape \(3,\)",
    ),
    "feature nan": (
        lambda: hmcl_jax.update_moments(moments(), {"image": with_nan(X)}),
        r"features\['image'\] must be finite, got .* NaN",
    ),
    "off the hyperboloid": (
        lambda: hmcl_jax.update_moments(moments(), {"text": lorentz.lift(X, K=1.0)}, K=10.0),
        r"features\['text'\].*K = 10\.0.*row 0",
    ),
    "merge": (
        lambda: hmcl_jax.merge_moments(
            moments(), hmcl_jax.init_moments(hmcl_jax.identity_heads(["image"], 4))
        ),
        r"'image' has \(5, 5\) beside \(4, 4\)",
    ),
    "no heads": (lambda: hmcl_jax.init_moments({}), r"at least one head, got \{\}"),
    # protection
    "variance 0": (lambda: protection(variance=0.0), r"variance must be in \(0, 1\].*= 0\.0"),
    "variance 1.5": (lambda: protection(variance=1.5), r"variance must be in \(0, 1\].*= 1\.5"),
    "variance nan": (lambda: protection(variance=np.nan), "variance.*nan"),
    "min_rank": (lambda: protection(min_rank=-1), "min_rank = -1"),
    "min_rank fraction": (lambda: protection(min_rank=1.5), "min_rank must be a whole.*1.5"),
    "max_rank text": (lambda: protection(max_rank="3"), "max_rank must be a whole.*'3'"),
    "swapped": (lambda: hmcl_jax.protect(HEADS, moments()), "moments must be what init_moments"),
    "two paths": (
        lambda: hmcl_jax.hmcl_project("mr").init({"a/b": HEADS["text"], "a": {"b": HEADS["text"]}}),
        "Two leaves have the path 'a/b'",
    ),
    "same head twice": (
        lambda: hmcl_jax.hmcl_project("mr", heads={"u": "image", "v": "image"}).init(HEADS),
        "heads must name each head once.*'u': 'image'",
    ),
    "heads empty": (
        lambda: hmcl_jax.hmcl_project("mr", heads={}).init(HEADS),
        r"heads must name each head once, got heads = \{\}",
    ),
    "heads list": (
        lambda: hmcl_jax.hmcl_project("mr", heads=["image"]).init(HEADS),
        r"heads must be a mapping \{modality: path\}, got list",
    ),
    "hold_time": (lambda: hmcl_jax.hmcl_project("mr", hold_time="no"), "hold_time must be True"),
    "entailment weight": (
        lambda: objective.pair_loss(X, X, tau=0.1, entailment_weight=np.nan),
        "entailment_weight must be finite.*nan",
    ),
    "entailment weight negative": (
        lambda: objective.pair_loss(X, X, tau=0.1, entailment_weight=-0.5),
        r"entailment_weight must be finite and at least 0.*= -0\.5",
    ),
    "entailment weight infinite": (
        lambda: objective.pair_loss(X, X, tau=0.1, entailment_weight=np.inf),
        "entailment_weight must be finite.*inf",
    ),
    "features array": (
        lambda: hmcl_jax.update_moments(moments(), X),
        r"features must be a mapping \{modality: array\}, got ndarray",
    ),
    "delta array": (
        lambda: hmcl_jax.closest_admissible(X, protection()),
        r"delta must be a mapping \{modality: array\}, got ndarray",
    ),
    "no protection": (
        lambda: hmcl_jax.closest_admissible(HEADS, None),
        "protection must be what protect gives, got NoneType",
    ),
    "K with lifted": (
        lambda: hmcl_jax.apply_head(HEADS["text"], lorentz.lift(X), K=-1.0),
        r"K .*K = -1\.0",
    ),
    "head dtype": (lambda: hmcl_jax.identity_head(3, dtype=int), "dtype must be a floating"),
    "dim text": (lambda: hmcl_jax.identity_head("3"), "dim must be a whole number, got dim = '3'"),
    "max_rank": (lambda: protection(min_rank=3, max_rank=2), "min_rank = 3.*max_rank = 2"),
    "basis": (lambda: protection(basis="both"), "basis must be one of.*'both'"),
    "weighting": (lambda: protection(weighting="none"), "weighting must be one of.*'none'"),
    "width": (lambda: protection(width=-1), "width = -1"),
    "no rank": (lambda: protection(min_rank=0, max_rank=0), "max_rank must be at least 1.*= 0"),
    "no width": (lambda: protection(width=0), "width must be at least 1, got width = 0"),
    "shares without seeds": (
        lambda: protection(variance=np.array([0.5, 0.5])),
        r"variance must be one number, or one per seed.*got shape \(2,\)",
    ),
    "larger moments": (
        lambda: hmcl_jax.protect(hmcl_jax.init_moments(larger(HEADS)), HEADS),
        r"Head 'image' of shape \(3, 4\) does not fit its moments of shape \(6, 6\)",
    ),
    "smaller moments": (
        lambda: hmcl_jax.protect(moments(), larger(HEADS)),
        r"Head 'image' of shape \(5, 6\) does not fit its moments of shape \(4, 4\)",
    ),
    "head without moments": (
        lambda: hmcl_jax.protect(moments(), {**HEADS, "audio": HEADS["text"]}),
        r"Head 'audio' has no entry in moments.*\['image', 'text'\]",
    ),
    "moments without head": (
        lambda: hmcl_jax.protect(moments(), {"image": HEADS["image"]}),
        r"moments hold 'text'.*\['image'\]",
    ),
    "params nan": (
        lambda: hmcl_jax.protect(moments(), {**HEADS, "text": with_nan(np.ones((3, 4)))}),
        r"params\['text'\] must be finite",
    ),
    "moments nan": (
        lambda: hmcl_jax.protect(jax.tree.map(lambda x: x * jnp.nan, moments()), HEADS),
        r"moments.*must be finite",
    ),
    # projection
    "delta": (
        lambda: hmcl_jax.minimal_rotation({"audio": np.ones((3, 4))}, protection()),
        r"delta\['audio'\].*\['image', 'text'\]",
    ),
    "delta seeds": (
        lambda: hmcl_jax.minimal_rotation({"image": np.ones((2, 3, 4))}, protection()),
        r"delta\['image'\] must have shape \(3, 4\), got \(2, 3, 4\)",
    ),
    "delta smaller": (
        lambda: hmcl_jax.minimal_rotation({"text": np.ones((2, 3))}, protection()),
        r"delta\['text'\] must have shape \(3, 4\), got \(2, 3\)",
    ),
    "integer head": (
        lambda: hmcl_jax.apply_head(np.ones((3, 4), int), X),
        "W must be a head of floating dtype, got dtype int",
    ),
    "delta shape": (
        lambda: hmcl_jax.closest_admissible({"image": np.ones((5, 6))}, protection()),
        r"delta\['image'\] must have shape \(3, 4\), got \(5, 6\)",
    ),
    # transformations
    "variant": (lambda: hmcl_jax.hmcl_project("cb"), "variant must be one of.*'cb'"),
    "span": (lambda: hmcl_jax.hmcl_project("ca", span="all"), "span must be one of.*'all'"),
    "span of CA": (
        lambda: hmcl_jax.closest_admissible(HEADS, protection(), span="all"),
        "span must be one of.*'all'",
    ),
    "span of the rotation": (
        lambda: hmcl_jax.shared_rotation(HEADS, protection(), span="all"),
        "span must be one of.*'all'",
    ),
    "preset variant": (lambda: hmcl_jax.hmcl(1e-3, variant=None), "variant.*None"),
    "beta 1": (lambda: hmcl_jax.task_anchor(1.0), r"beta must be in \[0, 1\), got beta = 1\.0"),
    "beta negative": (lambda: hmcl_jax.task_anchor(-0.1), r"beta .*beta = -0\.1"),
    "beta nan": (lambda: hmcl_jax.hmcl(1e-3, beta=np.nan), "beta.*nan"),
    "beta text": (lambda: hmcl_jax.task_anchor("0.1"), "beta.*'0.1'"),
    "init": (
        lambda: hmcl_jax.hmcl_project("mr").init({"scale": jnp.ones(3)}),
        r"'scale'.*\(3,\).*heads=\{modality: path\}",
    ),
    "seed axis": (
        lambda: hmcl_jax.hmcl_project("mr").init({"image": jnp.ones((2, 3, 4))}),
        r"'image'.*\(2, 3, 4\).*vmap",
    ),
    "heads path": (
        lambda: hmcl_jax.hmcl_project("mr", heads={"image": "img"}).init(HEADS),
        r"heads\['image'\] = 'img' is not a leaf.*\['image', 'text'\]",
    ),
    "params missing": (
        lambda: hmcl_jax.task_anchor(0.1).update(HEADS, hmcl_jax.task_anchor(0.1).init(HEADS)),
        "task_anchor needs the current parameters",
    ),
    "params missing in rotation": (
        lambda: hmcl_jax.hmcl_project("rotation").update(
            HEADS,
            hmcl_jax.begin_task(hmcl_jax.hmcl_project("rotation").init(HEADS), HEADS, protection()),
        ),
        r"hmcl_project\('rotation'\) needs the current parameters",
    ),
    "K text": (lambda: lorentz.lift(X, K="10"), "K must be a number, got K = '10'"),
    "updates missing": (
        lambda: hmcl_jax.hmcl_project("mr").update(
            {"image": HEADS["image"]}, hmcl_jax.hmcl_project("mr").init(HEADS)
        ),
        r"head 'text'.*\['image'\]",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_named(case):
    assert_refused(*CASES[case])


def assert_refused(call, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    assert re.search(message, str(caught.value), re.S), str(caught.value)


def begin(params=HEADS, made_for=HEADS, given=None):
    tx = hmcl_jax.hmcl(1e-3)
    return hmcl_jax.begin_task(tx.init(made_for), params, given)


def larger(heads):
    return {m: hmcl_jax.identity_head(5) for m in heads}


def protection_of(heads):
    return hmcl_jax.protect(hmcl_jax.init_moments(heads), heads)


BEGIN_CASES = {
    "not ours": (
        lambda: hmcl_jax.begin_task(optax.adam(1e-3).init(HEADS), HEADS, None),
        "opt_state must hold a state of hmcl_project or task_anchor",
    ),
    "not a protection": (
        lambda: begin(given=moments()),
        "protection must come from protect.*FeatureM",
    ),
    "protection nan": (
        lambda: begin(given=jax.tree.map(lambda x: x * jnp.nan, protection())),
        r"protection.*must be finite",
    ),
    "head without entry": (
        lambda: begin(given=protection_of({"image": HEADS["image"]})),
        r"Head 'text' has no entry in protection, which holds \['image'\]",
    ),
    "entry without head": (
        lambda: begin(given=protection_of({**HEADS, "audio": HEADS["text"]})),
        r"protection holds 'audio'.*\['image', 'text'\]",
    ),
    "dimension": (
        lambda: begin(given=protection_of(larger(HEADS))),
        r"protection\.basis\['image'\] must have shape \(3, '...'\).*\(5, 5\)",
    ),
    "smaller dimension": (
        lambda: begin(given=protection_of(hmcl_jax.identity_heads(HEADS, 2))),
        r"protection\.basis\['image'\] must have shape \(3, '...'\).*\(2, 2\)",
    ),
    "as many seeds as rows": (
        lambda: begin(
            given=hmcl_jax.protect(moments(), {m: jnp.stack([W] * 3) for m, W in HEADS.items()})
        ),
        r"protection\.basis\['image'\] must have shape.*\(3, 3, 3\)",
    ),
    "seed axis": (
        lambda: begin(given=hmcl_jax.protect(moments(), {m: W[None] for m, W in HEADS.items()})),
        r"protection\.basis\['image'\] must have shape.*\(1, 3, 3\)",
    ),
    "params shape": (
        lambda: begin(params={**HEADS, "text": jnp.ones((5, 6))}),
        r"params leaf 'text' must be float32 of shape \(3, 4\).*\(5, 6\)",
    ),
    "params smaller": (
        lambda: begin(params={**HEADS, "text": jnp.ones((2, 3))}),
        r"params leaf 'text' must be float32 of shape \(3, 4\).*\(2, 3\)",
    ),
    "params wider": (
        lambda: begin(made_for={m: W.astype(jnp.bfloat16) for m, W in HEADS.items()}),
        r"params leaf 'image' must be bfloat16.*float32",
    ),
    "params dtype": (
        lambda: begin(params={**HEADS, "text": HEADS["text"].astype(jnp.bfloat16)}),
        r"params leaf 'text' must be float32.*bfloat16",
    ),
    "params leaf missing": (
        lambda: begin(params={"image": HEADS["image"]}),
        r"must hold the leaf 'text'.*\['image'\]",
    ),
    "params leaf unknown": (
        lambda: begin(params={**HEADS, "audio": HEADS["text"]}),
        "leaf 'audio' that the optimizer state does not know",
    ),
    "params nan": (
        lambda: begin(params={**HEADS, "text": jnp.asarray(with_nan(np.ones((3, 4))))}),
        r"params leaf 'text' must be finite",
    ),
}


@pytest.mark.parametrize("case", BEGIN_CASES)
def test_begin_task_names_the_leaf(case):
    assert_refused(*BEGIN_CASES[case])


@pytest.mark.parametrize(("ours", "theirs"), [("float32", "float64"), ("float64", "float32")])
def test_dtype_of_the_protection_is_checked(x64, ours, theirs):
    heads = hmcl_jax.identity_heads(["image"], 3, ours)
    given = protection_of(hmcl_jax.identity_heads(["image"], 3, theirs))
    with pytest.raises(ValueError, match=rf"protection\.basis\['image'\].*{ours}.*got {theirs}"):
        begin(params=heads, made_for=heads, given=given)


def test_checks_do_not_get_in_the_way_of_tracing(rng):
    problem = random_problem(rng, 4, [2], dtype=np.float32)
    given = protected(problem)
    params = {m: jnp.array(W) for m, W in problem.heads.items()}
    tx = hmcl_jax.hmcl(1e-2)

    @jax.jit
    def whole(params, beta, K):
        state = hmcl_jax.begin_task(tx.init(params), params, given)
        updates, _ = hmcl_jax.task_anchor(beta).update(
            params, hmcl_jax.task_anchor(beta).init(params), params
        )
        return state, updates, lorentz.distance(problem.lifted["m0"], problem.lifted["m0"], K)

    whole(params, 0.1, 10.0)
