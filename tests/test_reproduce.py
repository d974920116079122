"""The paper's tables from runs: what is planned, how numbers become tables, and the command."""

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from paper_stores import hmcl16_store, modalities_store
from reproducing import BROKEN, FEW, MINE, SMALL, call, haste, result

from hmcl_jax.continual import ConfigError, TrainConfig, feed, scoring
from hmcl_jax.data.store import read_store
from hmcl_jax.evaluation.drift import Drift, Norms
from paper import measured
from paper.claims import Check, Verdict, judge
from paper.compare import Cell, grid, side_by_side, written
from paper.measured import Inputs, Setting, make_tables, protected_ranks
from paper.page import Section, as_json, html, markdown, verdict_rows
from paper.plan import NAMES, about_of, read_item, unique
from paper.published import Number, read_tables

# The paper's "Reproducibility Notes", typed here a second time: rho, beta, k_min.
NOTES = {
    "meru-l": {"hmcl_mr": (0.60, 0.14, 8), "hmcl_ca": (0.65, 0.13, 8)},
    "meru-b": {"hmcl_mr": (0.70, 0.075, 8), "hmcl_ca": (0.70, 0.075, 11)},
    "hycoclip-b": {"hmcl_mr": (0.80, 0.125, 8), "hmcl_ca": (0.75, 0.15, 1)},
}
BASELINES = {
    "ewc": {"coefficient": 1e-4, "memory": 512},
    "gem": {"margin": 0.5, "memory": 512},
    "cflat": {"power": 1.0, "memory": 512, "rho": 0.2, "coefficient": 0.2},
}
ABOUT = {"lead": "Lead.", "versions": {"jax": "1"}, "stores": {"meru-b": "abc"}, "elsewhere": []}
ABOUT["inconsistencies"] = [{"where": "w", "says": "s.", "but": "b."}]


def settings_of(job):
    return tuple(job.settings[name] for name in ("variance", "beta", "min_rank"))


def test_main_has_the_papers_settings():
    for stream, notes in NOTES.items():
        jobs = read_item("main", stream).jobs["canonical"]
        assert list(jobs) == ["vanilla", "ewc", "gem", "cflat", "dns", "hmcl_mr", "hmcl_ca"]
        assert {m: settings_of(jobs[m]) for m in notes} == notes
        beta = jobs["hmcl_ca"].settings.get("beta_retrieval")
        assert beta == (0.2 if stream == "meru-b" else None)
        assert {m: jobs[m].settings for m in BASELINES} == BASELINES
        for job in jobs.values():
            assert (job.seeds, job.train) == ((42, 123, 456, 789, 1024), TrainConfig())
    config = TrainConfig()
    assert (config.batch, config.weight_decay, config.entailment_weight) == (1024, 0.0, 0.2)
    assert (config.classification.epochs, config.classification.learning_rate) == (10, 5e-4)
    assert (config.retrieval.epochs, config.retrieval.learning_rate) == (15, 5e-5)


def test_other_configs_have_the_settings_of_main():
    main = read_item("main", "hycoclip-b").jobs["canonical"]
    for order, jobs in read_item("orders", "hycoclip-b").jobs.items():
        assert order in ("seq2", "seq3")
        for label, job in jobs.items():
            assert job.settings == main[label].settings
    placement = read_item("placement", "hycoclip-b").jobs["canonical"]
    assert placement["ca_post_anchor"].folder == main["hmcl_ca"].folder
    assert settings_of(placement["mr_post_anchor"]) == (0.80, 0.2, 8)
    for stream, notes in NOTES.items():
        jobs = read_item("modalities", f"{stream}-modalities").jobs["canonical"]
        for label, (rho, _, least) in notes.items():
            assert settings_of(jobs[label]) == (rho, 0.015, least)
        assert jobs["vanilla"].seeds == (42, 123, 456)


def test_tables_share_runs():
    stream = "hycoclip-b"
    items = [read_item(n, stream) for n in NAMES if stream in about_of(n)["streams"]]
    jobs = unique(items)
    assert len(jobs) < 0.65 * sum(len(item.needed) for item in items)
    by_name = {item.name: item.jobs.get("canonical", {}) for item in items}
    main, decay, placement = by_name["main"], by_name["decay"], by_name["placement"]
    assert decay["vanilla_decay_0"].folder == main["vanilla"].folder
    assert decay["mr_pre_decay_0"].folder == placement["mr_pre"].folder
    assert decay["vanilla_decay_1e-2"].train.weight_decay == 1e-2
    chosen = about_of("pullback", stream)["chosen"]
    assert by_name["pullback"][chosen].folder == main["hmcl_mr"].folder
    # What differs in anything is not shared.
    assert len({job.folder for job in (*placement.values(), decay["vanilla_decay_1e-2"])}) == 8
    for change in ({"seeds": [1]}, {"overrides": ["train.batch=3"]}):
        assert read_item("main", stream, **change).jobs["canonical"]["vanilla"].folder not in jobs
    overrides = ["methods.agem.memory=64"]
    added = read_item("main", stream, overrides, ["agem"]).jobs["canonical"]["agem"]
    assert added.settings == {"memory": 64}


