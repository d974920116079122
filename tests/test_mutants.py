"""The share of mutants that tests notice: its interval, and what does not count as a mutant."""

import importlib
from pathlib import Path

import pytest
from scipy.stats import binomtest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """\
def f(x: int | None, y=2) -> int | str:
    z: int | None = x
    if y != 2:
        raise ValueError(f"y must be 2, got {y + 1}; "
                         f"z is {z - 1}.")
    return y | 1
"""


@pytest.fixture
def mutants(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("mutants")


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (55, 60), (60, 60), (221, 240)])
def test_the_interval_is_wilsons(mutants, successes, trials):
    expected = binomtest(successes, trials).proportion_ci(method="wilson")
    assert mutants.wilson(successes, trials) == pytest.approx(tuple(expected), abs=1e-6)


def test_annotations_and_texts_of_errors_do_not_count(mutants):
    spans = list(mutants.unchecked(SOURCE))
    lines = SOURCE.split("\n")

    def counts(line, text):
        start = (line, lines[line - 1].index(text))
        end = (line, start[1] + len(text))
        return not any(low <= start and end <= high for low, high in spans)

    assert not counts(1, "int | None")
    assert not counts(1, "int | str")
    assert not counts(2, "int | None")
    assert not counts(4, "y + 1")
    assert not counts(5, "z - 1")
    assert counts(1, "2")
    assert counts(3, "!=")
    assert counts(6, "y | 1")


def test_every_test_that_is_named_is_there(mutants):
    for stages in mutants.TESTS.values():
        for name in (*stages["first"], *stages["then"]):
            path, _, test = name.removeprefix("--deselect=").partition("::")
            assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text("utf8")
