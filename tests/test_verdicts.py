"""Verdicts on the paper's claims: three of them, and how they and their counts are shown."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hmcl_jax.evaluation.stream_drift import Drift, Norms
from paper import views
from paper.claims import Verdict, judge
from paper.compare import as_json, markdown, verdict_rows
from paper.comparisons import Check
from paper.page import facts, html
from paper.plan import read_item
from paper.views import Found, make_tables


def test_times_are_medians_and_may_not_settle_the_claim(tmp_path, monkeypatch):
    seconds = {"vanilla": [1.0, 2.0, 9.0], "hmcl_mr": [1.0, 2.1, 8.0], "hmcl_ca": [1.05, 2.4, 9.0]}
    asked = []
    monkeypatch.setattr(views, "fit_times", lambda *a, **k: asked.append(k) or seconds)
    item = read_item("time", "pocket")
    store = SimpleNamespace(fingerprint="abc")
    (table,) = make_tables(Found(item, store, {}, tmp_path))
    mr, ca = (table.blocks["pocket"][m] for m in ("hmcl_mr", "hmcl_ca"))
    assert mr["seconds"].mean == 2.1
    assert mr["ratio"].mean == 1.05
    assert mr["ratio"].values == pytest.approx((1.0, 1.05, 8 / 9))
    assert ca["ratio"].mean == 1.2
    (verdict,) = judge(table)
    assert verdict.holds is None
    assert "hmcl_ca, times vanilla: 1.20 (1.00 to 1.20 in 3 repeats) against 1.10" in (
        verdict.numbers()
    )
    # Kept: all repeats, and not measured again.
    (again,) = make_tables(Found(item, store, {}, tmp_path))
    assert again == table
    assert asked == [{"seed": 42, "stage": 3, "repeats": 9}]


def drifted(monkeypatch, name):
    """The tables of drift or norms, from numbers of two old tasks and two seeds."""
    vanilla = np.full((2, 2, 4), 10.0)
    mr, ca = vanilla * [0.1, 0.2, 0.3, 0.4], vanilla * [0.05, 0.1, 0.2, 0.5]
    mr[1] *= 2  # on the second seed
    ratios = np.array([[[0.8, 0.8, 0.95, 0.95]] * 2, [[1, 1, 0.95, 0.95], [1, 1, 0.85, 0.85]]])
    found = Drift(
        methods=("vanilla", "hmcl_mr", "hmcl_ca"),
        seeds=(42, 1024),
        tasks=("a", "b"),
        kinds=("classification",) * 2,
        anchors=(2, 2),
        values=np.array([vanilla, mr, ca]),
        cones=np.zeros((3, 2, 2, 6)),
        norms={"text": Norms(np.array([0, 0, 1, 1]), np.ones((2, 2, 4)), ratios)},
    )
    if name == "norms":
        found = dataclasses.replace(found, methods=found.methods[:2])
    monkeypatch.setattr(views, "saved", lambda *a: {})
    monkeypatch.setattr(views, "measure_drift", lambda *a, **k: found)
    rows = dict.fromkeys(found.methods, SimpleNamespace(seeds=found.seeds))
    return make_tables(Found(read_item(name, "pocket"), None, {"canonical": rows}, Path()))


def test_reductions_of_drift_are_means_over_seeds_with_the_least_of_all(monkeypatch):
    tests, table = drifted(monkeypatch, "drift")
    assert tests.blocks["radial"]["hmcl_mr"]["lower"].mean == 2
    rows = table.blocks["pocket"]
    assert rows["hmcl_mr"]["radial"].values == pytest.approx((90, 80))
    assert rows["hmcl_ca"]["paired_distance"].mean == pytest.approx(50)
    assert rows["both"]["least"].values == pytest.approx((50, 20))
    assert rows["both"]["most"].values == pytest.approx((95, 95))
    far, less = judge(table)
    assert (far.count, less.count) == ("3 of 8", "4 of 4")
    assert "hmcl_mr, angular, percent less: 70.00 against 81.20 (0 of 2 seeds)" in far.numbers()


def test_tasks_are_counted_by_the_median_of_their_norms(monkeypatch):
    table, tasks = drifted(monkeypatch, "norms")
    assert table.blocks["pocket"]["vanilla"]["text"].mean == pytest.approx(0.875)
    rows = tasks.blocks["pocket"]
    assert {name: number.values for name, number in rows["vanilla"].items()} == {
        "text tasks": (2, 2),
        "text below 1": (2, 2),
        "text below 0.9": (1, 1),
    }
    assert rows["hmcl_mr"]["text below 1"].values == (1, 1)
    assert rows["hmcl_mr"]["text below 0.9"].values == (0, 1)
    shrinks, kept = judge(tasks)
    assert shrinks.holds
    assert kept.numbers() == "not: hmcl_mr, tasks, text below 0.9: 0.50 against 0 (1 of 2 seeds)"


def test_all_three_verdicts_and_their_counts_are_shown_everywhere():
    def verdict(claim, block, holds):
        return Verdict(claim, "RQ1", block, (Check(f"numbers of {block}", holds),))

    found = [verdict("first", "a", True), verdict("first", "b", True), verdict("second", "a", True)]
    found += [verdict("second", "b", False), verdict("third", "a", None)]
    section = {"name": "main", "title": "Main", "stream": "s", "tables": [], "how": ""}
    sections = [{**section, "verdicts": found[:2]}, {**section, "verdicts": found[2:]}]
    about = {"lead": "Lead.", "inconsistencies": [], "versions": {}, "stores": {}}
    assert [row[2] for row in verdict_rows(found)[1:]] == [
        *["holds"] * 3,
        "**does not hold**",
        "**not settled**",
    ]
    name, value, more = facts(sections)[0]
    assert (name, value) == ("Claims that hold", "1 of 3")
    assert "1 not settled; 3 of 5 verdicts" in str(more)
    text = markdown(sections, about)
    assert "Of 3 claims 1 hold wherever they were checked, 1 do not hold; not settled: 1." in text
    assert "Of 5 verdicts, each of one claim" in text
    assert "3 say: holds." in text
    for page in (text, html(sections, about)):
        assert "not settled: numbers of a" in page
    data = as_json(sections, about)
    assert [c["verdict"] for c in data["claims"]] == ["holds", "does not hold", "not settled"]
    assert [v["holds"] for s in data["sections"] for v in s["verdicts"]] == [True] * 3 + [
        False,
        None,
    ]
