"""The paper's tables as data: they must fit together, and the claims must hold on them."""

import sys
import tomllib
from pathlib import Path

import pytest

from hmcl_jax.data.suites import SUITES

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "experiments"))

from paper.claims import CLAIMS, judge  # noqa: E402
from paper.tables import TABLES, parse_number, read_extra, read_tables, spread  # noqa: E402

PAPER = read_tables()
MAIN, ORDERS = PAPER["tab:main_results16"], PAPER["tab:task_order_stability"]
MODALITIES = PAPER["tab:backbone_robustness17"]
FINE = PAPER["tab:retrieval_finegrained"]
PER_TASK = PAPER["tab:supp_extended_per_task"].blocks["hycoclip-b"]
LISTED = tomllib.loads((TABLES.parent / "inconsistencies.toml").read_text("utf8"))["found"]
RETRIEVAL = ("coco", "flickr30k")


def listed(*words):
    """Whether an inconsistency is written down that has all of these words."""
    return any(all(w in f"{e['where']} {e['says']} {e['but']}" for w in words) for e in LISTED)


def rows(table):
    return [(b, m, row) for b, block in table.blocks.items() for m, row in block.items()]


def weighted(row, first, second, tasks):
    """The mean over tasks of both kinds, and how far rounding can move it."""
    a, b = row[first], row[second]
    mean = (tasks[0] * a.mean + tasks[1] * b.mean) / sum(tasks)
    return mean, (a.unit + row["Overall"].unit) / 2 + 1e-9


def test_numbers_keep_what_was_printed():
    number = parse_number("**36.300 ± 0.114**")
    assert (number.mean, number.std, number.bold) == (36.3, 0.114, True)
    assert number.unit == pytest.approx(1e-3)
    assert parse_number("6.1e-5").unit == pytest.approx(1e-6)
    assert parse_number("-10.002 ± 0.092").mean == -10.002
    assert parse_number("15").unit == 1
    for wrong in ("**36.3", "36,3", "", "36.3 ±", "x"):
        with pytest.raises(ValueError, match="a number must be written"):
            parse_number(wrong)


def test_spread_is_the_sample_deviation():
    number = spread([1.0, 2.0, 4.0])
    assert number.mean == pytest.approx(7 / 3)
    assert number.std == pytest.approx((7 / 3) ** 0.5)
    assert spread([3.0]).std is None


@pytest.mark.parametrize("table", [MAIN, ORDERS], ids=["main", "orders"])
def test_overall_and_bwt_follow_from_their_parts(table):
    for block, method, row in rows(table):
        for parts, whole in ((("Acc", "R@5"), "Overall"), (("BWT_A", "BWT_R5"), "BWT")):
            mean, slack = weighted(row, *parts, (14, 2))
            assert abs(mean - row[whole].mean) <= slack, (block, method, whole)


def test_improvements_follow_from_the_rows():
    for block, printed in read_extra("main")["improvement"].items():
        ca, vanilla = (MAIN.blocks[block][m] for m in ("hmcl_ca", "vanilla"))
        for column, text in zip(MAIN.columns, printed, strict=True):
            a, b = ca[column].mean, vanilla[column].mean
            found = 100 * (abs(b) - abs(a) if column.startswith("BWT") else a - b) / abs(b)
            assert abs(found - float(text)) <= 0.05 + 1e-9, (block, column)


def test_new_modalities_come_without_imagenet():
    fitting = set()
    for classes in range(10, 17):
        for retrieval in range(2, 8):
            checked = [
                weighted(r, "Acc", "R@5", (classes, retrieval)) for _, _, r in rows(MODALITIES)
            ]
            means = [row["Overall"].mean for _, _, row in rows(MODALITIES)]
            if all(abs(x - y) <= s for (x, s), y in zip(checked, means, strict=True)):
                fitting.add((classes, retrieval))
    assert fitting == {(13, 4)}
    assert listed("13 classification and 4 retrieval")


def test_what_is_left_for_audio_and_thermal():
    left = []
    for block, method, row in rows(FINE):
        known = sum(
            row[f"{task} {way} R@5"].mean / 2 for task in RETRIEVAL for way in ("T2I", "I2T")
        )
        left.append((4 * MODALITIES.blocks[block][method]["R@5"].mean - known) / 2)
    assert 0.75 < min(left) < max(left) < 1.2
    assert listed("0.8 to 1.2 %")


