"""Analyses of run folders: what is measured, side by side, and what is said of runs that lack."""

import dataclasses
import json
import re
import shutil

import numpy as np
import pytest
from report_runs import SEEDS, hostile_store, made_result, make_runs, small_store, with_tree_points
from saved_runs import heads_of, save_run

from hmcl_jax._files import without_nan
from hmcl_jax.continual import RunError, read_runs
from hmcl_jax.continual.scoring import Evaluator
from hmcl_jax.evaluation import hierarchy_scores, measure_drift
from hmcl_jax.report import write_results
from hmcl_jax.report.analysis import analyse, compared_with
from hmcl_jax.report.reading import read_results
from hmcl_jax.report.story import report_page
from hmcl_jax.report.tables import all_tables, spread
from hmcl_jax.report.trees import class_trees
from hmcl_jax.report.writing import write_report

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
    named = f"<bdi>{walk.title}</bdi> (<bdi>{walk.task}</bdi>)"
    assert named in report_page(found).html()


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


def test_the_method_to_compare_with_is_found_among_folders(store, runs, tmp_path, rng):
    assert compared_with(["vanilla", "a/vanilla"], "vanilla") == ("vanilla", "")
    assert compared_with(["ewc", "a/vanilla"], "vanilla") == ("a/vanilla", "")
    assert compared_with(["ewc"], "vanilla") == ("vanilla", "")
    more = make_runs(tmp_path / "more", store, ["vanilla", "ewc"], rng)
    both = analyse([runs, more], store, pictures=0)
    first = f"{runs.name}/vanilla"
    tables = all_tables(both)
    assert tables["drift_tests"].caption.endswith(first)
    assert f"in brackets the change against {first}" in tables["drift"].note
    assert "the first; --against names another" in report_page(both).html()
    assert all_tables(both, "more/vanilla")["drift_tests"].caption.endswith("more/vanilla")
    without = all_tables(both, "gem")["drift"]
    assert "brackets" not in without.note
    assert "(" not in without.rows[1][1]


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
    for key, value, said in (
        ("losses", [[["x"]] * 2] * 4, "losses of vanilla, task 1, must be numbers, got 'x'"),
        (
            "losses",
            [[[1.0], [1.0, 2.0]]] * 4,
            "losses of vanilla, task 1, must be numbers of shape",
        ),
        ("losses", [[]], "losses of vanilla must be a list of 4 entries"),
        ("seconds", [{"learn": "1.5"}] * 4, "seconds of vanilla, task 1, learn must be a number"),
        ("seconds", [[1]] * 4, "seconds of vanilla, task 1, must be an object"),
        ("logs", [{"defect_after": 1.0}] * 4, "logs of vanilla, task 1, defect_after must be"),
        ("logs", {"a": 1}, "logs of vanilla must be a list"),
        ("details", [[{"score": 0.5}]] * 4, "details of vanilla, task 1, score must be"),
        ("details", [[{}, {}]] * 4, "details of vanilla, task 1, must be a list of 1 entries"),
        ("scores", [[["0.5"] * 4] * 4] * 2, "scores of vanilla must be numbers, got '0.5'"),
        ("scores", 1.0, "scores of vanilla must be numbers of shape"),
        ("stopped", [{"seed_index": 0}], "stopped of vanilla must be a list of reports on seeds"),
    ):
        refused(said, lambda made, k=key, v=value: made["methods"]["vanilla"].update({k: v}))
    refused("kinds must be a list of str", lambda made: made.update(kinds=[1, 2, 3, 4]))
    refused("3 kinds of 4 tasks", lambda made: made["kinds"].pop())
    refused("seeds must be a list of int", lambda made: made.update(seeds="35"))
    refused("methods must be an object", lambda made: made.update(methods=[1]))
    refused("vanilla must be an object", lambda made: made["methods"].update(vanilla=3))
    refused("about must be an object", lambda made: made.update(about=3))
    made = json.loads(json.dumps(good))
    del made["methods"]["hmcl_ca"]
    path.write_text(json.dumps(made))
    found = analyse([copy], store, pictures=0)
    assert list(found.results) == ["vanilla"]
    assert "Scores of hmcl_ca are not shown" in found.lacking[0]


