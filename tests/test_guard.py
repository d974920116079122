"""Numbers gone bad: one seed stops or skips, the others and the checkpoints do not notice."""

import dataclasses
import functools
import json
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from hmcl_jax.cli.progress import ProgressView
from hmcl_jax.continual import (
    BadNumbers,
    Method,
    MethodState,
    Schedule,
    TrainConfig,
    read_runs,
    run_stream,
)
from hmcl_jax.continual.guard import GuardState, halt_on_nonfinite
from hmcl_jax.continual.health import Stopped, find_stopped, load_stopped
from hmcl_jax.continual.run_directory import read_step
from hmcl_jax.data.synthetic import synthetic_stream
from hmcl_jax.report import latex_table, markdown_table, write_results

STORE = synthetic_stream(tasks=3, classes=4, dimension=8, train=40, test=20)
CONFIG = TrainConfig(classification=Schedule(2, 0.02), batch=32, seed_axis="map")
SEEDS = (3, 5, 8)


@dataclasses.dataclass(frozen=True)
class Poisoned(Method):
    """Fine-tuning in which something of seed 5 goes bad on the second task."""

    where: str = "gradient"

    def init(self, heads, task=0):
        hit = (np.array(SEEDS) == 5) & (task == 1) & (self.where == "gradient")
        bad = (np.array(SEEDS) == 5) & (task == 2) & (self.where == "state")
        kept = np.where(bad, np.inf, 1).astype(np.float32)
        return MethodState((), {"hit": jnp.asarray(hit), "kept": jnp.asarray(kept)})

    def combine(self, gradients, heads, state, num_minibatches, spec):
        text = jnp.where(state.own["hit"], jnp.nan, gradients[0]["text"])
        return {**gradients[0], "text": text}

    def end_task(self, state, heads, data):
        return self.init(heads, data.task_index + 1)


def quiet(where, config=None, **options):
    """The result of a run, and what it warns of."""
    method = Poisoned(where, name="poisoned")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = run_stream(STORE, [method], SEEDS, config or CONFIG, **options)["poisoned"]
    return result, [str(w.message) for w in caught if w.category is BadNumbers]


@pytest.fixture(scope="module")
def healthy():
    return quiet("nothing")[0]


def assert_others_equal(found, healthy):
    others = [0, 2]
    assert np.array_equal(found.scores[others], healthy.scores[others], equal_nan=True)
    for modality, W in healthy.heads.items():
        assert np.array_equal(found.heads[modality][jnp.array(others)], W[jnp.array(others)])


def assert_checkpoints_finite(out):
    for step in (1, 2, 3):
        for name, array in read_step(out / "poisoned", step).items():
            assert np.isfinite(array).all(), (step, name)


def test_a_bad_gradient_stops_one_seed(healthy, tmp_path, capsys):
    with ProgressView(("poisoned",)) as view:
        found, said = quiet("gradient", out=tmp_path, listener=view)
    assert "nan" not in capsys.readouterr().out
    assert len(said) == 1
    assert "seed 5 stopped on task 'task2', in epoch 1: the gradient of text" in said[0]
    (stopped,) = found.stopped
    assert (stopped.seed_index, stopped.quantity, stopped.modalities) == (1, "gradient", ("text",))
    assert_others_equal(found, healthy)
    assert np.array_equal(found.scores[1, 0], healthy.scores[1, 0], equal_nan=True)
    assert np.isnan(found.scores[1, 1:]).all()
    assert np.isnan(found.details[2][1]["top1"][1])
    assert_checkpoints_finite(tmp_path)
    run = read_runs(tmp_path, STORE)["poisoned"]
    assert np.isfinite(run.heads(1)["text"]).all()
    assert np.isnan(run.heads(2)["text"]).all(axis=(1, 2)).tolist() == [False, True, False]
    again, said = quiet("gradient", out=tmp_path, resume=True)
    assert not said
    assert again.stopped == found.stopped
    assert np.array_equal(again.scores, found.scores, equal_nan=True)
    table, latex, *_ = write_results(tmp_path / "tables", {"poisoned": found}, {})
    assert "poisoned: seed 5 stopped on task 'task2'" in table.read_text()
    assert "% poisoned: seed 5 stopped on task 'task2'" in latex.read_text()
    two = dataclasses.replace(
        healthy, scores=healthy.scores[[0, 2]], seeds=(3, 8), heads={}, details=[], logs=[]
    )
    for table in (markdown_table, latex_table):
        assert table({"poisoned": found}) == table({"poisoned": two})


def test_bad_steps_are_skipped_if_asked(tmp_path):
    config = dataclasses.replace(CONFIG, on_bad="skip")
    healthy, said = quiet("nothing", config)
    assert not said
    found, said = quiet("gradient", config, out=tmp_path)
    assert len(said) == 1
    assert said[0].endswith("by seed: {5: 2}.")
    assert not found.stopped
    assert np.isfinite(found.scores[np.isfinite(healthy.scores)]).all()
    assert_others_equal(found, healthy)
    assert found.scores[1, 1, 0] == found.scores[1, 0, 0]  # nothing was learned on task 2
    assert_checkpoints_finite(tmp_path)


