"""Analyses of run folders: what is measured, side by side, and what is said of runs that lack."""

import dataclasses
import itertools
import json
import re
import shutil

import numpy as np
import pytest
from report_runs import SEEDS, make_runs, small_store, with_tree_points
from saved_runs import heads_of, save_run

from hmcl_jax.continual import RunError, read_runs
from hmcl_jax.data.pocket import load_pocket
from hmcl_jax.evaluation import hierarchy_scores, measure_drift, predict, top1
from hmcl_jax.head import apply_head
from hmcl_jax.report.analyse import analyse
from hmcl_jax.report.hierarchy import class_trees
from hmcl_jax.report.page import report_page
from hmcl_jax.report.results import mean_std, read_results
from hmcl_jax.report.tables import all_tables
from hmcl_jax.report.traversals import choose_starts

METHODS = ("vanilla", "hmcl_ca")


@pytest.fixture(scope="module")
def store():
    return with_tree_points(small_store(), np.random.default_rng(1))


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory):
    return make_runs(tmp_path_factory.mktemp("runs"), store, METHODS, np.random.default_rng(2))


@pytest.fixture(scope="module")
def found(store, runs):
    return analyse([runs], store, pictures=3)


@pytest.fixture
def copy(runs, tmp_path):
    return shutil.copytree(runs, tmp_path / "runs")


def test_everything_is_measured(found, store, runs):
    assert found.methods == found.geometry == METHODS
    assert found.warnings == ()
    assert list(found.results) == list(METHODS)
    run = read_runs(runs, store)["hmcl_ca"]
    heads = [run.heads(number) for number in range(1, 5)]
    alone = measure_drift("hmcl_ca", heads, store.tasks, SEEDS, K=store.K)
    np.testing.assert_array_equal(found.drift.values[1], alone.values[0])
    np.testing.assert_array_equal(
        found.drift.norms["image"].ratios[1], alone.norms["image"].ratios[0]
    )
    assert [tree.task.name for tree in found.hierarchies] == ["task1", "task3"]
    assert 1 <= len(found.starts) <= 3
    every = [start.paths[method] for start in found.starts for method in METHODS]
    assert all(p[-1] == "[ROOT]" for paths in every for pair in paths.values() for p in pair)
    assert len({path for paths in every for path in paths[False]}) > 1
    start = found.starts[0]
    assert f"<bdi>{start.title}</bdi> (<bdi>{start.task.name}</bdi>)" in report_page(found)


def test_hierarchy_is_of_the_heads_at_the_end_of_the_task_and_of_the_stream(found, store, runs):
    tree = found.hierarchies[1]
    task = store["task3"]
    run = read_runs(runs, store)["hmcl_ca"]
    for when, seed in itertools.product((0, 1), (0, 1)):
        heads = run.heads(3 + when)
        prototypes, samples = (
            apply_head(heads[m][seed], np.float32(task.arrays[key]), store.K)
            for m, key in (("text", "prototypes"), ("image", "test_features"))
        )
        labels = task.arrays["test_labels"]
        right = top1(prototypes, samples, labels, K=store.K)
        np.testing.assert_allclose(tree.scores["top1"][1, seed, when], right, atol=1e-6)
        predicted = np.asarray(predict(prototypes, samples, K=store.K))
        expected = hierarchy_scores(tree.tree, predicted, labels)
        assert tree.scores["tie"][1, seed, when] == expected["tie"]


def test_traversals_of_the_embedded_stream_start_at_named_pictures():
    store = load_pocket()
    start = choose_starts(store, store.tasks, 4)[0]
    assert (start.task.name, start.title) == ("tux-photos", "An Adelaide Rosella")
    assert start.thumbnail is not None


@pytest.fixture(scope="module")
def more(store, tmp_path_factory):
    out = tmp_path_factory.mktemp("folders") / "more"
    return make_runs(out, store, ["vanilla", "ewc"], np.random.default_rng(0))


def test_several_folders_side_by_side(found, store, runs, more):
    both = analyse([runs, more], store, pictures=0)
    first = f"{runs.name}/vanilla"
    assert both.methods == (first, "hmcl_ca", "more/vanilla", "ewc")
    np.testing.assert_array_equal(both.drift.values[:2], found.drift.values)
    assert both.starts == ()
    tables = all_tables(both)
    assert tables["drift_tests"].caption.endswith(first)
    assert f"in brackets the change against {first}" in tables["drift"].note
    assert "the first; --against names another" in report_page(both)
    options = {"methods": ["more/vanilla", "hmcl_ca"], "pictures": 0}
    chosen = analyse([runs, more], store, **options)
    assert chosen.methods == tuple(chosen.results) == ("more/vanilla", "hmcl_ca")
    assert (chosen.against, chosen.warnings) == ("more/vanilla", ())
    without = analyse([runs, more], store, **options, against="gem")
    assert without.warnings[0].startswith("There is no gem to compare with, only more/vanilla")
    table = all_tables(without)["drift"]
    assert "brackets" not in table.note
    assert "(" not in table.rows[1][1]
    with pytest.raises(RunError, match=r"no run of 'gem', only of .*ewc"):
        analyse([runs, more], store, methods=["gem"])
    with pytest.raises(RunError, match="given twice"):
        analyse([runs, runs], store)