def shown(name, results, stream="pocket", about=()):
    item = read_item(name, stream)
    item = dataclasses.replace(item, about={**item.about, **dict(about)})
    return make_tables(Inputs(item, {"canonical": results}, Setting({stream: None}, Path())))


def means(table, block, method):
    return {c: pytest.approx(n.mean) for c, n in table.blocks[block][method].items()}


def test_columns_and_tasks_from_results():
    made = {"vanilla": result([40, 20, 60], [50, 30, 60])}
    (table,) = shown("main", made)
    # The second seed is one point higher at the end; the last task has no backward transfer.
    expected = {"Acc": 30.5, "R@5": 60.5, "Overall": 40.5, "BWT": (-9.5 - 9.5 + 0) / 3}
    found = means(table, "pocket", "vanilla")
    assert {name: found[name] for name in expected} == expected
    assert table.blocks["pocket"]["vanilla"]["Overall"].std == pytest.approx(0.5**0.5)
    (table,) = shown("per_task", made)
    assert means(table, "pocket", "vanilla") == {"t0": 40.5, "t1": 20.5, "t2": 60.5}
    (table,) = shown("retrieval", {"vanilla": result([1, 1, 1], [1, 1, 1])}, "pocket-modalities")
    found = means(table, "pocket-modalities", "vanilla")
    assert (found["t2 T2I R@5"], found["t2 I2T R@10"], len(found)) == (5, 20, 6)


def test_stages_are_judged_by_how_far_scores_are_off_in_either_direction():
    made = {
        "vanilla": result([40, 24, 60], [50, 30, 60]),
        "hmcl_mr": result([70, 21, 60], [50, 30, 60]),  # one up by 40 %, one down by 30 %
        "hmcl_ca": result([55, 30, 60], [50, 30, 60]),
    }
    table, signed = shown("stages", made)
    assert means(table, "pocket", "vanilla") == {"after 2": 0, "after 3": 20}
    assert means(table, "pocket", "hmcl_mr")["after 3"] == 35
    assert means(signed, "pocket", "hmcl_mr")["after 3"] == 5
    (verdict,) = judge(dataclasses.replace(table, columns=("after 3",)))
    assert verdict.numbers() == "not: hmcl_mr vs vanilla, after 3: 35.00 against 20.00"
    assert verdict.count == "1 of 2"
    assert judge(signed) == []


def test_placement_decay_and_pullback():
    one, other = result([40, 20, 60], [50, 30, 60]), result([30, 10, 75], [50, 30, 75])
    (table,) = shown("placement", {"vanilla": one}, about={"task": "t1"})
    assert means(table, "pocket", "vanilla")["task"] == 20.5
    with pytest.raises(ConfigError, match="no task 'imagenet'"):
        shown("placement", {"vanilla": one}, about={"task": "imagenet"})
    table, kinds = shown("decay", {"vanilla_decay_0": one, "vanilla_decay_1e-4": other})
    assert means(kinds, "pocket", "vanilla") == {"BWT_A": -9.5, "BWT_R5": 0}
    assert list(table.blocks) == ["decay-0", "decay-1e-4"]
    assert means(table, "decay-1e-4", "vanilla")["Overall"] == 38 + 1 / 3 + 0.5
    labels = [about_of("pullback", "pocket")[name] for name in ("chosen", "stronger")]
    made = shown("pullback", dict(zip(labels, (one, other), strict=True)), about={"task": "t1"})
    table, retained, sweep = made
    found = means(table, "pocket", "weaker")
    assert found["R@5"] == 100 * ((60 - 75) / 75 + (61 - 76) / 76) / 2
    assert found["Acc"] == 100 * ((30 - 20) / 20 + (31 - 21) / 21) / 2
    assert list(sweep.blocks["pocket"]) == labels
    assert means(retained, "pocket", "weaker") == {"BWT": (-9.5 - 9.5) / 3, "task": 20.5}
    assert means(retained, "pocket", "stronger") == {"BWT": (-19.5 - 19.5) / 3, "task": 10.5}


