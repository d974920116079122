"""The paper's tables from runs: what is planned, how numbers become tables, and the command."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.continual import ConfigError, TrainConfig, feed, scoring
from hmcl_jax.data.store import read_store

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

from paper.claims import judge  # noqa: E402
from paper.compare import Cell, beside, cell_text, grid, markdown, written  # noqa: E402
from paper.measured import protected_ranks  # noqa: E402
from paper.page import html  # noqa: E402
from paper.plan import NAMES, about_of, known_streams, read_item, streams_of  # noqa: E402
from paper.runs import run_jobs, unique  # noqa: E402
from paper.tables import Number, read_tables  # noqa: E402
from paper.views import Found, make_tables  # noqa: E402
from paper_stores import hmcl16_store, modalities_store  # noqa: E402
from reproducing import (  # noqa: E402
    BROKEN,
    FEW,
    HASTE,
    MINE,
    SMALL,
    call,
    haste,
    result,
)

# The paper's "Reproducibility Notes", typed here a second time: rho, beta, k_min.
NOTES = {
    "meru-l": {"hmcl_mr": (0.60, 0.14, 8), "hmcl_ca": (0.65, 0.13, 8)},
    "meru-b": {"hmcl_mr": (0.70, 0.075, 8), "hmcl_ca": (0.70, 0.075, 11)},
    "hycoclip-b": {"hmcl_mr": (0.80, 0.125, 8), "hmcl_ca": (0.75, 0.15, 1)},
}


def settings_of(job):
    s = job.settings
    return s["variance"], s["beta"], s["min_rank"]


@pytest.mark.parametrize("stream", NOTES)
def test_main_has_the_papers_settings(stream):
    jobs = read_item("main", stream).jobs["canonical"]
    assert list(jobs) == ["vanilla", "ewc", "gem", "cflat", "dns", "hmcl_mr", "hmcl_ca"]
    assert {m: settings_of(jobs[m]) for m in NOTES[stream]} == NOTES[stream]
    assert jobs["hmcl_ca"].settings.get("beta_retrieval") == (0.2 if stream == "meru-b" else None)
    assert jobs["ewc"].settings == {"coefficient": 1e-4, "memory": 512}
    assert jobs["gem"].settings == {"margin": 0.5, "memory": 512}
    cflat = {"power": 1.0, "memory": 512, "rho": 0.2, "coefficient": 0.2}
    assert jobs["cflat"].settings == cflat
    for job in jobs.values():
        assert job.seeds == (42, 123, 456, 789, 1024)
        assert job.train == TrainConfig()
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
    assert placement["mr_post_anchor"].settings["beta"] == 0.2
    for label, job in placement.items():
        base = main["hmcl_mr" if label.startswith("mr") else "hmcl_ca"]
        if label != "vanilla":
            assert settings_of(base)[0::2] == (job.settings["variance"], job.settings["min_rank"])
    for stream in ("meru-l", "meru-b", "hycoclip-b"):
        jobs = read_item("modalities", f"{stream}-modalities").jobs["canonical"]
        for label in ("hmcl_mr", "hmcl_ca"):
            rho, _, least = NOTES[stream][label]
            assert settings_of(jobs[label]) == (rho, 0.015, least)
        assert jobs["vanilla"].seeds == (42, 123, 456)


@pytest.mark.parametrize("stream", ["hycoclip-b", "pocket"])
def test_tables_share_runs(stream):
    items = [read_item(n, stream) for n in NAMES if stream in (*about_of(n)["streams"], "pocket")
             and about_of(n)["pocket"] == "pocket"]  # fmt: skip
    asked = sum(len(item.needed) for item in items)
    jobs = unique(items)
    assert len(jobs) < 0.65 * asked
    by_name = {item.name: item.jobs.get("canonical", {}) for item in items}
    main, decay = by_name["main"], by_name["decay"]
    assert decay["vanilla_decay_0"].folder == main["vanilla"].folder
    assert decay["hmcl_ca_decay_0"].folder == main["hmcl_ca"].folder
    assert decay["mr_pre_decay_0"].folder == by_name["placement"]["mr_pre"].folder
    assert decay["vanilla_decay_1e-2"].folder != main["vanilla"].folder
    assert decay["vanilla_decay_1e-2"].train.weight_decay == 1e-2
    # What differs in anything is not shared.
    assert len({job.folder for job in by_name["placement"].values()}) == 7
    for change in ({"seeds": [1]}, {"overrides": ["train.batch=3"]}):
        assert read_item("main", stream, **change).jobs["canonical"]["vanilla"].folder not in jobs
    chosen = about_of("pullback", stream)["chosen"]
    assert by_name["pullback"][chosen].folder == main["hmcl_mr"].folder


def test_every_config_reads_for_its_streams_and_says_how_it_is_run():
    for name in NAMES:
        about = about_of(name)
        for stream in [*about["streams"], about["pocket"]]:
            item = read_item(name, stream)
            assert item.needed or about["show"] in ("ranks", "time")
        text = (ROOT / "experiments" / "configs" / "paper" / f"{name}.toml").read_text()
        for word in (f"reproduce.py {name} ", "--stream pocket", "Needs", "osts:", "Expect:"):
            assert word in text.partition("\n[")[0], (name, word)
    with pytest.raises(ConfigError, match="NAME must be one of main"):
        about_of("mian")


def test_streams_that_are_missing_are_named():
    there, missing = streams_of("main", {"meru-b": "somewhere"}, pocket=False)
    assert (there, missing) == (["meru-b"], ["meru-l", "hycoclip-b"])
    assert streams_of("modalities", {}, pocket=True) == (["pocket-modalities"], [])
    assert "hycoclip-b-modalities" in known_streams()


def shown(name, results, stream="pocket", about=()):
    item = read_item(name, stream)
    item = type(item)(name, stream, {**item.about, **dict(about)}, item.jobs)
    return make_tables(Found(item, None, {"canonical": results}, Path()))


def means(table, block, method):
    return {c: pytest.approx(n.mean) for c, n in table.blocks[block][method].items()}


def test_columns_and_tasks_from_results():
    made = {"vanilla": result([40, 20, 60], [50, 30, 60])}
    (table,) = shown("main", made)
    found = means(table, "pocket", "vanilla")
    # The second seed is one point higher at the end; the last task has no backward transfer.
    assert found["Acc"] == 30.5
    assert found["R@5"] == 60.5
    assert found["Overall"] == 40.5
    assert found["BWT"] == (-9.5 - 9.5 + 0) / 3
    assert table.blocks["pocket"]["vanilla"]["Overall"].std == pytest.approx(0.5**0.5)
    (table,) = shown("per_task", made)
    assert means(table, "pocket", "vanilla") == {"t0": 40.5, "t1": 20.5, "t2": 60.5}


def test_stages_are_judged_by_how_far_scores_are_off_in_either_direction():
    made = {
        "vanilla": result([40, 24, 60], [50, 30, 60]),
        "hmcl_mr": result([70, 21, 60], [50, 30, 60]),  # one up by 40 %, one down by 30 %
        "hmcl_ca": result([55, 30, 60], [50, 30, 60]),
    }
    table, signed = shown("stages", made)
    assert means(table, "pocket", "vanilla") == {"after 2": 0, "after 3": 20}
    assert means(signed, "pocket", "vanilla") == {"after 2": 0, "after 3": -20}
    assert means(table, "pocket", "hmcl_mr")["after 3"] == 35
    assert means(signed, "pocket", "hmcl_mr")["after 3"] == 5
    (verdict,) = judge(dataclasses.replace(table, columns=("after 3",)))
    assert verdict.numbers() == "not: hmcl_mr vs vanilla, after 3: 35.00 against 20.00"
    assert verdict.count == "1 of 2"
    assert judge(signed) == []


def test_retrieval_in_both_directions():
    (table,) = shown("retrieval", {"vanilla": result([1, 1, 1], [1, 1, 1])}, "pocket-modalities")
    found = means(table, "pocket-modalities", "vanilla")
    assert found["t2 T2I R@5"] == 5
    assert found["t2 I2T R@10"] == 20
    assert len(found) == 6


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
    about = {"task": "t1"}
    made = shown("pullback", {"mr_beta_0050": one, "mr_beta_0080": other}, about=about)
    table, retained, sweep = made
    found = means(table, "pocket", "weaker")
    assert found["R@5"] == 100 * ((60 - 75) / 75 + (61 - 76) / 76) / 2
    assert found["Acc"] == 100 * ((30 - 20) / 20 + (31 - 21) / 21) / 2
    assert list(sweep.blocks["pocket"]) == ["mr_beta_0050", "mr_beta_0080"]
    assert means(retained, "pocket", "weaker") == {"BWT": (-9.5 - 9.5) / 3, "task": 20.5}
    assert means(retained, "pocket", "stronger") == {"BWT": (-19.5 - 19.5) / 3, "task": 10.5}
    (worse,) = judge(retained)
    assert not worse.holds  # here the weaker one retains more
    with pytest.raises(ConfigError, match="no task 'qd-animals'"):
        shown("pullback", {"mr_beta_0050": one, "mr_beta_0080": other})


def test_a_claim_that_fails_says_so_with_numbers_and_seeds():
    made = {name: result([40, 20, 60], [50, 30, 60]) for name in ("vanilla", "gem")}
    made |= {name: result([45, 25, 59], [45, 25, 59]) for name in ("hmcl_mr", "hmcl_ca")}
    (table,) = shown("main", made)
    verdicts = {verdict.claim: verdict for verdict in judge(table)}
    lost = verdicts["Both variants beat every baseline in Acc, R@5 and Overall"]
    assert not lost.holds
    assert lost.count == "8 of 12"
    assert "not: hmcl_mr vs vanilla, R@5: 59.50 against 60.50 (0 of 2 seeds)" in lost.numbers()
    best = verdicts["HMCL_CA has the best Overall on every backbone"]
    assert not best.holds  # it only equals hmcl_mr


def test_inside_means_two_of_the_papers_deviations():
    paper = Number(40.0, 0.5, 1e-3)
    near, far = (Cell("b", "m", "c", Number(x, 0.1), paper, True) for x in (40.99, 38.9))
    assert near.inside is True
    assert far.inside is False
    assert cell_text(near) == "40.990 ± 0.100<br>paper 40.000 ± 0.500, +0.990 inside"
    assert cell_text(far).endswith("-1.100 **outside**")
    elsewhere = Cell("b", "m", "c", Number(38.9, 0.1), paper, False)
    assert elsewhere.inside is None
    assert "side" not in cell_text(elsewhere)
    assert Cell("b", "m", "c", Number(38.9), Number(40.0), True).inside is None


def test_numbers_are_written_with_the_papers_digits():
    printed = Number(0.7869, None, 1e-4)
    assert written(Number(0.5, 0.01), printed) == "0.5000 ± 0.0100"
    assert written(Number(15.0, 0.44)) == "15.00 ± 0.44"
    assert written(Number(15.0)) == "15"
    assert written(Number(1.06, 0.0012)) == "1.060 ± 0.001"
    assert written(Number(6.1e-5), Number(6.1e-5, None, 1e-6)) == "6.1e-05"
    assert written(None) == "-"


def test_other_data_have_no_papers_number_for_tasks_of_the_same_name():
    paper = read_tables()["tab:supp_extended_per_task"]
    row = {"mnist": Number(40.0, 1.0), "flags": Number(7.0, 1.0)}
    ours = dataclasses.replace(paper, columns=tuple(row), blocks={"pocket": {"vanilla": row}})
    cells = beside(ours, paper, "hycoclip-b", same=False)
    assert [(cell.column, cell.paper) for cell in cells] == [("mnist", None), ("flags", None)]


def test_a_page_shows_both_numbers_and_what_is_missing():
    paper = read_tables()["tab:main_results16"]
    made = {"vanilla": result([40, 20, 60], [50, 30, 60])}
    (table,) = shown("main", made, "meru-b")
    cells = beside(table, paper, "hycoclip-b", same=True)
    rows = grid(cells, "meru-b")
    assert rows[0] == ["", *paper.columns]
    assert [row[0] for row in rows[1:]] == ["vanilla", *list(paper.blocks["meru-b"])[1:]]
    assert rows[1][5].startswith("40.500 ± 0.707<br>paper 41.727 ± 0.222, -1.227 **outside**")
    assert rows[2][5] == "-<br>paper 41.909 ± 0.190"
    section = {"title": "Main", "stream": "meru-b", "tables": [(table, cells)], "how": "How."}
    gone = {"title": "Drift", "stream": "meru-l", "missing": "it needs --store meru-l=PATH."}
    about = {"lead": "Lead.", "inconsistencies": [{"where": "w", "says": "s.", "but": "b."}]}
    about |= {"versions": {"jax": "1"}, "stores": {"meru-b": "abc"}}
    section["maps"], section["tasks"] = {"vanilla": np.array([[0.0, -20.0]] * 2)}, ["t0", "t1"]
    shown_in = html([section, gone], about)
    for part in ("41.727", "Not made: it needs --store meru-l=PATH.", "t0, t1", "outside"):
        assert part in shown_in
    assert "**" not in shown_in.partition("<body")[2].partition("<script")[0]
    page = markdown([section, gone], about)
    for part in ("41.727", "Not made: it needs --store meru-l=PATH.", "- w. s. But: b."):
        assert part in page


def test_ranks_are_those_of_the_features(tmp_path):
    store = read_store(hmcl16_store(tmp_path / "store", "hycoclip-b", scale=1e-3, dim=6))
    found = protected_ranks(store, variance=0.8, min_rank=1)
    moment = np.zeros((6, 6))
    for place, name in enumerate(store.orders["canonical"][:-1]):
        arrays = store[name].arrays
        x = arrays["train_features" if "train_features" in arrays else "train_specific"]
        times = 1 if "train_features" in arrays else 5  # captions of each picture
        x = np.asarray(x, float)
        moment += times * x.T @ x
        energy = np.sort(np.linalg.eigvalsh(moment))[::-1]
        rank = 1 + int(np.sum(np.cumsum(energy) < 0.8 * energy.sum()))
        assert found["image"][place] == rank, name
    assert len(found["text"]) == 15


def test_the_command_makes_tables_with_a_users_method(tmp_path, monkeypatch, capsys, known_methods):
    store = modalities_store(tmp_path / "store", "meru-l", only=FEW, **SMALL)
    mine = tmp_path / "mine.py"
    mine.write_text(MINE + BROKEN)
    arguments = ["modalities", "retrieval", "--store", f"meru-l-modalities={store}", *haste()]
    arguments += ["--out", tmp_path / "out", "--seeds", "42,123", "--method-file", mine]
    call(monkeypatch, *arguments, "--plan")
    assert "5 runs, about" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    call(monkeypatch, *arguments)
    told = capsys.readouterr().out
    assert "not made: modalities on meru-b-modalities, hycoclip-b-modalities: it needs" in told
    page = (tmp_path / "out" / "reproduction.md").read_text()
    assert "36.327" in (tmp_path / "out" / "reproduction.html").read_text()
    assert page.count("halved") >= 2
    assert "paper 36.327 ± 0.064" in page
    assert "Without broken: broken failed: ValueError: so it is (mine.py, line" in page
    assert "Without broken: broken failed: ValueError: so it is" in told
    data = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    first, second = (s for s in data["sections"] if "missing" not in s)
    assert {cell["method"] for cell in first["cells"]} == {
        "vanilla",
        "hmcl_mr",
        "hmcl_ca",
        "halved",
    }
    assert any(cell["method"] == "halved" and cell["ours"] for cell in second["cells"])
    assert all(len(c["ours"]["values"]) == 2 for c in first["cells"] if c["ours"])
    assert first["verdicts"]
    # These are no runs of main: one checkpoint each is enough.
    steps = sorted((tmp_path / "out" / "runs").glob("*/*/*/*/steps/*"))
    assert [step.name for step in steps] == ["2"] * 4  # broken has none
    # Again: nothing is learned, and the numbers are the same.
    call(monkeypatch, *arguments)
    assert "task 1/2" not in capsys.readouterr().out
    again = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    assert again["sections"] == data["sections"]


def test_a_run_that_was_stopped_goes_on(tmp_path):
    store = read_store(modalities_store(tmp_path / "store", "meru-l", only=FEW, **SMALL))
    item = read_item("modalities", "meru-l-modalities", HASTE, seeds=[42])
    jobs = {f: j for f, j in unique([item]).items() if j.method == "vanilla"}
    stores, seen = {"meru-l-modalities": store}, []

    def stop(event):
        if event.kind == "scores" and event.number == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, stores, tmp_path / "out", stop)
    results, failures = run_jobs(jobs, stores, tmp_path / "out", seen.append)
    assert not failures
    assert [event.number for event in seen if event.kind == "task"] == list(range(1, 2))
    assert np.isfinite(next(iter(results.values())).scores[0, -1]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["main", "--store", "meru-x=p"], "--store is written NAME=PATH"),
        (["main", "--store", "meru-l"], "--store is written NAME=PATH"),
        (["main", "--store", "meru-l=nowhere"], "--store meru-l=nowhere: there is nothing at"),
        (["main", "--store", "meru-l=pocket"], "--store meru-l=pocket: there is nothing at"),
        (["orders", "--store", "meru-l=p"], "it needs --store hycoclip-b=PATH"),
        (["mian", "--stream", "pocket"], "NAME must be one of main"),
        (["main", "--stream", "pocket", "--seeds", "a"], "--seeds must be whole numbers"),
        (["main", "--stream", "pocket", "--set", "train.bath=3"], "bath is not a setting"),
        (["main", "--stream", "pocket", "--method-file", "no.py"], "must be a Python file"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(tmp_path, monkeypatch, arguments, message):
    with pytest.raises(SystemExit) as stopped:
        call(monkeypatch, *arguments, "--out", tmp_path / "out")
    assert message in str(stopped.value)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def few_programs(monkeypatch):
    """Pads all tasks to one size: those of a kind share a program, and compiling is what costs."""
    monkeypatch.setattr(feed, "row_capacity", lambda rows: 16384)
    for module in (feed, scoring):
        monkeypatch.setattr(module, "class_capacity", lambda classes: 1024)


@pytest.mark.slow
def test_every_config_runs_to_its_table_on_stores_of_the_papers_layout(
    tmp_path, monkeypatch, few_programs
):
    stores = []
    for seed, name in enumerate(("meru-l", "meru-b", "hycoclip-b")):
        path = hmcl16_store(tmp_path / name, name, seed=seed, dim=32)  # 1/100 of the pictures
        more = modalities_store(tmp_path / f"{name}-modalities", name, seed=seed, dim=32)
        stores += ["--store", f"{name}={path}", "--store", f"{name}-modalities={more}"]
    options = [*haste("train.batch=48"), "--seeds", "42,1024", "--out", tmp_path / "out"]
    call(monkeypatch, "--all", *stores, *options)
    data = json.loads((tmp_path / "out" / "reproduction.json").read_text())
    made = {(section["name"], section["stream"]) for section in data["sections"]}
    assert made == {(name, stream) for name in NAMES for stream in about_of(name)["streams"]}
    for section in data["sections"]:
        assert "missing" not in section, section
        assert section["cells"]
        for cell in section["cells"]:
            if cell["ours"] is not None:
                assert np.isfinite(cell["ours"]["mean"]), (section["name"], cell)
        # Every number that the paper prints for these methods has one of ours beside it.
        if section["name"] not in ("ranks", "time"):
            alone = [c for c in section["cells"] if c["paper"] and not c["ours"]]
            assert not alone, (section["name"], alone[:3])


def test_settings_of_an_added_method_are_kept():
    plain, given = (
        read_item("main", "pocket", overrides, ["agem"]).jobs["canonical"]["agem"]
        for overrides in ([], ["methods.agem.memory=64"])
    )
    assert dict(given.settings) == {"memory": 64}
    assert plain.folder != given.folder
