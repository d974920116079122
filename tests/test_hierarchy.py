"""Measures on class trees against breadth-first search, hand-made examples, and SciPy."""

import collections

import numpy as np
import pytest
import scipy.stats

from hmcl_jax.evaluation import chance_scores, hierarchy_scores, make_tree, radius_by_depth

ROWS = [
    *(("cat", "feline"), ("lion", "feline"), ("dog", "canine")),
    *(("feline", "animal"), ("canine", "animal"), ("animal", "thing"), ("car", "thing")),
]
CLASSES = ["cat", "lion", "dog", "car"]
MEASURES = ("top1", "tie", "lca", "jaccard", "precision", "recall")


@pytest.fixture
def tree():
    return make_tree(ROWS, CLASSES)


def random_tree(rng, nodes):
    """Rows in random order; every node hangs below an earlier one."""
    order = rng.permutation(nodes)
    rows = [(f"n{order[i]}", f"n{order[rng.integers(i)]}") for i in range(1, nodes)]
    return [rows[i] for i in rng.permutation(len(rows))]


def searched(rows, start):
    """Distances from a node to all others, by breadth-first search in the undirected graph."""
    near = collections.defaultdict(list)
    for child, parent in rows:
        near[child].append(parent)
        near[parent].append(child)
    distance, queue = {start: 0}, collections.deque([start])
    while queue:
        node = queue.popleft()
        for other in near[node]:
            if other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    return distance


@pytest.mark.parametrize(("nodes", "leaves_only"), [(2, False), (40, False), (40, True)])
def test_measures_equal_searches_in_random_trees(rng, nodes, leaves_only):
    rows = random_tree(rng, nodes)
    parents = {parent for _, parent in rows}
    names = sorted({name for row in rows for name in row} - (parents if leaves_only else set()))
    classes = [names[i] for i in rng.permutation(len(names))]
    tree = make_tree(rows, classes)
    distances = {name: searched(rows, name) for name in classes}
    above = dict(rows)
    ancestors = {}
    for name in classes:
        node, ancestors[name] = name, []
        while node in above:
            node = above[node]
            ancestors[name].append(node)
    for p, t in rng.integers(len(classes), size=(100, 2)):
        found = hierarchy_scores(tree, [p], [t])
        plain = hierarchy_scores(tree, [p], [t], correct_lca=0)
        a, b = classes[p], classes[t]
        up, other = ancestors[a], ancestors[b]
        both = len(set(up) & set(other))
        assert found["tie"] == plain["tie"] == distances[a][b]
        steps = next(i for i, node in enumerate([a, *up]) if node in {b, *other})
        assert plain["lca"] == steps
        if a == b or both == 0:
            assert found["lca"] == 1 + len(up) - both
        else:
            assert found["lca"] == 1 + next(i for i, node in enumerate(up) if node in other)
            if leaves_only:
                assert found["lca"] == plain["lca"]
        assert found["jaccard"] == (both / len({*up, *other}) if up or other else 1)
        assert found["precision"] == (both / len(up) if up else 1)
        assert found["recall"] == (both / len(other) if other else 1)
        assert found["top1"] == (p == t)


def test_seeds_are_scored_one_by_one(tree, rng):
    predicted, actual = rng.integers(4, size=(3, 50)), rng.integers(4, size=50)
    found = hierarchy_scores(tree, predicted, actual)
    alone = [hierarchy_scores(tree, row, actual) for row in predicted]
    for name in MEASURES:
        assert found[name].dtype == np.float64
        np.testing.assert_array_equal(found[name], [scores[name] for scores in alone])