def test_results_that_disagree_with_the_runs_are_refused(copy, store):
    path = copy / "results.json"
    good = json.loads(path.read_text())
    for what, beside in (("tasks", "run.json"), ("kinds", "the store"), ("seeds", "run.json")):
        path.write_text(json.dumps({**good, what: good[what][::-1]}))
        with pytest.raises(RunError, match=rf"results.json and .*{beside}.* disagree in {what}"):
            analyse([copy], store)


def test_one_incomplete_matrix_loses_the_scores_of_one_method(copy, store):
    path = copy / "results.json"
    made = json.loads(path.read_text())
    made["methods"]["vanilla"]["scores"][0][3][0] = None
    path.write_text(json.dumps(made))
    found = analyse([copy], store, pictures=0)
    assert list(found.results) == ["hmcl_ca"]
    assert found.geometry == METHODS
    (sentence,) = found.lacking
    assert "Scores of vanilla are not shown" in sentence
    assert "not complete" in sentence
    assert "--resume" in sentence


def test_scores_of_0_are_shown(copy, store):
    path = copy / "results.json"
    made = json.loads(path.read_text())
    zero = np.where(np.tri(4), 0.0, np.nan)
    for entry in made["methods"].values():
        entry["scores"] = without_nan([zero.tolist()] * 2)
    path.write_text(json.dumps(made))
    found = analyse([copy], store, pictures=0)
    assert found.lacking == ()
    assert 'id="stages"' in report_page(found).html()


@pytest.fixture(scope="module")
def stopped(store, tmp_path_factory):
    """hmcl_ca has lost its first seed, and ewc both."""
    folder = tmp_path_factory.mktemp("stopped")
    names = ("vanilla", "hmcl_ca", "ewc")
    return make_runs(
        folder,
        store,
        names,
        np.random.default_rng(2),
        stopped={"hmcl_ca": (0,), "ewc": (0, 1)},
    )


def test_stopped_seeds_are_left_out_and_named(stopped, store, tmp_path):
    found = analyse([stopped], store, pictures=2)
    assert found.geometry == ("vanilla", "hmcl_ca")
    assert list(found.results) == ["vanilla", "hmcl_ca"]
    assert found.results["hmcl_ca"].seeds == (5,)
    said = " ".join(found.lacking)
    assert "hmcl_ca: seed 3 stopped on task 'task4', in epoch 2" in said
    assert "hmcl_ca are over the other 1" in said
    assert "Scores of ewc are not shown: all its seeds were stopped" in said
    assert (
        "Drift, hierarchy and traversals of ewc are not shown: all its seeds were stopped" in said
    )
    assert str(stopped / "ewc") in said
    assert "vanilla:" not in said
    for values in (found.drift.values, found.drift.cones, found.drift.norms["image"].ratios):
        np.testing.assert_array_equal(
            np.isnan(values).all(axis=tuple(range(2, values.ndim))), [[False, False], [True, False]]
        )
    alone = read_runs(stopped, store)["hmcl_ca"].heads()
    assert np.isnan(alone["image"][0]).all()
    tree = found.hierarchy[1]
    assert np.isnan(tree.scores["top1"][1, 0]).all()
    assert np.isfinite(tree.scores["top1"][1, 1]).all()
    tables = all_tables(found)
    for table in tables.values():
        assert not re.search(r"\bnan\b", table.markdown())
        row = next((row for row in table.rows if row[0] == "hmcl_ca"), ("",))
        assert "±" not in " ".join(row)
    drift = found.drift.values[1, 1].mean(axis=0)
    assert [cell.split()[0] for cell in tables["drift"].rows[2][1:]] == [f"{x:.4f}" for x in drift]
    page = write_report(tmp_path / "report", found, formats=["svg"]).read_text("utf8")
    assert not re.search(r">[^<]*\bnan\b[^<]*</t[dh]", page)
    assert "seed 3 stopped on task" in page
    for path in (tmp_path / "report" / "figures").glob("*.svg"):
        assert not re.search(r">[^<]*\bnan\b[^<]*</text>", path.read_text("utf8")), path
    assert {path.stem for path in (tmp_path / "report" / "figures").iterdir()} >= {
        *("depth", "drift", "methods", "norms", "radial_tree", "retrieval", "stages", "training")
    }


