"""Verdicts on the paper's claims: three of them, and how they and their counts are shown."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

from paper import views  # noqa: E402
from paper.claims import Verdict, judge  # noqa: E402
from paper.compare import as_json, markdown, verdict_rows  # noqa: E402
from paper.comparisons import Check  # noqa: E402
from paper.page import facts, html  # noqa: E402
from paper.plan import read_item  # noqa: E402
from paper.views import Found, make_tables  # noqa: E402


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