def test_times_are_medians_and_may_not_settle_the_claim(tmp_path, monkeypatch):
    seconds = {"vanilla": [1.0, 2.0, 9.0], "hmcl_mr": [1.0, 2.1, 8.0], "hmcl_ca": [1.05, 2.4, 9.0]}
    asked = []
    monkeypatch.setattr(measured, "fit_times", lambda *a, **k: asked.append(k) or seconds)
    setting = Setting({"pocket": SimpleNamespace(fingerprint="abc")}, tmp_path)
    inputs = Inputs(read_item("time", "pocket"), {}, setting)
    (table,) = make_tables(inputs)
    mr, ca = (table.blocks["pocket"][m] for m in ("hmcl_mr", "hmcl_ca"))
    assert (mr["seconds"].mean, mr["ratio"].mean, ca["ratio"].mean) == (2.1, 1.05, 1.2)
    assert mr["ratio"].values == pytest.approx((1.0, 1.05, 8 / 9))
    (verdict,) = judge(table)
    assert verdict.holds is None
    assert "1.20 (1.00 to 1.20 in 3 repeats) against 1.10" in verdict.numbers()
    assert make_tables(inputs) == [table]  # all repeats are kept, and not measured again
    assert asked == [{"seed": 42, "stage": 3, "repeats": 9}]


@pytest.fixture
def drifted(monkeypatch):
    """The tables of drift or norms, from numbers of two old tasks and two seeds."""

    def tables(name, methods, seeds=(42, 1024)):
        vanilla = np.full((2, 2, 4), 10.0)
        mr, ca = vanilla * [0.1, 0.2, 0.3, 0.4], vanilla * [0.05, 0.1, 0.2, 0.5]
        mr[1] *= 2  # on the second seed
        ratios = [[[0.8, 0.8, 0.95, 0.95]] * 2, [[1, 1, 0.95, 0.95], [1, 1, 0.85, 0.85]]]
        found = Drift(
            methods=methods,
            seeds=(42, 1024),
            tasks=("a", "b"),
            kinds=("classification",) * 2,
            anchors=(2, 2),
            values=np.array([vanilla, mr, ca]),
            cones=np.zeros((3, 2, 2, 6)),
            norms={"text": Norms(np.array([0, 0, 1, 1]), np.ones((2, 2, 4)), np.array(ratios))},
        )
        monkeypatch.setattr(measured, "measured_drift", lambda *a: found)
        rows = dict.fromkeys(methods, SimpleNamespace(seeds=seeds))
        setting = Setting({"pocket": None}, Path())
        return make_tables(Inputs(read_item(name, "pocket"), {"canonical": rows}, setting))

    return tables


def test_reductions_of_drift_are_means_over_seeds_with_the_least_of_all(drifted):
    methods = ("vanilla", "hmcl_mr", "hmcl_ca")
    _, alone = drifted("drift", methods, seeds=(1024,))  # the other seed was stopped
    assert alone.blocks["pocket"]["hmcl_mr"]["radial"].values == pytest.approx((80,))
    tests, table = drifted("drift", methods)
    assert tests.blocks["radial"]["hmcl_mr"]["lower"].mean == 2
    rows = table.blocks["pocket"]
    assert rows["hmcl_mr"]["radial"].values == pytest.approx((90, 80))
    assert rows["hmcl_ca"]["paired_distance"].mean == pytest.approx(50)
    assert rows["both"]["least"].values == pytest.approx((50, 20))
    assert rows["both"]["most"].values == pytest.approx((95, 95))
    far, less = judge(table)
    assert (far.count, less.count) == ("3 of 8", "4 of 4")
    assert "hmcl_mr, angular, percent less: 70.00 against 81.20 (0 of 2 seeds)" in far.numbers()


def test_tasks_are_counted_by_the_median_of_their_norms(drifted):
    table, tasks = drifted("norms", ("vanilla", "hmcl_mr"))
    assert table.blocks["pocket"]["vanilla"]["text"].mean == pytest.approx(0.875)
    rows = tasks.blocks["pocket"]
    counts = {name: number.values for name, number in rows["vanilla"].items()}
    assert counts == {"text tasks": (2, 2), "text below 1": (2, 2), "text below 0.9": (1, 1)}
    assert rows["hmcl_mr"]["text below 1"].values == (1, 1)
    assert rows["hmcl_mr"]["text below 0.9"].values == (0, 1)
    shrinks, kept = judge(tasks)
    assert shrinks.holds
    assert kept.numbers() == "not: hmcl_mr, tasks, text below 0.9: 0.50 against 0 (1 of 2 seeds)"


