"""`hmcl select` and both kinds of `hmcl sweep`: what is run, written, kept and refused."""

import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.cli import frontier, records, replay_budget, select
from hmcl_jax.continual import METHODS, ConfigError, run_stream
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.store import read_store, write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import columns
from hmcl_jax.report.figures.sweeps import Budget

CONFIGS = Path(__file__).parent.parent / "experiments" / "configs"
HASTE = ["train.classification.epochs=2", "train.batch=64"]
GRIDS = """
points = 4
[grids.vanilla]
[grids.hmcl_mr]
variance = [0.5, 0.99]
beta = [0.0, 0.5]
[grids.turn]
method = "hmcl_ca"
span = "protected"
beta = [0.0, 0.1]
[grids.turn_ambient]
method = "hmcl_ca"
row = "turn"
span = "ambient"
train.weight_decay = 0.1
beta = [0.1, 0.2]
"""


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    made = synthetic_stream(tasks=3, classes=4, dimension=8, train=64, test=64, overlap=0.9)
    path = tmp_path_factory.mktemp("stream") / "store.zip"
    write_store(path, made.tasks, name="s", backbone="synthetic", K=made.K, tau=made.tau)
    return path


@pytest.fixture
def sweep(hmcl, stream, tmp_path):
    """Runs a command on the stream; returns what its file of records holds."""

    def sweep(name, *words):
        settings = [word for setting in HASTE for word in ("--set", setting)]
        hmcl(words[0], "--stream", stream, "--out", tmp_path / "out", *settings, *words[1:])
        return json.loads((tmp_path / "out" / f"{name}.json").read_text())

    return sweep


@pytest.fixture
def call(sweep, tmp_path):
    """Runs `hmcl select`; a file of grids unless --method is given."""

    def call(*more, grids=GRIDS):
        (tmp_path / "grids.toml").write_text(grids)
        first = [] if "--method" in more else [tmp_path / "grids.toml"]
        return sweep("selection", "select", *first, *more)

    return call


@pytest.fixture
def ran(monkeypatch):
    """The grids that are run; 0.1 is the best beta, and those far away diverge."""
    labels = []

    def measure(study, job):
        labels.append(job.label)
        assert study.experiment.seeds == (42,)
        gaps = [abs(point["beta"] - 0.1) for point in job.points]
        shift = 0.5 if job.points[0].get("span") == "ambient" else 0.0
        return {
            "settings": records.full_settings(job),
            "immediate": [[math.nan if gap > 0.15 else 40.0 - gap] for gap in gaps],
            "forgetting": [[2.0 - shift] for _ in gaps],
        }

    monkeypatch.setattr(records, "measure", measure)
    return labels


def test_the_rule_is_the_largest_sum_and_the_first_of_equal_ones():
    def winner(*points):
        immediate, forgetting = np.array(points).T[:, :, None]
        betas = [{"beta": number} for number in range(len(points))]
        record = {"points": betas, "immediate": immediate, "forgetting": forgetting}
        return select.winner(record).get("beta")

    a, b, c, lost = (42.0, 2.0), (43.5, 2.5), (39.5, 0.5), (math.nan, math.nan)
    assert winner(a, b, c, lost) == winner(a, c, lost, b) == 1  # b and c have the same sum
    assert winner(lost) is None


def test_grids_and_sweeps_fit_the_methods_and_the_configs():
    grids = select.read_grids(CONFIGS / "grids.toml")
    assert {grid.given.get("method", name) for name, grid in grids.items()} == set(METHODS)
    points = {}
    for name, grid in grids.items():
        settings = records.full_settings(grid.job(name))  # refuses bad ones
        if grid.axes:
            points.setdefault(grid.row, []).extend(settings)
    assert {len(own) for own in points.values()} == {24}
    # The rows of the table are those that are chosen, with settings of a point.
    experiment = read_experiment(CONFIGS / "baselines.toml")
    assert {grid.row for grid in grids.values()} == set(experiment.methods)
    for name, table in experiment.settings.items():
        if name in points:
            (settings,) = records.full_settings(records.Job(name, name, [table], {}))
            assert settings in points[name], name
    sizes = (replay_budget.REPLAY, replay_budget.PAIRS, 16)
    jobs = {job.label: job for job in replay_budget.make_jobs(experiment.settings, *sizes)}
    assert (jobs["derpp: 64"].name, jobs["ewc: 1024"].name) == ("derpp_64", "ewc_512")
    sweeps = {name: name.removesuffix("_ambient") for name, _ in frontier.SWEEPS}
    assert set(sweeps.values()) == set(METHODS)
    for (name, setting), values in frontier.SWEEPS.items():
        assert not setting or setting in METHODS[sweeps[name]].method.sweepable
        assert bool(values) == bool(setting)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("points = 4", "must hold points = NUMBER and tables"),
        ("points = 4\n[grids.gem]\nmargin = [0.0, 0.1]", "row gem must have 4 points, got 2"),
        ("points = 1\n[grids.gem]\nmargin = [-1.0]", "margin must"),
        ("points = 1\n[grids.agem]\nrow = 'gem'", "grids.agem has nothing to choose"),
    ],
)
def test_bad_grids_are_refused(call, ran, text, message):
    with pytest.raises(SystemExit, match=message):
        call(grids=text)
    assert not ran