def test_runs_that_are_not_alike_are_to_be_analysed_apart(store, runs, tmp_path, rng):
    other = make_runs(tmp_path / "other", store, ["ewc"], rng, seeds=(1, 2))
    with pytest.raises(RunError, match=r"ewc and vanilla differ in seeds.*analyse them apart"):
        analyse([runs, other], store)
    turned = dataclasses.replace(store, tasks=store.tasks[::-1])
    other = make_runs(tmp_path / "turned", turned, ["ewc"], rng)
    with pytest.raises(RunError, match=r"ewc and vanilla differ in order.*analyse them apart"):
        analyse([runs, other], store)
    with pytest.raises(RunError, match="over another store"):
        analyse([runs], small_store(seed=9))


def test_one_task_has_no_drift_and_one_seed_no_spread(tmp_path, rng):
    store = small_store(tasks=1)
    make_runs(tmp_path, store, ["vanilla"], rng, seeds=(7,))
    found = analyse([tmp_path], store)
    assert found.drift is None
    assert "one task only" in found.warnings[0]
    assert "±" not in str(all_tables(found)["methods"].rows)
    report_page(found)


def test_results_that_are_missing_or_incomplete_or_of_another_run(store, copy):
    path = copy / "results.json"
    good = json.loads(path.read_text())
    for what, beside in (("tasks", "run.json"), ("kinds", "the store"), ("seeds", "run.json")):
        path.write_text(json.dumps({**good, what: good[what][::-1]}))
        with pytest.raises(RunError, match=rf"results.json and .*{beside}.* disagree in {what}"):
            analyse([copy], store)
    good["methods"]["vanilla"]["scores"][0][3][0] = None
    for reason in ("not complete", "does not hold them"):
        path.write_text(json.dumps(good))
        found = analyse([copy], store, pictures=0)
        assert list(found.results) == ["hmcl_ca"]
        assert sorted(found.geometry) == sorted(METHODS)
        (sentence,) = found.warnings
        assert re.search(f"Scores of vanilla are not shown.*{reason}.*--resume", sentence)
        good["methods"].pop("vanilla", None)
    path.unlink()
    found = analyse([copy], store, pictures=0)
    assert found.results == {}
    assert re.search("Scores of hmcl_ca, vanilla are not shown.*--resume", found.warnings[0])
    page = report_page(found)
    assert "are not shown" in page
    assert ('id="drift"' in page, 'id="methods"' in page) == (True, False)
    for name in METHODS:
        shutil.rmtree(copy / name / "steps")
    with pytest.raises(RunError, match=r"results.json is missing.*0 of 4 tasks are finished"):
        analyse([copy], store)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("methods", [1], "damaged or of another kind"),
        ("scores", [[[0.5]]], r"scores of vanilla must have shape \(2, 4, 4\)"),
        ("losses", [[]], "losses of vanilla must have 4 entries"),
        ("stopped", [{"seed_index": 0}], "stopped of vanilla"),
    ],
)
def test_results_that_are_damaged_say_what_to_do(copy, key, value, said):
    path = copy / "results.json"
    made = json.loads(path.read_text())
    (made if key in made else made["methods"]["vanilla"])[key] = value
    path.write_text(json.dumps(made))
    with pytest.raises(RunError, match=rf"{said}.*--resume"):
        read_results(copy)


def test_a_run_without_a_checkpoint_is_left_out_of_the_geometry(store, copy):
    shutil.rmtree(copy / "vanilla" / "steps" / "2")
    found = analyse([copy], store, pictures=1)
    assert found.geometry == found.drift.methods == ("hmcl_ca",)
    assert list(found.results) == list(METHODS)
    (sentence,) = found.warnings
    assert sentence.startswith("Drift, hierarchy and traversals of vanilla are not shown. Step 2")
    assert "--resume" in sentence
    shutil.rmtree(copy / "hmcl_ca" / "steps")
    found = analyse([copy], store)
    assert (found.drift, found.hierarchies, found.starts) == (None, (), ())
    page = report_page(found)
    assert ('id="drift"' in page, 'id="methods"' in page) == (False, True)