def test_ranks_are_those_of_the_features(tmp_path):
    few = ("imagenet", "coco", "cifar10", "cifar100", "flickr30k")
    path = hmcl16_store(tmp_path / "store", "hycoclip-b", scale=1e-3, dim=6, only=few)
    store = read_store(path)
    found = protected_ranks(store, variance=0.8, min_rank=1)
    moment = np.zeros((6, 6))
    for place, name in enumerate(store.orders["canonical"][:-1]):
        arrays = store[name].arrays
        x = arrays["train_features" if "train_features" in arrays else "train_specific"]
        x = np.asarray(x, float)
        moment += x.T @ x
        energy = np.sort(np.linalg.eigvalsh(moment))[::-1]
        rank = 1 + int(np.sum(np.cumsum(energy) < 0.8 * energy.sum()))
        assert found["image"][place] == rank, name
    assert len(found["text"]) == len(store) - 1 == 4


def test_inside_means_two_of_the_papers_deviations():
    paper = Number(40.0, 0.5, 1e-3)
    near, far = (Cell("b", "m", "c", Number(x, 0.1), paper, True) for x in (40.99, 38.9))
    assert (near.inside, far.inside) == (True, False)
    assert str(near) == "40.990 ± 0.100 (paper 40.000 ± 0.500, +0.990 inside)"
    assert str(far).endswith("-1.100 **outside**)")
    elsewhere = Cell("b", "m", "c", Number(38.9, 0.1), paper, False)
    assert elsewhere.inside is Cell("b", "m", "c", Number(38.9), Number(40.0), True).inside is None
    assert "side" not in str(elsewhere)
    # Tasks of other data may have the names of the paper's.
    paper = read_tables()["tab:supp_extended_per_task"]
    row = {"mnist": Number(40.0, 1.0), "flags": Number(7.0, 1.0)}
    ours = dataclasses.replace(paper, columns=tuple(row), blocks={"pocket": {"vanilla": row}})
    assert not any(c.paper for c in side_by_side(ours, paper, "hycoclip-b", same=False))
    # Numbers are written with the paper's digits.
    assert written(Number(0.5, 0.01), Number(0.7869, None, 1e-4)) == "0.5000 ± 0.0100"
    assert written(Number(6.1e-5), Number(6.1e-5, None, 1e-6)) == "6.1e-05"
    alone = (Number(15.0, 0.44), Number(15.0), Number(1.06, 0.0012), None)
    assert [*map(written, alone)] == ["15.00 ± 0.44", "15", "1.060 ± 0.001", "-"]


def test_a_page_shows_both_numbers_and_what_is_missing():
    paper = read_tables()["tab:main_results16"]
    (table,) = shown("main", {"vanilla": result([40, 20, 60], [50, 30, 60])}, "meru-b")
    cells = side_by_side(table, paper, "hycoclip-b", same=True)
    rows = grid(cells, "meru-b")
    assert rows[0] == ["", *paper.columns]
    assert [row[0] for row in rows[1:]] == ["vanilla", *list(paper.blocks["meru-b"])[1:]]
    assert rows[1][5].startswith("40.500 ± 0.707 (paper 41.727 ± 0.222, -1.227 **outside**")
    assert rows[2][5] == "- (paper 41.909 ± 0.190)"
    maps = {"vanilla": np.array([[np.nan, -20.0]] * 2)}
    made = Section("main", "Main <b>", "meru-b", tables=((table, cells),), how="How.", maps=maps,
                   tasks=("t0", "t1"))  # fmt: skip
    gone = Section("drift", "Drift", "meru-l", "it needs --store meru-l=PATH.")
    text, page = markdown([made, gone], ABOUT), html([made, gone], ABOUT)
    for part in ("41.727", "Not made: it needs --store meru-l=PATH.", "-20.0", "outside"):
        assert part in text
        assert part in page
    assert "| w | s. | b. |" in [" ".join(line.split()) for line in text.splitlines()]
    body = page.partition("<body")[2]
    assert not re.search(r"\*\*|<b>|http", body)
    assert 'style="background: rgba(214, 39, 40, 0.20)">-20.0</td>' in body