def test_axes_on_the_command_line(call, ran):
    axes = select.read_axes(["a=1,2", "b.c=0.5"])
    points = select.Grid("x", {}, axes).points
    assert points == [{"a": 1, "b.c": 0.5}, {"a": 2, "b.c": 0.5}]
    for wrong in ([], ["a"], ["a=1,,2"], ["a=1", "a=2"]):
        with pytest.raises(ConfigError, match="--grid"):
            select.read_axes(wrong)
    with pytest.raises(SystemExit, match=r"variance must be in \(0, 1\]"):
        call("--method", "hmcl_mr", "--grid", "beta=0.1", "--set", "methods.hmcl_mr.variance=7.0")
    assert not ran


def test_rows_that_share_a_name_are_chosen_by_the_same_rule(call, ran, tmp_path, stream, capsys):
    held = call()
    assert ran == ["hmcl_mr", "turn", "turn_ambient"]
    won = held["winners"]["turn_ambient"]
    assert (won["row"], won["beta"], won["Overall"]) == ("turn", 0.1, 38.5)
    assert held["about"]["rule"] == select.RULE
    turn = {"method": "hmcl_ca", "span": "ambient", "train": {"weight_decay": 0.1}, "beta": 0.1}
    chosen = {"vanilla": {}, "hmcl_mr": {"variance": 0.5, "beta": 0.0}, "turn": turn}
    assert held["rows"] == chosen
    experiment = read_experiment(tmp_path / "out" / "selected.toml")
    assert (experiment.settings, experiment.stream) == (chosen, str(stream))
    assert experiment.train.classification.epochs == 2
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("| turn_ambient"))
    cells = [cell.strip() for cell in line.split("|")[1:-1]]
    assert cells == ["turn_ambient", "turn", "2", "beta 0.1", "38.50", "-1.50", "37.00", "-"]
    # The best value may lie beyond the end of a grid, but not beyond 0.
    grid = select.Grid("gem", {}, {"margin": [0.0, 0.1, 2.0], "eps": [0.1, 1.0]})
    won = {"row": "gem", "eps": 1.0, "Overall": 0.0, "BWT": 0.0, "sum": 0.0}
    assert "| margin " in select.table({"gem": grid}, {"gem": {**won, "margin": 2.0}})
    assert " - |" in select.table({"gem": grid}, {"gem": {**won, "margin": 0.0}})


def test_it_continues_and_refuses(call, ran, capsys):
    call()
    del ran[:]
    with pytest.raises(SystemExit, match="exists already; choose another --out, or add --resume"):
        call()
    call("--resume")
    assert not ran
    call("--resume", grids=GRIDS.replace("variance = [0.5, 0.99]", "variance = [0.6, 0.99]"))
    assert ran == ["hmcl_mr"]
    # A grid that diverges everywhere does not stop the others.
    capsys.readouterr()
    held = call("--resume", grids=GRIDS.replace("beta = [0.0, 0.5]", "beta = [0.4, 0.5]"))
    assert "hmcl_mr" not in held["rows"]
    assert "Every point diverged: hmcl_mr." in capsys.readouterr().out