def test_a_new_root_takes_what_has_none(tree):
    assert (tree.root, tree.rows) == ("thing", tuple(sorted(ROWS)))
    rows = [("cat", "animal"), ("car", "vehicle")]
    tree = make_tree(rows, ["cat", "car", "digit"], root="thing")
    assert tree.root == "thing"
    depths = dict(zip(tree.names, tree.depths.tolist(), strict=True))
    assert depths == {"thing": 0, "animal": 1, "vehicle": 1, "digit": 1, "cat": 2, "car": 2}
    assert make_tree([("cat", "animal")], ["cat"], root="animal").rows == (("cat", "animal"),)
    assert make_tree([], ["a", "b"], root="all").rows == (("a", "all"), ("b", "all"))
    with pytest.raises(ValueError, match=r"root = 'cat'.*'animal'"):
        make_tree(rows, ["cat"], root="cat")


@pytest.mark.parametrize(
    ("rows", "classes", "message"),
    [
        ([*ROWS, ("cat", "thing")], CLASSES, r"one parent, got 'feline' and 'thing' for 'cat'"),
        ([*ROWS, ("thing", "cat")], CLASSES, r"no cycle, got one through '(cat|feline|animal|th)"),
        ([*ROWS, ("a", "b"), ("b", "a")], CLASSES, r"no cycle, got one through '[ab]'"),
        (ROWS, [*CLASSES, "ship"], "got none with 'ship'; root='...'"),
        ([*ROWS, ("x", "y")], CLASSES, r"one root, got \['thing', 'y'\]; root="),
        (ROWS, ["cat", "dog", "cat"], r"each class once, got 'cat' 2 times"),
        (ROWS, "cat", "classes must be a list"),
    ],
)
def test_what_is_no_tree_is_refused_by_name(rows, classes, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make_tree(rows, classes)


def test_radius_by_depth_equals_loops(tree, rng):
    radii = rng.uniform(1, 2, size=(3, len(tree.names)))
    found = radius_by_depth(tree, radii)
    np.testing.assert_array_equal(found.depths, [0, 1, 2, 3])
    np.testing.assert_array_equal(found.counts, [1, 2, 2, 3])
    for seed in range(3):
        means = [radii[seed, tree.depths == depth].mean() for depth in range(4)]
        np.testing.assert_allclose(found.means[seed], means)
        expected = scipy.stats.spearmanr(radii[seed], tree.depths).statistic
        np.testing.assert_allclose(found.correlation[seed], expected)


def test_radius_of_some_nodes_in_any_order(tree):
    found = radius_by_depth(tree, [3.0, 1.0, 2.0], ["cat", "thing", "animal"])
    assert (found.depths.tolist(), found.means.tolist()) == ([0, 1, 3], [1, 2, 3])
    assert found.correlation == 1
    with pytest.raises(ValueError, match="names must be nodes of the tree, got 'ship'"):
        radius_by_depth(tree, [1.0], ["ship"])
    with pytest.raises(ValueError, match=r"radii must have shape \(\.\.\., 8\)"):
        radius_by_depth(tree, [1.0])


def test_chance_is_the_mean_over_all_pairs_of_classes(tree):
    pairs = [hierarchy_scores(tree, [p], [t]) for p in range(4) for t in range(4)]
    for name, value in chance_scores(tree).items():
        assert value == pytest.approx(np.mean([scores[name] for scores in pairs]))


@pytest.mark.parametrize(
    ("predicted", "actual", "message"),
    [
        ([[0, 1], [2, 4]], [0, 1], r"predicted must be in \[0, 4\), got 4"),
        ([0, 1], [0, -1], r"actual must be in \[0, 4\), got -1"),
        ([0, 1], [0, 1, 2], r"shapes \(\.\.\., n\) and \(n,\).*got \(2,\) and \(3,\)"),
        ([0.0], [0], "predicted must hold whole numbers"),
    ],
)
def test_wrong_labels_are_refused(tree, predicted, actual, message):
    with pytest.raises((TypeError, ValueError), match=message):
        hierarchy_scores(tree, predicted, actual)
    with pytest.raises(ValueError, match="correct_lca = 2"):
        hierarchy_scores(tree, [0], [0], 2)
