"""Every compiled program of a task lowers for the platforms that no test runs on."""

import dataclasses

import jax
import pytest
from recording import RecordingPrograms

from hmcl_jax.continual import (
    METHODS,
    Carried,
    Schedule,
    Setting,
    TrainConfig,
    learn_task,
    make_method,
)
from hmcl_jax.continual.methods import hmcl
from hmcl_jax.data.synthetic import synthetic_stream

STORE = synthetic_stream(tasks=2, classes=4, dimension=8, train=40, test=8, retrieval_every=2)
CONFIG = TrainConfig(batch=32, classification=Schedule(1, 0.02), retrieval=Schedule(1, 0.02))
FEEDS = {"resident": {}, "streamed": {"device_memory": 1e-3}, "minibatch": {"step": "minibatch"}}
ALWAYS = [("hmcl_rotation", "resident"), ("vanilla", "streamed"), ("gem", "resident")]
CASES = [
    pytest.param(m, f, marks=[] if (m, f) in ALWAYS else pytest.mark.slow)
    for m in METHODS
    for f in FEEDS
]


@pytest.mark.parametrize(("name", "feed"), CASES)
def test_programs_export_for_other_platforms(name, feed, monkeypatch):
    # A batch of decompositions may come to a halt on a CPU; only "auto" there is one by one.
    seed_axis = "map" if name in ("gem", "hmcl_rotation") else "vmap"
    config = dataclasses.replace(CONFIG, seed_axis=seed_axis, **FEEDS[feed])
    programs, carried = RecordingPrograms(config), Carried()
    begin = hmcl._begin_task

    def begin_task(*arguments):
        programs.calls.append(("begin_task", begin, arguments))
        return begin(*arguments)

    monkeypatch.setattr(hmcl, "_begin_task", begin_task)
    setting = Setting(STORE.K, STORE.tau, (0, 1), config)
    # With a small memory, whose programs compile fast.
    method = make_method(name, {"memory": 24} if hasattr(METHODS[name].method, "memory") else {})
    for index, task in enumerate(STORE):
        carried, _ = learn_task(method, carried, [(task, index)], setting, programs)
    known = {}
    for called, program, arguments in programs.calls:
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
        known[called, id(program), str(shapes)] = program, shapes
    assert len(known) >= (2 if feed == "minibatch" else 4)
    for program, shapes in known.values():
        # GEM solves in float64; the TPU's decomposition of that asks JAX for it.
        with jax.enable_x64(name == "gem"):
            exported = jax.export.export(program, platforms=["cuda", "tpu"])(*shapes)
        assert exported.platforms == ("cuda", "tpu")