def test_stopped_seeds_are_left_out_and_named(store, tmp_path):
    names = ("vanilla", "hmcl_ca", "ewc")
    stops = {"hmcl_ca": (0,), "ewc": (0, 1)}
    make_runs(tmp_path, store, names, np.random.default_rng(2), stopped=stops)
    found = analyse([tmp_path], store, pictures=2)
    assert found.geometry == tuple(found.results) == ("vanilla", "hmcl_ca")
    assert found.results["hmcl_ca"].seeds == (5,)
    said = " ".join(found.warnings)
    assert "hmcl_ca: seed 3 stopped on task 'task4', in epoch 2" in said
    assert "hmcl_ca are over the other 1" in said
    assert "Scores of ewc are not shown: all its seeds were stopped" in said
    assert "traversals of ewc are not shown: all its seeds were stopped" in said
    assert len(set(found.warnings)) == len(found.warnings)
    drift, trees = found.drift, found.hierarchies[1].scores
    for values in (drift.values, drift.cones, drift.norms["image"].ratios, trees["top1"]):
        lost = np.isnan(values).all(axis=tuple(range(2, values.ndim)))
        np.testing.assert_array_equal(lost, [[False, False], [True, False]])
    tables = all_tables(found)
    for table in tables.values():
        assert not re.search(r"\bnan\b", table.markdown())
        row = next((row for row in table.rows if row[0] == "hmcl_ca"), ("",))
        assert "±" not in " ".join(row)
    means = [f"{x:.4f}" for x in drift.values[1, 1].mean(axis=0)]
    assert [cell.split()[0] for cell in tables["drift"].rows[2][1:]] == means


def test_a_method_whose_heads_have_burst_and_a_damaged_run_are_left_out(store, copy, rng):
    shutil.rmtree(copy / "hmcl_ca")
    burst = [heads_of(store, SEEDS, n, rng) for n in range(1, 5)]
    burst[-1] = {m: W * np.float32(1e25) for m, W in burst[-1].items()}
    save_run(copy, store, "hmcl_ca", SEEDS, burst)
    found = analyse([copy], store, pictures=2)
    assert found.geometry == found.drift.methods == ("vanilla",)
    (sentence,) = found.warnings
    assert "Drift, hierarchy and traversals of hmcl_ca are not shown" in sentence
    assert str(copy / "hmcl_ca") in sentence
    report_page(found)
    (copy / "vanilla" / "run.json").write_text("{")
    found = analyse([copy], store, pictures=0)
    assert found.methods == ("hmcl_ca",)
    assert "vanilla is left out." in found.warnings[0]
    with pytest.raises(RunError, match=r"vanilla is left out.*run\.json is damaged"):
        analyse([copy], store, methods=["vanilla"])


def test_tables_hold_the_measured_numbers(found):
    tables = all_tables(found)
    assert list(tables) == [
        *("methods", "tasks", "retrieval", "drift", "drift_tests", "cones", "norms"),
        *("hierarchy", "hierarchy_tasks", "depth"),
    ]
    for table in tables.values():
        assert len({len(row) for row in table.rows}) == 1
        assert table.note.endswith(".")
        lines = table.markdown().splitlines()
        assert lines[0] == table.caption
        assert table.latex().count(r"\\") == len(table.rows)
    result = found.results["hmcl_ca"]
    final, learned = 100 * result.scores[:, -1, 1].mean(), 100 * result.scores[:, 1, 1].mean()
    assert tables["tasks"].rows[2][4] == f"{final:.1f} ({final - learned:+.1f})"
    retrieval = np.mean([result.details[-1][i]["general_to_specific_r5"] for i in (1, 3)], axis=0)
    assert tables["retrieval"].rows[2][2].startswith(mean_std(retrieval, 1, 100))
    tie = np.mean([tree.scores["tie"][1, :, 1] for tree in found.hierarchies], axis=0)
    assert tables["hierarchy"].rows[2][2].startswith(mean_std(tie, 3))
    assert tables["hierarchy"].rows[3][0] == "chance"
    blank = {n: dataclasses.replace(r, details=[{}] * 4) for n, r in found.results.items()}
    assert "retrieval" not in all_tables(dataclasses.replace(found, results=blank))


def test_synsets_without_a_tree_need_wordnet(store, monkeypatch, tmp_path):
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("hmcl_jax.data.class_trees.DEBIAN", tmp_path)
    task = dataclasses.replace(
        store["task1"], tree=(), classes=tuple(f"n0000000{i}" for i in range(6))
    )
    trees, (warning,) = class_trees([task])
    assert trees == {}
    assert "hierarchy of task1 is not shown. No WordNet" in warning
    (tmp_path / "data.noun").write_text(
        "00001740 03 n 01 entity 0 000 | all\n"
        + "".join(f"0000000{i} 03 n 01 w{i} 0 001 @ 00001740 n 0000 | w\n" for i in range(6))
    )
    (tmp_path / "index.noun").write_text("entity n 1 0 1 0 00001740\n")
    tree = class_trees([task])[0]["task1"]
    assert [tree.names[i] for i in tree.classes] == list(task.classes)
