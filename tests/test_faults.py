"""Runs that machines disturb: each ends as the run that nothing disturbed, or says what to do."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from hmcl_jax.data.store import write_store
from hmcl_jax.data.synthetic import synthetic_stream

TASKS = 3


class Runs:
    """The command on a small stream, in processes of its own that share compiled programs."""

    def __init__(self, folder):
        self.store, self.programs = folder / "store", folder / "programs"
        made = synthetic_stream(tasks=TASKS, classes=4, dimension=8, train=40, test=20)
        write_store(self.store, made.tasks, name="s", backbone="b", K=made.K, tau=made.tau)
        for out in (folder / "first", folder / "whole"):  # the first compiles
            start = time.monotonic()
            done = self.finish(self.start(out))
            assert done == (0, ""), done
        self.seconds, self.whole = time.monotonic() - start, results(out)

    def start(self, out):
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "hmcl_jax", "run", "--stream", str(self.store)),
                *("--methods", "hmcl_ca", "--seeds", "0,1", "--out", str(out), "--resume"),
                *("--set", "train.batch=32"),
                *("--set", "train.classification={epochs=2, learning_rate=0.02}"),
            ],
            env={
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "JAX_COMPILATION_CACHE_DIR": str(self.programs),
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process):
        _, error = process.communicate(timeout=600)
        return process.returncode, error


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return Runs(tmp_path_factory.mktemp("runs"))


def results(out):
    """Scores, losses and details of a run, and the digest of its last checkpoint."""
    found = json.loads((out / "results.json").read_text("utf8"))["methods"]["hmcl_ca"]
    last = out / "hmcl_ca" / "steps" / str(TASKS) / "_CHECKPOINT_METADATA"
    digest = json.loads(last.read_text("utf8"))["custom_metadata"]["sha256"]
    return [*(found[key] for key in ("scores", "losses", "details")), digest]


MANY = [(signal.SIGKILL, 20), (signal.SIGTERM, 4), (signal.SIGINT, 4)]


@pytest.mark.parametrize(
    ("number", "times"),
    [(signal.SIGKILL, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in MANY)],
)
def test_a_signal_at_any_moment(runs, tmp_path, number, times):
    chance = random.Random(int(number))
    for _ in range(times):
        process = runs.start(tmp_path)
        time.sleep(chance.uniform(0.2, 1) * runs.seconds)
        process.send_signal(number)
        code, error = runs.finish(process)
        assert code in (0, 130, -number), error
        assert code != 130 or "--resume" in error
    assert runs.finish(runs.start(tmp_path)) == (0, "")
    assert results(tmp_path) == runs.whole
