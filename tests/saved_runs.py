"""Runs on disk with heads of our choice, without training."""

import dataclasses

import numpy as np

from hmcl_jax.continual.run_directory import open_run


def identity(store, method, seeds):
    return {
        "checkpoint_schema": 3,
        "store": {"name": store.name, "fingerprint": store.fingerprint},
        "method": method,
        "settings": {},
        "config": {"kappa": 0.1},
        "seeds": list(seeds),
        "order": [task.name for task in store],
    }


def save_run(out, store, method, seeds, heads, stopped=()):
    """A run with one step for each of `heads`, and some other state; `stopped` from the last."""
    with open_run(out / method, identity(store, method, seeds), resume=False) as run:
        for finished, params in enumerate(heads, 1):
            state = {"heads": params, "state": {"moments": np.ones((3, 3), np.float32)}}
            known = stopped if finished == len(heads) else ()
            run.save(finished, state, {"stopped": [dataclasses.asdict(one) for one in known]})


def heads_of(store, seeds, finished, rng):
    """Heads near the identity, for the modalities of the tasks until then."""
    modalities = {m for task in store.tasks[:finished] for m in (task.general, task.specific)}
    shape = (len(seeds), store.dimension, store.dimension + 1)
    identity_heads = np.broadcast_to(np.eye(*shape[1:], k=1), shape)
    return {
        m: (identity_heads + 0.1 * rng.normal(size=shape)).astype(np.float32)
        for m in sorted(modalities)
    }