def test_tasks_average_to_the_main_table():
    for method, row in PER_TASK.items():
        assert len(row) == 16
        main = MAIN.blocks["hycoclip-b"][method]
        both = [row[task].mean for task in RETRIEVAL]
        others = [number.mean for task, number in row.items() if task not in RETRIEVAL]
        for found, column in (
            (sum(both + others) / 16, "Overall"),
            (sum(others) / 14, "Acc"),
            (sum(both) / 2, "R@5"),
        ):
            assert abs(found - main[column].mean) <= 0.0055 + 1e-9, (method, column)


def test_bold_is_best():
    odd = []
    for label, table in PAPER.items():
        if not any(number.bold for _, _, row in rows(table) for number in row.values()):
            continue
        for block, methods in table.blocks.items():
            for column in table.columns:
                sign = -1 if column in table.lower else 1
                best = max(methods, key=lambda m: sign * methods[m][column].mean)
                bold = [m for m in methods if methods[m][column].bold]
                assert best in bold, (label, block, column)
                if bold != [best]:
                    odd.append((label, column))
    assert odd == [("tab:supp_extended_per_task", "mnist")]
    assert listed("MNIST has two bold entries", "GEM 30.04", "HMCL_CA 30.49")


def test_tables_that_show_the_same_runs_agree():
    main = MAIN.blocks["hycoclip-b"]
    placement = PAPER["tab:optimizer_placement"].blocks["hycoclip-b"]
    decay = PAPER["tab:adamw_weight_decay"].blocks["decay-0"]
    hierarchy = PAPER["tab:wordnet_hierarchy"].blocks["hycoclip-b"]
    for one, other in (("vanilla", "vanilla"), ("ca_post_anchor", "hmcl_ca")):
        for column in ("Overall", "BWT"):
            same = {
                (r[column].mean, r[column].std) for r in (placement[one], main[other], decay[other])
            }
            assert len(same) == 1
        final, top1 = placement[one]["task"].mean, hierarchy[other]["top1"].mean
        assert abs(final - top1) <= 0.0051
    for method, row in hierarchy.items():
        if method in PER_TASK:
            assert abs(row["top1"].mean - PER_TASK[method]["imagenet"].mean) <= 0.0055
    # The one that does not agree.
    assert placement["mr_pre"]["Overall"].mean != decay["mr_pre"]["Overall"].mean
    assert listed("46.397 ± 0.124", "46.400 ± 0.182", "-2.907", "-2.929")


def test_the_pullback_is_the_main_row_against_the_ablation():
    chosen = MAIN.blocks["hycoclip-b"]["hmcl_mr"]["Overall"].mean
    stronger = (
        PAPER["tab:optimizer_placement"].blocks["hycoclip-b"]["mr_post_anchor"]["Overall"].mean
    )
    said = PAPER["apdx:pullback_sensitivity"].blocks["hycoclip-b"]["weaker"]["Overall"]
    assert abs(100 * (chosen - stronger) / stronger - said.mean) <= said.unit / 2


def test_ranks_start_below_the_least_rank():
    ranks = list(PAPER["apdx:imagenet_wordnet_protocol"].blocks["hycoclip-b"]["rank"].values())
    assert len(ranks) == 15
    assert ranks[0].mean == 2 < 8
    assert listed("k_min = 8", "start at 2")


def test_sizes_are_those_of_the_suite():
    found = PAPER["tab:datasets"].blocks["hmcl16"]
    assert found.keys() == {expected.name for expected in SUITES["hmcl16"]}
    for expected in SUITES["hmcl16"]:
        row = {column: number.mean for column, number in found[expected.name].items()}
        wanted = {"classes": expected.classes, "train": expected.train, "test": expected.test}
        assert row == wanted


def test_every_claim_holds_on_the_papers_own_numbers():
    judged = {label: judge(table) for label, table in PAPER.items()}
    for label in CLAIMS:
        if label == "fig:stage_task_relative_change":  # printed without numbers
            continue
        assert {verdict.claim for verdict in judged[label]} == {c[0] for c in CLAIMS[label]}
        for verdict in judged[label]:
            assert verdict.holds, verdict.numbers()


def test_every_inconsistency_says_where_and_what():
    for entry in LISTED:
        assert entry.keys() == {"where", "computed", "says", "but"}
