"""Measures of frozen features against counting by hand."""

import dataclasses
import itertools

import numpy as np
import pytest
import scipy.stats

from hmcl_jax import entailment
from hmcl_jax.data.store import Task
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.evaluation import measure_pairs, measure_table, measure_task
from hmcl_jax.evaluation.frozen import class_tree_correlation, tree_correlation


def test_shares_are_those_of_all_pairs_one_by_one():
    rng = np.random.default_rng(0)
    general, specific = rng.normal(size=(5, 3)) * 0.6, rng.normal(size=(7, 3)) * 1.2
    pairs = np.array([(i, i % 4) for i in range(7)])  # the last text has no picture
    found = measure_pairs(general, specific, pairs, 10.0)
    inside = np.array([[entailment.entails(x, y) for y in specific] for x in general])
    assert found.entailed == pytest.approx(np.mean([inside[t, p] for p, t in pairs]))
    every = itertools.product(pairs, pairs)
    shuffled = [inside[t, p] for (p, own), (_, t) in every if t != own]
    assert found.entailed_others == pytest.approx(np.mean(shuffled))
    radii = [np.linalg.norm(x, axis=1) for x in (general, specific)]
    assert found.further == np.mean([radii[0][t] < radii[1][p] for p, t in pairs])
    assert found.general_radius == pytest.approx(radii[0].mean(), rel=1e-5)
    assert found.specific_variation == pytest.approx(radii[1].std() / radii[1].mean(), rel=1e-5)
    assert np.isnan(measure_pairs([[1.0, 0.0]], [[2.0, 0.0]], [[0, 0]], 10.0).entailed_others)


@pytest.fixture
def task():
    tree = (("cat", "animal"), ("dog", "animal"), ("oak", "plant"))
    radii = {"animal": 0.5, "cat": 0.9, "dog": 0.8, "oak": 0.6, "plant": 0.7}
    points = np.eye(5, dtype=np.float16) * np.array(list(radii.values()), np.float16)
    arrays = {
        "prototypes": points[[1, 2, 3]],
        "test_features": 2 * points[[1, 2, 3, 1]],
        "test_labels": np.array([0, 1, 2, 0]),
        "tree_features": points,
    }
    return Task("t", "classification", "text", "image", arrays, ("cat", "dog", "oak"), tree)


def test_trees_with_several_tops_and_their_cap(task):
    correlation, cap = tree_correlation(task)
    depths, radii = [0, 1, 1, 1, 0], [0.5, 0.9, 0.8, 0.6, 0.7]
    assert correlation == pytest.approx(scipy.stats.spearmanr(depths, radii).statistic)
    assert cap == pytest.approx(scipy.stats.spearmanr(depths, [0, 2, 3, 4, 1]).statistic)
    assert class_tree_correlation([task]) == (correlation, cap)
    found = measure_task(task, 10.0)
    assert found.pairs.entailed == 1
    animal, plant = task.arrays["tree_features"][[0, 4]]
    rows = ((animal, "cat"), (animal, "dog"), (plant, "oak"))
    points = dict(zip(task.tree_names, task.arrays["tree_features"], strict=True))
    held = [bool(entailment.entails(parent, points[child])) for parent, child in rows]
    assert found.nested == pytest.approx(np.mean(held))


def test_the_table_has_a_row_per_task(task):
    store = synthetic_stream(tasks=1, dimension=5)
    other = dataclasses.replace(task, name="other", tree=())
    few = dataclasses.replace(store, tasks=(task, other))
    lines = [line.split(" | ") for line in measure_table(few).splitlines()]
    assert [line[0] for line in lines[2:]] == ["| t", "| other", "| mean"]
    assert {len(line) for line in lines} == {len(lines[0])}
    for place in (2, 4):
        values = [float(line[place].split()[0]) for line in lines[2:]]
        assert values[2] == pytest.approx(np.mean(values[:2]), abs=1e-3)
    assert lines[4][6] == lines[2][6] != lines[3][6]  # of the only task with a tree