def test_a_bad_state_stops_one_seed(healthy, tmp_path):
    found, said = quiet("state", out=tmp_path)
    assert len(said) == 1
    assert "seed 5 stopped on task 'task2', at its end: the state was not finite" in said[0]
    assert_others_equal(found, healthy)
    assert np.isnan(found.scores[1, 1:]).all()
    assert_checkpoints_finite(tmp_path)


def test_moments_that_overflow_stop_a_seed(tmp_path):
    """AdamW then makes steps of 0: finite, but nothing is learned, and infinity would be saved."""
    bad = {"entailment_weight": 1e25, "reset_optimizer": False, "spike": 1e30}
    config = dataclasses.replace(CONFIG, **bad)
    with pytest.raises(FloatingPointError, match=r"the state was not finite.*No seed is left"):
        run_stream(STORE, ["vanilla"], [0], config, out=tmp_path)
    assert not list((tmp_path / "vanilla").glob("steps/*"))


assert_equal = functools.partial(jax.tree.map, np.testing.assert_array_equal)


def steps(tx, gradients):
    W = {"a": jnp.ones(2), "b": jnp.ones(3)}
    state = tx.init(W)
    for value in gradients:
        updates, state = tx.update({"a": jnp.full(2, value), "b": jnp.ones(3)}, state, W)
        W = optax.apply_updates(W, updates)
    return W, state


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_after_a_bad_step_nothing_moves(bad):
    W, state = steps(halt_on_nonfinite(optax.adam(0.1)), [1.0, bad, 1.0])
    once, expected = steps(halt_on_nonfinite(optax.adam(0.1)), [1.0])
    assert_equal(W, once)
    assert (int(state.first), int(state.steps)) == (1, 3)
    assert {m: bool(x) for m, x in state.gradient.items()} == {"a": True, "b": False}
    assert_equal(state.inner, expected.inner)


def test_a_step_that_overflows_is_bad_though_its_gradient_is_not():
    W, state = steps(halt_on_nonfinite(optax.sgd(1e38)), [1e-38, 100.0, 1.0])
    assert np.isfinite(W["a"]).all()
    assert not state.gradient["a"]
    assert state.update["a"]
    assert int(state.first) == 1


def test_skipping_is_what_optax_does():
    gradients = [1.0, np.nan, 1.0]
    W, state = steps(halt_on_nonfinite(optax.adam(0.1), "skip"), gradients)
    expected, theirs = steps(optax.apply_if_finite(optax.adam(0.1), 100), gradients)
    assert_equal(W, expected)
    assert (int(state.skipped), int(state.first)) == (int(theirs.total_notfinite), -1) == (1, -1)
    assert_equal(state.inner, theirs.inner_state)


SKIP = dataclasses.replace(CONFIG, on_bad="skip")
FINE = (2.0, 1.0, 1.0)


def report(losses=FINE, first=-1, gradient=(), update=(), head=1.0, config=CONFIG):
    """On one seed with these losses of three epochs, of two steps each."""
    names = ("audio", "image", "text")
    seen = GuardState(
        (),
        steps=np.array([6]),
        first=np.array([first]),
        gradient={m: np.array([m in gradient]) for m in names},
        update={m: np.array([m in update]) for m in names},
        skipped=np.array([0]),
    )
    heads = {m: np.full((1, 2, 3), head, np.float32) for m in names}
    about = ((9,), "cars", ("text", "image"), config)
    return [str(one) for one in find_stopped(seen, np.array([losses]), heads, *about)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"losses": (0.1, 500.0, 1.0)}, None),
        ({"losses": (2.0, 2001.0, 1.0)}, "2: the loss of text, image rose to 2001"),
        ({"losses": (2.0, np.nan, 1.0)}, "2: the loss of text, image was not finite"),
        ({"losses": (2.0, np.nan, 1.0), "config": SKIP}, None),
        ({"first": 4, "gradient": ["text"]}, "3: the gradient of text was not finite"),
        ({"first": 1, "update": ["audio", "text"]}, "1: the step of audio, text was not finite"),
        (
            {"losses": (2.0, np.nan, 1.0), "first": 1, "gradient": ["image"]},
            "1: the gradient of image was not finite",
        ),
        ({"head": 1e10}, "3: the head of audio, image, text was too large"),
    ],
)
def test_reports_name_task_epoch_modality_and_what_was_first(arguments, said):
    assert report() == []
    expected = [] if said is None else [f"seed 9 stopped on task 'cars', in epoch {said}"]
    assert report(**arguments) == expected


def test_reports_come_back_from_their_tables():
    stopped = (Stopped(1, 5, "cars", 3, "head", ("audio", "text"), 0.5),)
    tables = json.loads(json.dumps([dataclasses.asdict(one) for one in stopped]))
    assert load_stopped(tables) == stopped
    with pytest.raises(ValueError, match="stopped of mine must be a list of reports"):
        load_stopped([{"seed_index": 0}], "stopped of mine")