@pytest.mark.slow
def test_points_are_those_of_single_runs_and_of_the_other_form(call, stream, hmcl, tmp_path):
    held = call()
    by_option = [*("--grid", "variance=0.5,0.99"), *("--grid", "beta=0.0,0.5")]
    call("--method", "hmcl_mr", *by_option, "--out", tmp_path / "one")
    alone = json.loads((tmp_path / "one" / "selection.json").read_text())
    assert alone["rows"]["hmcl_mr"] == held["rows"]["hmcl_mr"]
    overall = records.scores(held["records"]["hmcl_mr"])[2][:, 0]
    assert records.scores(alone["records"]["hmcl_mr"])[2][:, 0] == pytest.approx(overall)
    train = read_experiment(None, HASTE, methods=["hmcl_mr"]).train
    settings = {"hmcl_mr": {"variance": 0.5, "beta": 0.5}}
    single = run_stream(read_store(stream), ["hmcl_mr"], [42], train, settings=settings)
    assert columns(single["hmcl_mr"])["Overall"][0] == pytest.approx(overall[1], abs=1e-3)
    # The chosen rows are a config, which gives the winner's score on the selection's seed.
    chosen = ["--config", tmp_path / "one" / "selected.toml", "--seeds", "0,42"]
    hmcl("run", *chosen, "--out", tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    won = held["winners"]["hmcl_mr"]["Overall"]
    assert results["methods"]["hmcl_mr"]["columns"]["Overall"][1] == pytest.approx(won, abs=1e-3)


@pytest.mark.parametrize(
    ("scores", "expected", "words"),
    [
        ([30.0, 31.0, 33.0, 34.0], 32.0, "32"),  # half of the way from 16 to 64, in log2
        ([30.0, 31.0, 31.5, 31.9], math.inf, ">256"),
        ([30.0, 32.0, 31.0, 34.0], 8.0, "<16"),
        ([32.0, 31.0, 31.0, 34.0], 0.0, "0"),
        ([30.0, 31.0, 32.5, 31.0], 16 * 4 ** (1 / 1.5), "40"),  # the first time counts
    ],
)
def test_the_pairs_that_reach_a_level_are_interpolated(scores, expected, words):
    pairs = [0, 16, 64, 256]
    found = replay_budget.crossing(pairs, np.array(scores), 32.0)
    assert found == pytest.approx(expected)
    assert replay_budget.in_words(found, pairs) == words
    if scores[0] < 32:  # a curve need not begin without pairs
        assert replay_budget.crossing(pairs[1:], np.array(scores[1:]), 32.0) == found


def test_worth_compares_means_and_each_seed_with_itself():
    overall = np.array([[30.0, 30.0], [31.0, 29.0], [33.0, 31.0], [32.0, 30.0]])
    curve = Budget("gem", [0, 16, 64, 256], overall)
    lines = {"hmcl_mr": np.array([32.0, 31.5]), "hmcl_ca": np.array([30.5, 29.0])}
    found = replay_budget.worth([curve], lines)["gem"]
    assert found["hmcl_mr"] == {
        "pairs": pytest.approx(16 * 4**0.875),  # the mean goes from 30 to 32, to 31.75
        "text": "54 (32 to >256)",
        "seeds": ["32", ">256"],
        "falls_again": True,
    }
    assert (found["hmcl_ca"]["text"], found["hmcl_ca"]["falls_again"]) == ("0 (0 to <16)", False)
    text = replay_budget.worth_table({"gem": found}, lines)
    assert "|  hmcl_mr (31.75) | hmcl_ca (29.75) |" in text
    assert "54 (32 to >256)* |" in text


def test_settings_are_those_of_the_row_with_the_nearest_pairs():
    settings = {
        "gem": {"margin": 0.1},
        "gem_64": {"method": "gem", "memory": 64, "margin": 0.2},
        "ewc": {"coefficient": 1e-3},
        "ewc_64": {"method": "ewc", "memory": 4, "coefficient": 1.0},
        "hmcl_mr": {},
        "turning": {"method": "hmcl_ca", "span": "ambient"},
    }
    jobs = replay_budget.make_jobs(settings, ["gem", "ewc", "cflat"], [8, 16, 128, 256], 16)
    found = {job.label: job.points[0] for job in jobs}
    lines, gem = ["vanilla", "hmcl_mr", "turning"], ["gem: 16", "gem: 128", "gem: 256"]
    assert list(found)[:6] == lines + gem
    assert found["gem: 128"] == {"method": "gem", "memory": 128, "margin": 0.2}
    assert found["gem: 256"] == {"margin": 0.1, "memory": 256}
    # EWC's 512 pairs are those of each of 16 tasks; one pair per task has no negatives.
    assert "ewc: 16" not in found
    assert found["ewc: 256"] == {"method": "ewc", "memory": 16, "coefficient": 1.0}
    assert (found["cflat: 0"], found["cflat: 16"]) == ({"memory": 0}, {"memory": 16})


@pytest.fixture
def measured(monkeypatch):
    """Overall 30 without pairs and a point more for every doubling; the second seed is lower."""
    labels = []

    def measure(study, job):
        labels.append(job.label)
        memory = job.points[0].get("memory", 0)
        immediate = 33.0 if "hmcl" in job.name else 30.0 + math.log2(max(memory, 4) / 4)
        immediate = math.nan if memory == 12 else immediate
        return {
            "settings": records.full_settings(job),
            "immediate": [[immediate, immediate - 0.5]],
            "forgetting": [[0.0, 0.0]],
        }

    monkeypatch.setattr(records, "measure", measure)
    return labels


def test_a_sweep_over_pairs_continues_and_refuses(tmp_path, monkeypatch, sweep, measured):
    replay = functools.partial(sweep, "replay_budget", "sweep", "replay", "--seeds", "0,1")
    held = replay("--methods", "gem", "--pairs", "2,8,12,16,64")
    # Two pairs are too few for three tasks.
    assert measured == ["vanilla", *replay_budget.HMCL, "gem: 8", "gem: 12", "gem: 16", "gem: 64"]
    assert held["worth"]["gem"]["hmcl_mr"]["pairs"] == pytest.approx(32)
    assert held["records"]["gem: 12"]["immediate"] == [[None, None]]
    lines = (tmp_path / "out" / "replay_budget.md").read_text().split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert ["gem", *["32 (32 to 32)"] * 3] in rows
    assert ["gem", "64", "33.33 %", "gem", "33.75 ± 0.35", "0.00 ± 0.00"] in rows
    assert ["gem", "12", "6.25 %", "gem", "nan", "nan"] in rows
    written = {path.suffix for path in (tmp_path / "out").iterdir()}
    assert written == {".json", ".md", ".png", ".svg"}
    del measured[:]
    monkeypatch.setattr(replay_budget, "draw_budget", lambda *_: None)  # takes most of the time
    more = ("--methods", "gem,cflat", "--pairs", "8,64", "--resume")
    held = replay(*more, "--set", "methods.gem.margin=0.2")
    assert measured == ["gem: 8", "gem: 64", "cflat: 0", "cflat: 8", "cflat: 64"]  # other settings
    assert held["worth"]["cflat"]["hmcl_ca"]["pairs"] == pytest.approx(32)
    for wrong, message in (
        (("--resume", "--set", "train.kappa=0.2"), "is of another experiment"),
        (("--methods", "hmcl_ca"), "--methods must be among gem"),
        (("--pairs", "0,16"), "--pairs must be whole numbers of at least 1, got 0"),
        (("--pairs", "few"), "2"),  # the code for wrong options
    ):
        with pytest.raises(SystemExit, match=message):
            replay(*wrong)


def test_points_that_are_beaten_are_named():
    def curve(method, forgetting, immediate):
        columns = {"forgetting": forgetting, "immediate": immediate}
        columns = {name: [[x] for x in values] for name, values in columns.items()}
        return {"method": method, "values": list(range(len(forgetting))), **columns}

    found = {
        "dns: k": curve("dns", [5.0, 1.0], [30.0, 31.0]),
        "ewc: k": curve("ewc", [3.0], [30.5]),
        "gem: k": curve("gem", [0.0], [40.0]),
    }
    beaten = [line.split("|")[-2].strip() for line in frontier.table(found).split("\n")[2:]]
    assert beaten == ["ewc: k 0", "-", "dns: k 1", "(replay)"]


def test_curves_are_kept(tmp_path, sweep, monkeypatch):
    monkeypatch.setitem(frontier.SWEEPS, ("hmcl_ca_ambient", "variance"), (0.5, 0.7, 0.8, 0.9))
    run = functools.partial(sweep, "frontier", "sweep", "frontier", "--seeds", "0,1", "--methods")
    held = run("vanilla,hmcl_ca_ambient")
    curve = held["records"]["hmcl_ca_ambient: variance"]  # a row that a config need not have
    assert np.shape(curve["forgetting"]) == (len(curve["values"]), 2)
    assert curve["programs"] < len(curve["values"])  # all values and seeds share them
    assert (tmp_path / "out" / "frontier.png").stat().st_size > 5000
    with pytest.raises(SystemExit, match="--methods must be among vanilla"):
        run("none")
