"""The Lorentz layer, its Flax module, and finding heads in larger trees."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import hmcl_jax
from hmcl_jax import lorentz


def test_features_and_lifted_points_give_the_same(dtype, rng):
    x = rng.normal(size=(5, 7)).astype(dtype)
    np.testing.assert_array_equal(hmcl_jax.apply_head(hmcl_jax.identity_head(7, dtype), x), x)
    W = rng.normal(size=(7, 8)).astype(dtype)
    for K in (10.0, 2.0):
        z = np.concatenate([np.sqrt(K + (x**2).sum(1, keepdims=True)), x], axis=1).astype(dtype)
        expected = z @ W.T
        tolerance = 1e-5 if dtype == jnp.float32 else 1e-13
        np.testing.assert_allclose(hmcl_jax.apply_head(W, x, K), expected, atol=tolerance)
        np.testing.assert_allclose(hmcl_jax.apply_head(W, z, K), expected, atol=tolerance)
        lifted = lorentz.lift(hmcl_jax.apply_head(W, x, K), K)
        on_it = lifted[:, 0] ** 2 - (lifted[:, 1:] ** 2).sum(axis=1)
        np.testing.assert_allclose(on_it, K, rtol=1e-3)


def test_flax_module_trains_and_its_head_is_found(rng):
    import flax.linen as nn

    class Model(nn.Module):
        @nn.compact
        def __call__(self, image, text):
            return (
                hmcl_jax.LorentzHead(name="image_head")(image),
                hmcl_jax.LorentzHead(name="text_head")(text),
                self.param("scale", nn.initializers.ones, ()),
            )

    image, text = np.float32(rng.normal(size=(2, 6, 4)))
    model = Model()
    params = model.init(jax.random.key(0), image, text)
    paths = {"image": "params/image_head/W", "text": "params/text_head/W"}
    heads = hmcl_jax.select_heads(params, paths)
    assert {m: W.shape for m, W in heads.items()} == {"image": (4, 5), "text": (4, 5)}

    tx = hmcl_jax.hmcl(1e-2, heads=paths)
    moments = hmcl_jax.update_moments(
        hmcl_jax.init_moments(params, paths), {"image": image, "text": text}
    )
    protection = hmcl_jax.protect(moments, heads)
    state = hmcl_jax.begin_task(tx.init(params), params, protection)

    def loss(params):
        y_image, y_text, scale = model.apply(params, image, text)
        return scale * hmcl_jax.objective.pair_loss(y_text, y_image, tau=0.1)

    updates, state = tx.update(jax.grad(loss)(params), state, params)
    after = optax.apply_updates(params, updates)
    assert after["params"]["scale"] != params["params"]["scale"]
    moved = {m: W - heads[m] for m, W in hmcl_jax.select_heads(after, paths).items()}
    assert all(float(jnp.abs(d).max()) > 1e-4 for d in moved.values())
    assert float(hmcl_jax.lorentz_defect(moved, protection)) < 1e-10


def test_flax_module_takes_K_and_dtype(rng):
    x = np.float32(rng.normal(size=(3, 4)))
    module = hmcl_jax.LorentzHead(K=2.0, param_dtype=jnp.bfloat16)
    variables = module.init(jax.random.key(0), x)
    assert variables["params"]["W"].dtype == jnp.bfloat16
    W = jnp.array(rng.normal(size=(4, 5)), jnp.float32)
    ours = module.apply({"params": {"W": W}}, x)
    np.testing.assert_allclose(ours, hmcl_jax.apply_head(W, x, K=2.0), rtol=1e-6)