def test_stopped_seeds_are_known_without_results(stopped, store, tmp_path):
    copied = shutil.copytree(stopped, tmp_path / "runs")
    (copied / "results.json").unlink()
    found = analyse([copied], store, pictures=0)
    assert found.geometry == ("hmcl_ca", "vanilla")
    assert "hmcl_ca: seed 3 stopped on task 'task4'" in " ".join(found.lacking)


def test_a_method_whose_heads_have_burst_is_left_out(store, tmp_path, rng):
    make_runs(tmp_path, store, METHODS, rng)
    shutil.rmtree(tmp_path / "hmcl_ca")
    burst = [heads_of(store, SEEDS, n, rng) for n in range(1, 5)]
    burst[-1] = {m: W * np.float32(1e25) for m, W in burst[-1].items()}
    save_run(tmp_path, store, "hmcl_ca", SEEDS, burst)
    found = analyse([tmp_path], store, pictures=2)
    assert found.geometry == found.drift.methods == ("vanilla",)
    (sentence,) = found.lacking
    assert "Drift, hierarchy and traversals of hmcl_ca are not shown" in sentence
    assert str(tmp_path / "hmcl_ca") in sentence
    report_page(found).html()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("measure_drift", FloatingPointError),
        ("measure_trees", ValueError),
        ("measure_walks", np.linalg.LinAlgError),
    ],
)
def test_an_analysis_that_fails_for_one_method_keeps_the_others(
    name, error, runs, store, monkeypatch
):
    from hmcl_jax.report import analysis

    real, calls = getattr(analysis, name), []

    def fails(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise error("radii must be finite.")
        return real(*arguments, **options)

    monkeypatch.setattr(analysis, name, fails)
    found = analyse([runs], store, pictures=1)
    assert found.geometry == ("vanilla",)
    (sentence,) = found.lacking
    assert "of hmcl_ca are not shown: radii must be finite (" in sentence
    assert str(runs / "hmcl_ca") in sentence


def test_a_folder_that_is_not_there_is_named(runs, store, tmp_path):
    with pytest.raises(RunError, match=r"there is no folder .*nowhere"):
        analyse([runs, tmp_path / "nowhere"], store)
    with pytest.raises(RunError, match="is the run of one method; give the folder above it"):
        analyse([runs / "vanilla"], store)


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


def test_a_damaged_run_is_left_out_alone(store, copy):
    (copy / "vanilla" / "run.json").write_text("{")
    found = analyse([copy], store, pictures=0)
    assert found.methods == ("hmcl_ca",)
    assert "vanilla is left out." in found.lacking[0]
    assert "There is no vanilla to compare with" in report_page(found).html()
    assert analyse([copy], store, methods=["hmcl_ca"], pictures=0).lacking == ()
    with pytest.raises(RunError, match=r"vanilla is left out.*run\.json is damaged"):
        analyse([copy], store, methods=["vanilla"])


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("order", ["task1", "zzz"], "names 'zzz', which is no task"),
        ("config", {"kappa": "x"}, "kappa is 'x', which is no number"),
    ],
)
def test_what_a_run_says_of_itself_is_checked(store, copy, key, value, said):
    path = copy / "vanilla" / "run.json"
    told = json.loads(path.read_text("utf8"))
    told["identity"][key] = value
    path.write_text(json.dumps(told), "utf8")
    assert said in analyse([copy], store, pictures=0).lacking[0]


def test_the_same_folder_by_another_name_is_refused(store, runs, tmp_path):
    (tmp_path / "again").symlink_to(runs)
    with pytest.raises(RunError, match="given twice"):
        analyse([runs, tmp_path / "again"], store)


def test_a_class_called_root_is_no_stop_of_a_walk(tmp_path, rng):
    plain = small_store()
    first = plain.tasks[0]
    named = dataclasses.replace(first, classes=("[ROOT]", *first.classes[1:]), tree=())
    store = dataclasses.replace(plain, tasks=(named, *plain.tasks[1:]))
    found = analyse([make_runs(tmp_path / "runs", store, ["vanilla"], rng)], store, pictures=2)
    assert found.drift is not None
    assert found.geometry == ("vanilla",)
