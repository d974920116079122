"""The embedded stream: what it promises, recomputed from the shipped file."""

import itertools
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

import hmcl_jax
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.evaluation.frozen import class_tree_correlation, measure_task

ROOT = Path(__file__).parent.parent


NEW = {"instruments": "audio", "thermal-photos": "thermal"}  # what pocket_modalities adds


@pytest.fixture(scope="module")
def store():
    return hmcl_jax.load_pocket()


@pytest.fixture(scope="module")
def modalities():
    return hmcl_jax.load_pocket_modalities()


def radius(points):
    return np.linalg.norm(np.float32(points), axis=1)


def samples(task):
    return task.arrays["test_features" if task.classes else "test_specific"]


def test_arrays_and_fingerprint_are_those_that_were_published(store, modalities):
    """Every array is covered: its checksum is in the manifest, and is compared on opening."""
    assert store.fingerprint == "df7e1d784588ea2a7d635b2e7f63c0028ac3fa32365abce68b12a1cf38e746a7"
    other = "8c204e2a0e84181ddb341104b7cb617604efd767e02f18935e14a16fda23ff3f"
    assert modalities.fingerprint == other


def test_pairs_have_one_form(store):
    for name in ("cifar10", "tux-photos"):
        task = store[name]
        general, specific, rows = task.pairs("test")
        assert rows.shape == (task.size("test"), 2)
        assert rows.dtype == np.int32
        assert rows.min(axis=0).tolist() == [0, 0]
        assert rows.max(axis=0).tolist() == [len(specific) - 1, len(general) - 1]
        if task.classes:
            np.testing.assert_array_equal(rows[:, 1], task.arrays["test_labels"])


def test_modalities_are_pocket16_and_two_more_tasks(store, modalities):
    modalities.validate()
    assert (ROOT / "hmcl_jax" / "data" / "pocket_modalities.zip").stat().st_size <= 3_000_000
    assert modalities.modalities == ("audio", "image", "text", "thermal")
    assert {task.name: task.specific for task in modalities if task.specific != "image"} == NEW
    places = [task.name for task in modalities]
    assert max(places.index(name) for name in NEW) < len(modalities) - 5
    for task in map(modalities.__getitem__, NEW):
        assert (task.kind, task.general) == ("retrieval", "text")
        assert task.size("test") >= 90
        assert samples(task).dtype == np.float16
        assert measure_task(task, modalities.K).pairs.further >= 0.95
    whole = (store.dimension, store.K, store.tau)
    assert (modalities.dimension, modalities.K, modalities.tau) == whole
    others = [task for task in modalities if task.name not in NEW]
    for task, other in zip(others, store, strict=True):
        assert (task.name, task.classes) == (other.name, other.classes)
        for name, array in other.arrays.items():
            assert np.array_equal(task.arrays[name], array)


def test_form(store):
    store.validate()
    assert (ROOT / "hmcl_jax" / "data" / "pocket16.zip").stat().st_size <= 30_000_000
    assert len(store) == 16
    assert store.dimension == 512
    kinds = [task.kind for task in store]
    assert 5 <= kinds.count("retrieval") <= 11
    assert sum(a != b for a, b in itertools.pairwise(kinds)) >= 6  # interleaved
    names = {task.name for task in store}
    orders = {key: tuple(order) for key, order in store.orders.items()}
    assert set(orders) == {"canonical", "seq2", "seq3"}
    assert len(set(orders.values())) == 3
    assert all(set(order) == names for order in orders.values())
    assert all(array.dtype == np.float16 for task in store for array in [samples(task)])
    assert sum(bool(task.tree) for task in store if task.classes) >= 4
    for task in store:
        assert task.provenance["licences"]
        if task.tree and task.classes:
            assert set(task.classes) & {child for child, _ in task.tree}


def test_zero_shot_scores_are_what_the_manifest_says(store, modalities):
    evaluator, described = Evaluator(store.K), modalities.describe()
    zero = {}
    for task in (*store, *map(modalities.__getitem__, NEW)):
        heads = hmcl_jax.identity_heads([task.general, task.specific], store.dimension)
        heads = {modality: W[None] for modality, W in heads.items()}
        score = zero[task.name] = float(evaluator.all(heads, [task])[0]["score"][0])
        assert score == pytest.approx(task.scores["zero_shot"], abs=2e-3)
        assert 0 < task.scores["single_task"] <= 1
        if task.name in NEW:
            assert score > 2 * task.chance
            assert re.search(rf"{task.name} .*text > {task.specific} .*{score:.1%}", described)
    mean = np.mean([zero[task.name] for task in store])
    assert mean >= 0.243
    assert mean >= 2 * np.mean([task.chance for task in store])
    assert store["cifar10"].scores["zero_shot"] >= 0.55


def test_hierarchy(store):
    right, radii, depths = [], [], []
    for task in store:
        if not task.tree:
            continue
        parents = dict(task.tree)
        lengths = radius(task.arrays["tree_features"]).tolist()
        found = dict(zip(task.tree_names, lengths, strict=True))
        right += [found[parent] < found[child] for child, parent in parents.items()]
        for name in task.tree_names:
            radii.append(found[name])
            chain = [name]
            while chain[-1] in parents:
                chain.append(parents[chain[-1]])
            depths.append(len(chain))
    assert np.mean(right) >= 0.75
    correlation = scipy.stats.spearmanr(radii, depths)
    assert correlation.statistic > 0
    assert correlation.pvalue < 0.01
    assert class_tree_correlation(store)[0] >= 0.40


def test_radii_are_free_and_cones_hold_their_pictures(store):
    found = [measure_task(task, store.K).pairs for task in store.tasks[1::5]]
    pictures = radius(np.concatenate([samples(task) for task in store]))
    assert pictures.std() / pictures.mean() >= 0.03
    assert np.mean([pairs.further for pairs in found]) >= 0.95
    entailed = np.mean([pairs.entailed for pairs in found])
    assert entailed >= 0.7
    assert entailed - np.mean([pairs.entailed_others for pairs in found]) >= 0.1


def test_train_and_test_have_no_point_in_common(modalities):
    def rows(array):
        return {row.tobytes() for row in np.asarray(array)}

    for task in modalities:
        sides = ["features"] if task.classes else ["specific", "general"]
        for side in sides:
            train, test = (rows(task.arrays[f"{split}_{side}"]) for split in ("train", "test"))
            assert not train & test, task.name


def test_it_needs_only_the_core_packages():
    code = (
        "import sys; from hmcl_jax import load_pocket; print(load_pocket().describe());"
        "assert not {'torch', 'onnxruntime', 'PIL', 'scipy.stats'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for word in ("cifar10", "flags", "chance", "zero_shot", "single_task", "mean"):
        assert word in done.stdout


def test_licences_are_listed(modalities):
    from pocket.sources import SOURCES, licence_page

    page = (ROOT / "DATA_LICENSES.md").read_text("utf8")
    assert page == licence_page()
    for source in SOURCES.values():
        assert source.package in page
        assert source.licence in page
    licences = {f"{s.package} {s.version}": s.licence for s in SOURCES.values()}
    unclear = {SOURCES[name].package for name in ("cifar10", "mnist")}
    for task in map(modalities.__getitem__, NEW):
        for package in task.provenance["packages"].split(", "):
            assert licences[package] in task.provenance["licences"]
            assert package.split()[0] not in unclear
    assert "not a sensor's" in modalities.provenance["thermal"]
