"""What is kept of every task: packed and unpacked, and refused in words."""

import base64
import json
import zlib

import numpy as np
import pytest
from hmcl_jax.continual.history import check_entry, pack, unpack

from hmcl_jax.continual import RunError, Schedule, TrainConfig, run_stream
from hmcl_jax.continual import history as module
from hmcl_jax.continual.run_directory import open_run, read_identity, read_note
from hmcl_jax.data.synthetic import synthetic_stream


def entry(seeds=2, t=1):
    cell = {"score": [0.1] * seeds, "top1": [1 / 3] * seeds}
    return {
        "details": [cell] * (t + 1),
        "losses": [[1.5, 0.5]] * seeds,
        "seconds": {"learn": 0.25},
        "logs": {"rank": [3.0] * seeds, "defect": [[1e-300, 2.0]] * seeds},
    }


def test_every_number_comes_back(rng):
    values = [*rng.normal(size=50).tolist(), 5e-324, -0.0, 1e308, float("inf"), 0.1]
    found = unpack(pack({"losses": values}))["losses"]
    assert np.array(found).tobytes() == np.array(values).tobytes()
    assert np.isnan(unpack(pack({"score": [float("nan")]}))["score"])


def packed(data):
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it is cut off"),
        ("*" + pack({}), "base64"),
        (pack(entry())[:-8], "it is cut off, or too large"),
        (packed(b"[1]"), "it must be an object, got .1."),
        (packed(b"{"), "Expecting"),
        (packed(b"[" * 10**5), "recursion"),
        (base64.b64encode(b"none").decode(), "header"),
        (7, "not 'int'"),
    ],
)
def test_what_is_no_entry_is_refused(text, said):
    with pytest.raises(ValueError, match=f"what is kept of a task cannot be read: .*{said}"):
        unpack(text)


def test_what_unpacks_to_too_much_is_not_unpacked(monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 1000)
    with pytest.raises(ValueError, match="too large"):
        unpack(packed(b'{"a": "' + b"x" * 1000 + b'"}'))
    assert unpack(packed(b'{"a": "' + b"x" * 900 + b'"}'))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"other": 1}, "task 2 must hold details, logs, losses, seconds, got"),
        ({"details": entry(t=0)["details"]}, "details of task 2 must be a list of 2 entries"),
        ({"details": [{"score": [1]}] * 2}, r"task 2 score must be numbers of shape \(2\), got"),
        ({"details": [{"top1": [1, 2]}] * 2}, "details of task 2 must have a score"),
        ({"details": [{"score": ["1", 2]}] * 2}, "task 2 score must be numbers, got '1'"),
        ({"details": [{"score": [10**400, 2]}] * 2}, "score must be numbers that a float can hold"),
        ({"losses": [0.1, 0.2]}, r"losses of task 2 must be numbers of shape \(2, any\)"),
        ({"seconds": {"learn": float("nan")}}, "seconds of task 2 learn must be a number, got nan"),
        ({"seconds": {"learn": "long"}}, "seconds of task 2 learn must be a number, got 'long'"),
        ({"logs": [1]}, r"logs of task 2 must be an object, got \[1\]"),
        ({"logs": {"rank": [[1], 2]}}, "logs of task 2 rank must be numbers of shape|inhomogen"),
    ],
)
def test_entries_of_another_form_are_refused(change, said):
    check_entry("task 2", entry(), seeds=2, t=1)
    with pytest.raises((ValueError, TypeError), match=said):
        check_entry("task 2", {**entry(), **change}, seeds=2, t=1)


def report(**fields):
    known = {"place": 0, "seed": 0, "task": "task1", "epoch": 1, "quantity": "loss"}
    return {**known, "modalities": ["text"], "value": 2.5, **fields}


@pytest.fixture(scope="module")
def arguments():
    store = synthetic_stream(tasks=2, classes=2, dimension=4, train=8, test=8)
    return store, ["vanilla"], [0, 1], TrainConfig(classification=Schedule(1, 0.01), batch=8)


@pytest.fixture(scope="module")
def made(arguments, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return folder, run_stream(*arguments, out=folder)["vanilla"]


def test_a_step_beyond_the_stream_is_refused(tmp_path, arguments, made):
    folder, whole = made
    with open_run(tmp_path / "vanilla", read_identity(folder / "vanilla"), resume=False) as run:
        for number in (1, 2, 3):
            run.save(number, {"params": whole.heads, "state": ()}, {})
    with pytest.raises(RunError, match=r"Step 3 is not of a run over 2 tasks.*--out"):
        run_stream(*arguments, out=tmp_path, resume=True)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda record: record["history"].pop(), "it does not tell of 2 tasks"),
        (lambda record: record["history"].reverse(), "details of task 1 must be a list of 1"),
        (lambda record: record["history"].__setitem__(1, "?"), "cannot be read"),
        (lambda record: record.pop("history"), "history"),
        (lambda record: record.update(stopped=[{"place": 2}]), "must be a list of reports"),
        (
            lambda record: record.update(stopped=[report(place=2)]),
            "must name places of seeds, got 2",
        ),
        (lambda record: record.update(stopped=[report(seed=7)]), "of this run, got seed 7"),
        (lambda record: record.update(stopped=[report(task="x")]), "of this run, got task 'x'"),
        (lambda record: record.update(stopped=[report(quantity="\ud800")]), "got quantity"),
        (lambda record: record.update(stopped=[report(value=10**400)]), "got value 1000"),
        (lambda record: record.update(stopped=[report(epoch="1")]), "got epoch '1'"),
        (lambda record: record.update(stopped=[report(modalities=["\x1b"])]), "got modalities"),
        (
            lambda record: record.update(stopped=[report(), report(place=1, seed=1)]),
            "all its seeds were stopped",
        ),
        (lambda record: record.update(history={"0": "", "1": ""}), "it does not tell of 2"),
    ],
)
def test_a_record_that_does_not_fit_stops_a_resume(tmp_path, arguments, made, edit, said):
    folder, whole = made
    record = read_note(folder / "vanilla" / "steps" / "2")["record"]
    assert json.dumps(unpack(record["history"][1])["losses"]) == json.dumps(whole.losses[1])
    edit(record)
    identity = read_identity(folder / "vanilla")
    state = {"params": whole.heads, "state": ()}  # vanilla keeps nothing else
    with open_run(tmp_path / "b" / "vanilla", identity, resume=False) as run:
        for number in (1, 2):
            run.save(number, state, record)
    with pytest.raises(RunError, match=f"record of step 2 is not of a run.*{said}.*--out"):
        run_stream(*arguments, out=tmp_path / "b", resume=True)
