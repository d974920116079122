"""How many stored pairs HMCL is worth: the interpolation, what is run, and the command."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.cli import records, replay_budget
from hmcl_jax.continual.experiment import read_experiment
from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report.figures.sweeps import Budget

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("scores", "expected", "words"),
    [
        ([30.0, 31.0, 33.0, 34.0], 32.0, "32"),  # half of the way from 16 to 64, in log2
        ([30.0, 31.0, 32.0, 34.0], 64.0, "64"),
        ([30.0, 31.0, 31.5, 31.9], math.inf, "more than 256"),
        ([30.0, 32.0, 31.0, 34.0], 8.0, "fewer than 16"),
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
    lines = {"hmcl_mr": np.array([32.0, 31.5]), "hmcl_ca": np.array([31.0, 29.0])}
    found = replay_budget.worth([curve], lines)["gem"]
    assert found["hmcl_mr"]["seeds"] == ["32", ">256"]
    assert found["hmcl_mr"]["text"] == "54 (32 to >256)"  # the mean goes from 30 to 32, to 31.75
    assert found["hmcl_mr"]["pairs"] == pytest.approx(16 * 4**0.875)
    assert found["hmcl_mr"]["falls_again"]
    assert found["hmcl_ca"]["text"] == "0 (0 to <16)" or found["hmcl_ca"]["pairs"] == 0
    assert not found["hmcl_ca"]["falls_again"]
    text = replay_budget.worth_table({"gem": found}, lines)
    assert "|  hmcl_mr (31.75) | hmcl_ca (30.00) |" in text
    assert "54 (32 to >256)* |" in text
    assert "falls below again" in text


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
    found = {job.label: job for job in jobs}
    assert list(found)[:3] == ["vanilla", "hmcl_mr", "turning"]
    assert [label for label in found if label.startswith("gem")] == [
        "gem: 16", "gem: 128", "gem: 256"
    ]  # fmt: skip
    assert found["gem: 128"].given == {"method": "gem", "memory": 128, "margin": 0.2}
    assert found["gem: 256"].given == {"margin": 0.1, "memory": 256}
    # EWC's 512 pairs are those of each of 16 tasks; one pair per task has no negatives.
    assert "ewc: 16" not in found
    assert found["ewc: 256"].given == {"method": "ewc", "memory": 16, "coefficient": 1.0}
    assert found["cflat: 0"].given == {"memory": 0}
    assert found["cflat: 16"].given == {"memory": 16}
    plain = replay_budget.make_jobs({}, ["agem"], [512], 16)
    assert [job.label for job in plain] == ["vanilla", *replay_budget.HMCL, "agem: 512"]


def test_every_size_of_the_config_is_a_method():
    experiment = read_experiment(ROOT / "experiments" / "configs" / "baselines.toml")
    jobs = replay_budget.make_jobs(
        experiment.settings, replay_budget.REPLAY, replay_budget.PAIRS, 16
    )
    settings = {job.label: records.full_settings(job.name, job.given, [{}])[0] for job in jobs}
    kept = {label: own.get("memory") for label, own in settings.items()}
    assert kept["derpp: 1024"] == 1024
    assert kept["ewc: 1024"] == 64
    assert found_row(jobs, "derpp: 64") == "derpp_64"
    assert found_row(jobs, "ewc: 1024") == "ewc_512"
    assert found_row(jobs, "hmcl_ca_ambient") == "hmcl_ca_ambient"


def found_row(jobs, label):
    (job,) = (job for job in jobs if job.label == label)
    return job.name


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    made = synthetic_stream(tasks=3, classes=4, dimension=8, train=40, test=20)
    path = tmp_path_factory.mktemp("stream") / "store.zip"
    about = {"name": made.name, "backbone": made.backbone, "K": made.K, "tau": made.tau}
    write_store(path, made.tasks, **about)
    return path


def call(hmcl, stream, out, *more):
    words = ["--stream", stream, "--seeds", "0,1", "--out", out, *more]
    words += ["--set", "train.batch=32", "--set", "train.classification.epochs=2"]
    hmcl("sweep", "replay", *words)
    return json.loads((out / "replay_budget.json").read_text())


def fake_measure(ran):
    """Overall 30 without pairs and a point more for every doubling; the second seed is lower."""

    def measure(bench, label, name, given, points):
        ran.append(label)
        memory = given.get("memory", 0) if "hmcl" not in name else 0
        immediate = 33.0 if "hmcl" in name else 30.0 + math.log2(max(memory, 4) / 4)
        immediate = math.nan if memory == 12 else immediate
        return {
            "method": name,
            "settings": records.full_settings(name, given, points),
            "immediate": [[immediate, immediate - 0.5]],
            "forgetting": [[0.0, 0.0]],
            "seconds": 0.0,
            "programs": 1,
        }

    return measure


def test_the_command_continues_and_refuses(tmp_path, monkeypatch, hmcl, stream):
    ran = []
    monkeypatch.setattr(records, "measure", fake_measure(ran))
    out = tmp_path / "out"
    held = call(hmcl, stream, out, "--methods", "gem", "--pairs", "2,8,12,16,64")
    # Two pairs are too few for three tasks.
    assert ran == ["vanilla", *replay_budget.HMCL, "gem: 8", "gem: 12", "gem: 16", "gem: 64"]
    assert held["worth"]["gem"]["hmcl_mr"]["pairs"] == pytest.approx(32)
    assert held["worth"]["gem"]["hmcl_mr"]["text"] == "32 (32 to 32)"
    assert held["records"]["gem: 12"]["immediate"] == [[None, None]]
    lines = (out / "replay_budget.md").read_text().split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert ["gem", *["32 (32 to 32)"] * 3] in rows
    assert ["gem", "64", "53.33 %", "gem", "33.75 ± 0.35", "0.00 ± 0.00"] in rows
    assert {path.suffix for path in out.iterdir()} == {".json", ".md", ".png", ".svg"}
    with pytest.raises(SystemExit, match="exists already; choose another --out"):
        call(hmcl, stream, out, "--methods", "gem")
    del ran[:]
    more = ("--methods", "gem,cflat", "--pairs", "8,64", "--resume")
    held = call(hmcl, stream, out, *more, "--set", "methods.gem.margin=0.2")
    assert ran == ["gem: 8", "gem: 64", "cflat: 0", "cflat: 8", "cflat: 64"]  # other settings
    assert held["worth"]["cflat"]["hmcl_ca"]["pairs"] == pytest.approx(32)
    with pytest.raises(SystemExit, match="is of another experiment"):
        call(hmcl, stream, out, "--resume", "--set", "train.kappa=0.2")
    for wrong, message in (
        (("--methods", "hmcl_ca"), "--methods must be among gem"),
        (("--pairs", "0,16"), "--pairs must be whole numbers of at least 1, got 0"),
        (("--pairs", "few"), "--pairs must be whole numbers of at least 1, got 'few'"),
    ):
        with pytest.raises(SystemExit, match=message):
            call(hmcl, stream, tmp_path / "other", *wrong)


@pytest.mark.slow
def test_every_method_runs_with_few_pairs(tmp_path, hmcl, stream):
    # One pair of each of three tasks, and a number that three does not divide.
    more = ("--pairs", "3,7", "--methods", "gem,derpp,cflat,ewc", "--set", "train.spike=1e9")
    held = call(hmcl, stream, tmp_path / "out", *more)
    records = held["records"]
    assert [label for label in records if ": " in label] == [
        *("gem: 3", "gem: 7", "derpp: 3", "derpp: 7", "cflat: 0", "cflat: 3", "cflat: 7"),
        "ewc: 7",
    ]
    assert records["ewc: 7"]["settings"][0]["memory"] == 2
    for label, record in records.items():
        assert np.isfinite(np.array(record["immediate"], float)).all(), label
        assert np.shape(record["forgetting"]) == (1, 2)
    assert list(held["worth"]) == ["gem", "derpp", "cflat", "ewc"]
