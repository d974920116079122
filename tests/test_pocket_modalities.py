"""The embedded stream with sounds and heat pictures: what it promises, recomputed from the file."""

import re
from pathlib import Path

import numpy as np
import pytest

import hmcl_jax
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.evaluation import measure_task

ROOT = Path(__file__).parent.parent
NEW = {"instruments": "audio", "thermal-photos": "thermal"}


@pytest.fixture(scope="module")
def store():
    return hmcl_jax.load_pocket_modalities()


def test_two_tasks_are_new_and_tasks_without_their_modalities_follow(store):
    store.validate()
    assert (ROOT / "hmcl_jax" / "data" / "pocket_modalities.zip").stat().st_size <= 3_000_000
    assert store.modalities == ("audio", "image", "text", "thermal")
    assert {task.name: task.specific for task in store if task.specific != "image"} == NEW
    places = [task.name for task in store]
    assert max(places.index(name) for name in NEW) < len(store) - 5
    for task in map(store.__getitem__, NEW):
        assert (task.kind, task.general) == ("retrieval", "text")
        assert task.size("test") >= 90
        assert task.arrays["test_specific"].dtype == np.float16


def test_scores_are_what_the_manifest_says(store):
    evaluator = Evaluator(store.K)
    described = store.describe()
    for task in map(store.__getitem__, NEW):
        heads = hmcl_jax.identity_heads([task.general, task.specific], store.dimension)
        (found,) = evaluator.all({m: W[None] for m, W in heads.items()}, [task])
        zero = float(found["score"][0])
        assert zero == pytest.approx(task.scores["zero_shot"], abs=2e-3)
        assert re.search(rf"{task.name} .*text > {task.specific} .*{zero:.1%}", described)
        assert task.scores["single_task"] > task.chance
        assert zero > 2 * task.chance
        assert measure_task(task, store.K).pairs.further >= 0.95


def test_the_other_tasks_are_those_of_pocket16(store):
    pocket = hmcl_jax.load_pocket()
    assert (store.dimension, store.K, store.tau) == (pocket.dimension, pocket.K, pocket.tau)
    others = [task for task in store if task.name not in NEW]
    assert [task.name for task in others] == [task.name for task in pocket]
    for task in others:
        whole = pocket[task.name]
        assert task.classes == whole.classes
        for name, array in whole.arrays.items():
            assert np.array_equal(task.arrays[name], array)
    assert store.fingerprint != pocket.fingerprint
    assert list(store.orders) == ["canonical"]


def test_licences_are_listed(store):
    from pocket.sources import SOURCES

    page = (ROOT / "DATA_LICENSES.md").read_text("utf8")
    assert "pocket_modalities.zip" in page
    licences = {f"{s.package} {s.version}": s.licence for s in SOURCES.values()}
    unclear = {SOURCES[name].package for name in ("cifar10", "mnist")}
    for task in map(store.__getitem__, NEW):
        for package in task.provenance["packages"].split(", "):
            assert licences[package] in task.provenance["licences"]
            assert package.split()[0] not in unclear
            assert package.split()[0] in page
    assert "not a sensor's" in store.provenance["thermal"]