def test_all_three_verdicts_and_their_counts_are_shown_everywhere():
    def verdict(claim, block, holds):
        return Verdict(claim, "RQ1", block, (Check(f"numbers of {block}", holds),))

    states = [("first", "a", True), ("first", "b", True), ("second", "a", True)]
    found = [verdict(*s) for s in (*states, ("second", "b", False), ("third", "a", None))]
    section = Section("main", "Main", "s", verdicts=tuple(found[:2]))
    sections = [section, dataclasses.replace(section, verdicts=tuple(found[2:]))]
    words = ["holds", "holds", "holds", "**does not hold**", "**not settled**"]
    assert [row[2] for row in verdict_rows(found)[1:]] == words
    said = "Of 3 claims 1 hold wherever they were checked, 1 do not hold; not settled: 1. Of 5 "
    for page in (markdown(sections, ABOUT), html(sections, ABOUT)):
        assert all(text in page for text in (said, "3 say: holds.", "not settled: numbers of a"))
    data = json.loads(as_json(sections, ABOUT))
    assert [c["verdict"] for c in data["claims"]] == ["holds", "does not hold", "not settled"]


def test_the_command_makes_tables_with_a_users_method(tmp_path, monkeypatch, capsys, known_methods):
    store = modalities_store(tmp_path / "store", "meru-l", only=FEW, **SMALL)
    mine = tmp_path / "mine.py"
    mine.write_text(MINE + BROKEN)
    arguments = ["modalities", "retrieval", "--store", f"meru-l-modalities={store}", *haste()]
    arguments += ["--out", tmp_path / "out", "--seeds", "42,123", "--method-file", mine]
    call(monkeypatch, *arguments, "--plan")
    assert "5 runs, about" in capsys.readouterr().out
    call(monkeypatch, *arguments)
    printed = capsys.readouterr().out
    assert "not made: modalities on meru-b-modalities, hycoclip-b-modalities: it needs" in printed
    assert "Without broken: broken failed: ValueError: so it is (mine.py, line" in printed
    for ending in ("md", "html"):
        assert "(paper 36.327 ± 0.064" in (tmp_path / "out" / f"reproduction.{ending}").read_text()
    data = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    first, second = (s for s in data["sections"] if "missing" not in s)
    methods = {"vanilla", "hmcl_mr", "hmcl_ca", "halved"}
    assert {cell["method"] for cell in first["cells"]} == methods
    assert {cell["method"] for cell in second["cells"] if cell["ours"]} == methods
    assert all(len(c["ours"]["values"]) == 2 for c in first["cells"] if c["ours"])
    # These are no runs of main: one checkpoint each is enough, and broken has none.
    steps = sorted((tmp_path / "out" / "runs").glob("*/*/*/*/steps/*"))
    assert [step.name for step in steps] == ["2"] * 4
    # Again: nothing is learned, and the numbers are the same.
    call(monkeypatch, *arguments)
    assert "task 1/2" not in capsys.readouterr().out
    again = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert again["sections"] == data["sections"]


@pytest.fixture
def few_programs(monkeypatch):
    """Pads all tasks to one size: those of a kind share a program, and compiling is what costs."""
    monkeypatch.setattr(feed, "row_capacity", lambda rows: 256)
    for module in (feed, scoring):
        monkeypatch.setattr(module, "class_capacity", lambda classes: 8)


@pytest.mark.slow
def test_every_config_runs_to_its_table_on_stores_of_the_papers_layout(
    tmp_path, monkeypatch, few_programs
):
    stores, few = [], ("imagenet", "coco", "cifar10", "flickr30k")
    for name in ("meru-l", "meru-b", "hycoclip-b"):
        only = None if name == "hycoclip-b" else few  # one stream has a table of single tasks
        tiny = {"scale": 1e-4, "dim": 8, "most_classes": 4, "only": only}
        path = hmcl16_store(tmp_path / name, name, **tiny)
        more = modalities_store(tmp_path / f"{name}-modalities", name, **{**tiny, "only": few})
        stores += ["--store", f"{name}={path}", "--store", f"{name}-modalities={more}"]
    options = [*haste("train.batch=48"), "--seeds", "42,1024", "--out", tmp_path / "out"]
    call(monkeypatch, "--all", *stores, *options)
    data = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    made = {(section["name"], section["stream"]) for section in data["sections"]}
    assert made == {(name, stream) for name in NAMES for stream in about_of(name)["streams"]}
    for section in data["sections"]:
        assert "missing" not in section, section
        assert section["cells"]
        ours = [cell["ours"]["mean"] for cell in section["cells"] if cell["ours"]]
        assert np.isfinite(ours).all(), section["name"]
        # Every number that the paper prints for these methods has one of ours beside it.
        if section["name"] not in ("ranks", "time"):
            alone = [c for c in section["cells"] if c["paper"] and not c["ours"]]
            assert not alone, (section["name"], alone[:3])
