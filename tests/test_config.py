"""Settings: every mistake is named before anything runs."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.continual import METHODS, ConfigError, Schedule, TrainConfig, make_method, run_stream
from hmcl_jax.continual.config import from_mapping
from hmcl_jax.continual.experiment import SEEDS, apply_variant, read_experiment, read_order
from hmcl_jax.data.pocket import EMBEDDED
from hmcl_jax.data.synthetic import synthetic_stream

CONFIGS = Path(__file__).parent.parent / "experiments" / "configs"

VARIANTS = """
order = "seq2"
[paper]
title = "a title"
[methods.vanilla]
[methods.hmcl_mr]
beta = 0.1
[variants.small]
train.batch = 64
[variants.small.methods.hmcl_mr]
variance = 0.5
[variants.pocket.methods.ewc]
"""


def test_a_file_sets_everything(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        """
        stream = "here"
        seeds = [1, 2]
        order = "seq2"
        [train]
        batch = 64
        retrieval = {epochs = 3}
        [methods.hmcl_mr]
        beta = 0.1
        [methods.early]
        method = "hmcl_mr"
        placement = "pre"
        """
    )
    found = read_experiment(path, ["train.retrieval.learning_rate=1e-3"])
    assert (found.stream, found.seeds, found.order) == ("here", (1, 2), "seq2")
    assert (found.train.batch, found.train.retrieval.epochs) == (64, 3)
    assert found.train.retrieval.learning_rate == 1e-3
    assert found.train.classification == TrainConfig().classification
    assert found.methods == ("hmcl_mr", "early")
    assert make_method("early", found.settings["early"]).placement == "pre"
    other = read_experiment(path, methods=["vanilla"], order="seq3")
    assert (other.methods, other.order) == (("vanilla",), "seq3")


def test_a_variant_lies_on_top_of_its_file(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(VARIANTS)
    found = read_experiment(path, variant="small", stream="somewhere")
    assert found.methods == ("vanilla", "hmcl_mr")
    assert found.settings["hmcl_mr"] == {"beta": 0.1, "variance": 0.5}
    assert (found.train.batch, found.order, found.stream) == (64, "seq2", "somewhere")
    own = read_experiment(path)  # the embedded stream is the default, and has a variant
    assert own.methods == ("vanilla", "hmcl_mr", "ewc")
    assert own.train.batch == 1024
    assert read_experiment(path, stream="elsewhere").methods == ("vanilla", "hmcl_mr")
    with pytest.raises(ConfigError, match=r"one of the file's \(small, pocket\), got 'large'"):
        read_experiment(path, variant="large")
    with pytest.raises(ConfigError, match="variants must be tables by name, got 3"):
        apply_variant({"variants": 3})


def test_defaults_are_the_papers():
    found = read_experiment()
    assert found.seeds == SEEDS == (42, 123, 456, 789, 1024)
    assert found.train.batch == 1024
    assert dataclasses.astuple(found.train.classification) == (10, 5e-4)
    assert dataclasses.astuple(found.train.retrieval) == (15, 5e-5)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("train.batches=3", "train.batches is not a setting; known are batch"),
        ("train.batch=1.5", "train.batch must be of type int, got 1.5"),
        ("train.batch=1", "train: batch must be a whole number of at least 2"),
        ("train.batch=2147483648", "below 2**31, got batch = 2147483648"),
        ("train.step=task", "step must be one of epoch, minibatch, got step = 'task'"),
        ("train.classification.epochs=0", "train.classification: epochs must be"),
        ("train.classification.learning_rate=nan", "learning_rate must be positive and finite"),
        ("train.weight_decay=-1", "weight_decay must be finite and at least 0"),
        ("train.spike=1", "spike must be finite and above 1, got spike = 1"),
        ("train=3", "train must be a table, got 3"),
        ("methods.hmcl_mr.beta=1", "methods.hmcl_mr: beta must be in [0, 1), got beta = 1.0"),
        ("methods.hmcl_mr.variance=0", "variance must be in (0, 1], got variance = 0"),
        ("methods.hmcl_rotation.placement=pre", "placement must not be 'pre'"),
        ("methods.mine.beta=0", "[methods.mine] with method = one of them; got 'mine'"),
        ("methods.vanilla.beta=1", "methods.vanilla.beta is not a setting; there are none"),
        ("methods.hmcl_mr=3", "methods must be tables by name, got"),
        ("seed=3", "seed is not a setting; known are stream, seeds"),
        ("seeds=3", "seeds must be different whole numbers from 0 to 2**63 - 1, got 3"),
        ("seeds=[1, 1]", "seeds must be different whole numbers from 0 to 2**63 - 1, got [1, 1]"),
        ("seeds=[99999999999999999999]", "seeds must be different whole numbers from 0"),
        ("seeds=[-1]", "seeds must be different whole numbers from 0 to 2**63 - 1, got [-1]"),
        ("order=3", "order must be a name or a path, got 3"),
        ("train.batch", "A setting is written section.key=value, got 'train.batch'"),
    ],
)
def test_mistakes_are_named(override, said):
    with pytest.raises(ConfigError) as error:
        read_experiment(overrides=[override])
    assert said in str(error.value)


def test_unknown_methods_are_named():
    with pytest.raises(ConfigError, match=r"among vanilla, hmcl_mr.*got 'ewca'"):
        read_experiment(methods=["ewca"])
    for name in ("../up", "results.json", "a" * 65, ""):
        with pytest.raises(ConfigError, match="letters, digits, '_' or '-', at most 64"):
            make_method(name, {"method": "vanilla"})
    twice = ["methods.Vanilla.method=vanilla"]  # file systems may ignore case
    with pytest.raises(ConfigError, match="each once"):
        read_experiment(overrides=twice, methods=["vanilla", "Vanilla"])


def test_files_that_cannot_be_read(tmp_path):
    path = tmp_path / "experiment.toml"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_experiment(path)
    path.write_text("batch = = 3")
    with pytest.raises(ConfigError, match="not TOML"):
        read_experiment(path)


def test_orders_are_names_or_files(tmp_path):
    (tmp_path / "order.txt").write_text("\ufeff# mine\ntask2\n  # not this\n task1\n", "utf8")
    assert read_order(str(tmp_path / "order.txt"), ["canonical"]) == ["task2", "task1"]
    assert read_order("canonical", ["canonical"]) == "canonical"
    with pytest.raises(ConfigError, match=r"order must be one of canonical, or a file"):
        read_order("seq9", ["canonical"])


def test_whole_numbers_are_numbers_but_words_are_not():
    for value in (1, np.float64(1.0)):
        assert from_mapping(TrainConfig(), {"kappa": value}).kappa == 1.0
    for value in ("1", True, 10**400):
        with pytest.raises(ConfigError, match="kappa must be of type float, got"):
            from_mapping(TrainConfig(), {"kappa": value})


def test_a_method_may_have_its_own_training():
    with pytest.raises(ConfigError, match=r"methods\.slow\.train\.decay is not a setting"):
        make_method("slow", {"method": "vanilla", "train": {"decay": 0.1}})
    store = synthetic_stream(tasks=1, classes=4, dimension=8, train=40, test=20)
    config = TrainConfig(batch=32, classification=Schedule(2, 0.02))
    decaying = {"decaying": {"method": "vanilla", "train": {"weight_decay": 0.3}}}
    own = run_stream(store, ["vanilla", "decaying"], [0], config, settings=decaying)
    shared = run_stream(store, ["vanilla"], [0], dataclasses.replace(config, weight_decay=0.3))
    expected = shared["vanilla"].heads["image"]
    np.testing.assert_array_equal(own["decaying"].heads["image"], expected)
    assert np.abs(own["vanilla"].heads["image"] - expected).max() > 1e-3
    assert own["decaying"].settings == {"train": {"weight_decay": 0.3}}


EXPERIMENTS = sorted(path for path in CONFIGS.glob("*.toml") if path.stem != "grids")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_the_configs_are_read(path):
    experiment = read_experiment(path)
    assert experiment.stream in EMBEDDED
    if path.stem == "ablation_decay":
        decays = {t["train"]["weight_decay"] for t in experiment.settings.values()}
        assert decays == {0.0, 1e-4, 1e-3, 1e-2}
    if path.stem == "baselines":
        rows = experiment.settings.items()
        assert {table.get("method", name) for name, table in rows} == set(METHODS)
