"""How many stored pairs HMCL is worth: the interpolation, the jobs, and the command."""

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
    found = {job.label: job.points[0] for job in jobs}
    assert list(found)[:3] == ["vanilla", "hmcl_mr", "turning"]
    gem = [label for label in found if label.startswith("gem")]
    assert gem == ["gem: 16", "gem: 128", "gem: 256"]
    assert found["gem: 128"] == {"method": "gem", "memory": 128, "margin": 0.2}
    assert found["gem: 256"] == {"margin": 0.1, "memory": 256}
    # EWC's 512 pairs are those of each of 16 tasks; one pair per task has no negatives.
    assert "ewc: 16" not in found
    assert found["ewc: 256"] == {"method": "ewc", "memory": 16, "coefficient": 1.0}
    assert (found["cflat: 0"], found["cflat: 16"]) == ({"memory": 0}, {"memory": 16})
    plain = replay_budget.make_jobs({}, ["agem"], [512], 16)
    assert [job.label for job in plain] == ["vanilla", *replay_budget.HMCL, "agem: 512"]


def test_every_size_of_the_config_is_a_method():
    experiment = read_experiment(ROOT / "experiments" / "configs" / "baselines.toml")
    sizes = (replay_budget.REPLAY, replay_budget.PAIRS, 16)
    jobs = {job.label: job for job in replay_budget.make_jobs(experiment.settings, *sizes)}
    kept = {label: records.full_settings(job)[0].get("memory") for label, job in jobs.items()}
    assert (kept["derpp: 1024"], kept["ewc: 1024"]) == (1024, 64)
    rows = {"derpp: 64": "derpp_64", "ewc: 1024": "ewc_512", "hmcl_ca_ambient": "hmcl_ca_ambient"}
    assert {label: jobs[label].name for label in rows} == rows


@pytest.fixture
def call(hmcl, tmp_path, tmp_path_factory):
    """Runs `hmcl sweep replay` on a stream of three tasks."""
    made = synthetic_stream(tasks=3, classes=4, dimension=8, train=40, test=20)
    stream = tmp_path_factory.mktemp("stream") / "store.zip"
    write_store(stream, made.tasks, name="s", backbone="synthetic", K=made.K, tau=made.tau)

    def call(*more):
        words = ["--stream", stream, "--seeds", "0,1", "--out", tmp_path / "out", *more]
        words += ["--set", "train.batch=32", "--set", "train.classification.epochs=2"]
        hmcl("sweep", "replay", *words)
        return json.loads((tmp_path / "out" / "replay_budget.json").read_text())

    return call


@pytest.fixture
def ran(monkeypatch):
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


def test_the_command_continues_and_refuses(tmp_path, call, ran):
    held = call("--methods", "gem", "--pairs", "2,8,12,16,64")
    # Two pairs are too few for three tasks.
    assert ran == ["vanilla", *replay_budget.HMCL, "gem: 8", "gem: 12", "gem: 16", "gem: 64"]
    assert held["worth"]["gem"]["hmcl_mr"]["pairs"] == pytest.approx(32)
    assert held["records"]["gem: 12"]["immediate"] == [[None, None]]
    lines = (tmp_path / "out" / "replay_budget.md").read_text().split("\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert ["gem", *["32 (32 to 32)"] * 3] in rows
    assert ["gem", "64", "53.33 %", "gem", "33.75 ± 0.35", "0.00 ± 0.00"] in rows
    assert ["gem", "12", "10.00 %", "gem", "nan", "nan"] in rows
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {
        ".json",
        ".md",
        ".png",
        ".svg",
    }
    del ran[:]
    more = ("--methods", "gem,cflat", "--pairs", "8,64", "--resume")
    held = call(*more, "--set", "methods.gem.margin=0.2")
    assert ran == ["gem: 8", "gem: 64", "cflat: 0", "cflat: 8", "cflat: 64"]  # other settings
    assert held["worth"]["cflat"]["hmcl_ca"]["pairs"] == pytest.approx(32)
    for wrong, message in (
        (("--resume", "--set", "train.kappa=0.2"), "is of another experiment"),
        (("--methods", "hmcl_ca"), "--methods must be among gem"),
        (("--pairs", "0,16"), "--pairs must be whole numbers of at least 1, got 0"),
        (("--pairs", "few"), "2"),  # the code for wrong options
    ):
        with pytest.raises(SystemExit, match=message):
            call(*wrong)


@pytest.mark.slow
def test_every_method_runs_with_few_pairs(call):
    # One pair of each of three tasks, and a number that three does not divide.
    more = ("--pairs", "3,7", "--methods", "gem,derpp,cflat,ewc", "--set", "train.spike=1e9")
    held = call(*more)
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
