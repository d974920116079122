"""Mutated stores and configs: refused in our own words, or read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_directories import output

HERE = Path(__file__).parent


def fuzz(kind, seed, count):
    """Outcomes of so many cases, in a process of its own; see fuzzing.py."""
    command = [sys.executable, str(HERE / "fuzzing.py"), kind, str(seed), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    found = json.loads(output(process)[0])
    assert sum(found.values()) == count
    assert found["refused"] > count / 3
    return found


@pytest.mark.parametrize(("kind", "count"), [("store", 200), ("config", 200)])
def test_some_mutations(kind, count):
    fuzz(kind, 0, count)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    ("kind", "count"),
    [("store", 1000), ("config", 1000)],
)
def test_five_thousand_mutations(kind, count, seed):
    fuzz(kind, seed, count)
