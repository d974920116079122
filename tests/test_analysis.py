"""Analyses of run folders: what is measured, side by side, and what is said of runs that lack."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from report_runs import SEEDS, hostile_store, made_result, make_runs, small_store, with_tree_points
from saved_runs import heads_of, save_run

from hmcl_jax.continual import RunError, read_runs
from hmcl_jax.continual.evaluate import Evaluator
from hmcl_jax.evaluation import hierarchy_scores, measure_drift
from hmcl_jax.report import write_results
from hmcl_jax.report.analysis import analyse
from hmcl_jax.report.reading import read_results
from hmcl_jax.report.story import report_page
from hmcl_jax.report.tables import all_tables, spread
from hmcl_jax.report.trees import class_trees

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
    assert found.lacking == ()
    assert found.order == tuple(task.name for task in store)
    assert list(found.results) == list(METHODS)
    together = measure_drift(read_runs(runs, store), store)
    np.testing.assert_array_equal(found.drift.values, together.values)
    np.testing.assert_array_equal(found.drift.cones, together.cones)
    for modality, norms in together.norms.items():
        np.testing.assert_array_equal(found.drift.norms[modality].ratios, norms.ratios)
    assert [tree.task for tree in found.hierarchy] == ["task1", "task3"]
    assert all(len(walk.paths) == 2 for walk in found.walks)
    assert 1 <= len(found.walks) <= 3


def test_hierarchy_is_of_the_heads_at_the_end_of_the_task_and_of_the_stream(found, store, runs):
    tree = found.hierarchy[1]
    task = store["task3"]
    run = read_runs(runs, store)["hmcl_ca"]
    evaluator = Evaluator(store.K)
    for when, finished in enumerate((3, 4)):
        heads = run.heads(finished)
        predicted = evaluator.predictions(heads, task)
        assert predicted.shape == (2, 24)
        right = (predicted == task.arrays["test_labels"]).mean(axis=1)
        np.testing.assert_allclose(right, evaluator(heads, task)["top1"], atol=1e-6)
        np.testing.assert_allclose(tree.scores["top1"][1, :, when], right)
        expected = hierarchy_scores(tree.tree, predicted, task.arrays["test_labels"])
        np.testing.assert_array_equal(tree.scores["tie"][1, :, when], expected["tie"])
    assert tree.chance["top1"] == pytest.approx(1 / 6)
    with pytest.raises(ValueError, match="classification task, got 'task2'"):
        evaluator.predictions(heads, store["task2"])


def test_walks_end_at_the_root_and_depend_on_the_heads(found, store):
    walk = found.walks[0]
    assert walk.title in store[walk.task].classes or walk.title.startswith("picture")
    for paths in walk.paths.values():
        assert all(path[-1] == "[ROOT]" for pair in paths.values() for path in pair)
        assert all(len(pair) == 2 for pair in paths.values())
    every = [p for w in found.walks for of in w.paths.values() for p in of[False]]
    assert len(set(every)) > 1


def test_several_folders_side_by_side(found, store, runs, tmp_path, rng):
    more = make_runs(tmp_path / "more", store, ["vanilla", "ewc"], rng)
    both = analyse([runs, more], store, pictures=0)
    assert both.methods == (f"{runs.name}/vanilla", "hmcl_ca", "more/vanilla", "ewc")
    np.testing.assert_array_equal(both.drift.values[:2], found.drift.values)
    assert both.walks == ()
    chosen = analyse([runs, more], store, methods=["more/vanilla", "hmcl_ca"], pictures=0)
    assert chosen.methods == ("more/vanilla", "hmcl_ca")
    assert list(chosen.results) == ["more/vanilla", "hmcl_ca"]
    with pytest.raises(RunError, match=r"no run of 'gem', only of .*ewc"):
        analyse([runs, more], store, methods=["gem"])
    with pytest.raises(RunError, match="given twice"):
        analyse([runs, runs], store)


def test_runs_that_are_not_alike_are_to_be_analysed_apart(store, runs, tmp_path, rng):
    other = make_runs(tmp_path / "other", store, ["ewc"], rng, seeds=(1, 2))
    with pytest.raises(RunError, match=r"ewc and vanilla differ in seeds.*analyse them apart"):
        analyse([runs, other], store)
    names = [task.name for task in store][::-1]
    turned = dataclasses.replace(store, tasks=tuple(store[name] for name in names))
    other = make_runs(tmp_path / "turned", turned, ["ewc"], rng)
    with pytest.raises(RunError, match=r"ewc and vanilla differ in order.*analyse them apart"):
        analyse([runs, other], store)
    with pytest.raises(RunError, match="over another store"):
        analyse([runs], small_store(seed=9))


def test_a_run_without_results_has_a_report_without_scores(store, copy):
    (copy / "results.json").unlink()
    found = analyse([copy], store, pictures=1)
    assert found.results == {}
    assert "Scores of hmcl_ca, vanilla are not shown" in found.lacking[0]
    assert "--resume" in found.lacking[0]
    page = report_page(found).html()
    assert "Scores of hmcl_ca, vanilla are not shown" in page
    assert 'id="drift"' in page
    assert 'id="methods"' not in page


def test_a_run_without_a_checkpoint_is_left_out_of_the_geometry(store, copy):
    shutil.rmtree(copy / "vanilla" / "steps" / "2")
    found = analyse([copy], store, pictures=1)
    assert found.geometry == found.drift.methods == ("hmcl_ca",)
    assert list(found.results) == list(METHODS)
    (sentence,) = found.lacking
    assert sentence.startswith("Drift, hierarchy and traversals of vanilla are not shown. Step 2")
    assert "--resume" in sentence
    shutil.rmtree(copy / "hmcl_ca" / "steps")
    found = analyse([copy], store)
    assert (found.drift, found.hierarchy, found.walks) == (None, (), ())
    page = report_page(found).html()
    assert 'id="methods"' in page
    assert 'id="drift"' not in page


def test_nothing_to_show_is_an_error(store, tmp_path, rng):
    make_runs(tmp_path, store, ["vanilla"], rng, finished=2)
    with pytest.raises(RunError, match=r"results.json is not there.*2 of 4 tasks are finished"):
        analyse([tmp_path], store)


def test_one_task_has_no_drift_and_one_seed_no_spread(tmp_path, rng):
    store = small_store(tasks=1)
    make_runs(tmp_path, store, ["vanilla"], rng, seeds=(7,))
    found = analyse([tmp_path], store)
    assert found.drift is None
    assert "one task only" in found.lacking[0]
    assert "±" not in str(all_tables(found)["methods"].rows)
    report_page(found).html()


def test_results_that_are_damaged_say_what_to_do(copy, store):
    path = copy / "results.json"
    good = json.loads(path.read_text())

    def refused(match, change=None, text=None):
        made = json.loads(json.dumps(good))
        if change:
            change(made)
        path.write_text(json.dumps(made) if text is None else text)
        with pytest.raises(RunError, match=match) as caught:
            read_results(copy)
        assert "--resume" in str(caught.value)

    refused("damaged or of another kind", text="{")
    refused("KeyError: 'methods'", lambda made: made.pop("methods"))
    refused("no method", lambda made: made["methods"].clear())
    refused("shape", lambda made: made["methods"]["vanilla"]["scores"].pop())
    refused(
        "not complete",
        lambda made: made["methods"]["vanilla"]["scores"][0][3].__setitem__(0, None),
    )
    refused("losses of vanilla", lambda made: made["methods"]["vanilla"]["losses"].pop())
    made = json.loads(json.dumps(good))
    del made["methods"]["hmcl_ca"]
    path.write_text(json.dumps(made))
    found = analyse([copy], store, pictures=0)
    assert list(found.results) == ["vanilla"]
    assert "Scores of hmcl_ca are not shown" in found.lacking[0]


def test_results_without_details_have_no_table_of_recall(found):
    blank = {n: dataclasses.replace(r, details=[{}] * 4) for n, r in found.results.items()}
    tables = all_tables(dataclasses.replace(found, results=blank))
    assert "retrieval" not in tables
    assert "methods" in tables


def test_old_results_without_logs_are_read(copy):
    path = copy / "results.json"
    made = json.loads(path.read_text())
    for entry in made["methods"].values():
        del entry["logs"], entry["programs"]
    path.write_text(json.dumps(made))
    assert read_results(copy).results["vanilla"].logs == [{}] * 4


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
    assert tables["retrieval"].rows[2][2].startswith(spread(retrieval, 1))
    tie = np.mean([tree.scores["tie"][1, :, 1] for tree in found.hierarchy], axis=0)
    assert tables["hierarchy"].rows[2][2].startswith(spread(tie, 3, 1.0))
    assert tables["hierarchy"].rows[3][0] == "chance"


def test_synsets_without_a_tree_need_wordnet(store, monkeypatch, tmp_path):
    monkeypatch.setenv("WNSEARCHDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("hmcl_jax.data.wordnet.DEBIAN", tmp_path)
    task = dataclasses.replace(
        store["task1"], tree=(), classes=tuple(f"n0000000{i}" for i in range(6))
    )
    lacking = []
    assert class_trees([task], lacking) == {}
    assert "hierarchy of task1 is not shown. No WordNet" in lacking[0]
    (tmp_path / "data.noun").write_text(
        "00001740 03 n 01 entity 0 000 | all\n"
        + "".join(f"0000000{i} 03 n 01 w{i} 0 001 @ 00001740 n 0000 | w\n" for i in range(6))
    )
    (tmp_path / "index.noun").write_text("entity n 1 0 1 0 00001740\n")
    tree = class_trees([task], [])["task1"]
    assert tree.root == "n00001740"
    assert [tree.names[i] for i in tree.classes] == list(task.classes)


def test_hostile_names_do_not_harm_an_analysis(tmp_path, rng):
    store = hostile_store(rng)
    methods = ["vanilla", '<img src=x onerror="window.attacked=1">']
    found = analyse([make_runs(tmp_path, store, methods, rng)], store, pictures=2)
    assert found.methods == tuple(methods)
    assert "<img src=x" not in report_page(found).html()


def test_a_run_may_hold_less_than_its_results(store, tmp_path, rng):
    save_run(tmp_path, store, "vanilla", SEEDS, [heads_of(store, SEEDS, n, rng) for n in (1, 2)])
    results = {"vanilla": made_result(store, "vanilla", SEEDS, rng)}
    write_results(tmp_path, results, {})
    found = analyse([tmp_path], store)
    assert found.drift is None
    assert "2 of 4 tasks are finished" in found.lacking[0]
