"""The paper's tables as data: they must fit together, and the claims must hold on them."""

import dataclasses
import itertools
import tomllib

import pytest

from hmcl_jax.data.suites import SUITES
from paper.claims import CLAIMS, Check, Verdict, compare, judge, settled
from paper.published import TABLES, Number, parse_number, read_tables, spread

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
    for wrong in ("**36.3", "36,3", "", "36.3 ±"):
        with pytest.raises(ValueError, match="a number must be written"):
            parse_number(wrong)


@pytest.mark.parametrize("table", [MAIN, ORDERS], ids=["main", "orders"])
def test_overall_and_bwt_follow_from_their_parts(table):
    for block, method, row in rows(table):
        for parts, whole in ((("Acc", "R@5"), "Overall"), (("BWT_A", "BWT_R5"), "BWT")):
            mean, slack = weighted(row, *parts, (14, 2))
            assert abs(mean - row[whole].mean) <= slack, (block, method, whole)


def test_improvements_follow_from_the_rows():
    improvement = tomllib.loads((TABLES / "main.toml").read_text("utf8"))["improvement"]
    for block, printed in improvement.items():
        ca, vanilla = (MAIN.blocks[block][m] for m in ("hmcl_ca", "vanilla"))
        for column, text in zip(MAIN.columns, printed, strict=True):
            a, b = ca[column].mean, vanilla[column].mean
            found = 100 * (abs(b) - abs(a) if column.startswith("BWT") else a - b) / abs(b)
            assert abs(found - float(text)) <= 0.05 + 1e-9, (block, column)


def test_new_modalities_come_without_imagenet():
    def fits(row, tasks):
        mean, slack = weighted(row, "Acc", "R@5", tasks)
        return abs(mean - row["Overall"].mean) <= slack

    sizes = itertools.product(range(10, 17), range(2, 8))
    fitting = [tasks for tasks in sizes if all(fits(r, tasks) for _, _, r in rows(MODALITIES))]
    assert fitting == [(13, 4)]
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
            same = [row[column] for row in (placement[one], main[other], decay[other])]
            assert len({(number.mean, number.std) for number in same}) == 1
        final, top1 = placement[one]["task"].mean, hierarchy[other]["top1"].mean
        assert abs(final - top1) <= 0.0051
    for method, row in hierarchy.items():
        if method in PER_TASK:
            assert abs(row["top1"].mean - PER_TASK[method]["imagenet"].mean) <= 0.0055
    twice = PAPER["apdx:pullback_sensitivity, retention"].blocks["hycoclip-b"]
    stronger = placement["mr_post_anchor"]
    for column in ("BWT", "task"):
        assert twice["stronger"][column].mean == stronger[column].mean
    assert twice["weaker"]["BWT"] == main["hmcl_mr"]["BWT"]
    assert twice["weaker"]["task"] == hierarchy["hmcl_mr"]["top1"]
    said = PAPER["apdx:pullback_sensitivity"].blocks["hycoclip-b"]["weaker"]["Overall"]
    ratio = main["hmcl_mr"]["Overall"].mean / stronger["Overall"].mean
    assert abs(100 * (ratio - 1) - said.mean) <= said.unit / 2
    kinds = PAPER["apdx:adamw_weight_decay"].blocks["hycoclip-b"]["mr_pre"]
    mean = (14 * kinds["BWT_A"].mean + 2 * kinds["BWT_R5"].mean) / 16
    assert mean == pytest.approx(decay["mr_pre"]["BWT"].mean, abs=0.02)
    ranks = list(PAPER["apdx:imagenet_wordnet_protocol"].blocks["hycoclip-b"]["rank"].values())
    assert len(ranks) == 15
    # Those that do not agree.
    assert ranks[0].mean == 2 < 8
    assert listed("k_min = 8", "start at 2")
    assert placement["mr_pre"]["Overall"].mean != decay["mr_pre"]["Overall"].mean
    assert listed("46.397 ± 0.124", "46.400 ± 0.182", "-2.907", "-2.929")


def test_sizes_are_those_of_the_suite():
    found = PAPER["tab:datasets"].blocks["hmcl16"]
    assert found.keys() == {expected.name for expected in SUITES["hmcl16"]}
    for expected in SUITES["hmcl16"]:
        row = {column: number.mean for column, number in found[expected.name].items()}
        wanted = {"classes": expected.classes, "train": expected.train, "test": expected.test}
        assert row == wanted


# Claims about figures that the paper prints without these numbers.
DRAWN = {
    "Both variants stay closer to the task-end scores than vanilla at every stage",
    "CA has a lower mean drift than MR in every measure",
}
CLAIMED = [(label, claim) for label, claims in CLAIMS.items() for claim in claims]
JUDGED = {label: judge(table) for label, table in PAPER.items()}


def test_every_claim_holds_on_the_papers_own_numbers():
    checked = {verdict.claim for verdicts in JUDGED.values() for verdict in verdicts}
    texts = [claim.text for _, claim in CLAIMED]
    assert len(set(texts)) == len(texts)
    assert checked == set(texts) - DRAWN
    for verdicts in JUDGED.values():
        for verdict in verdicts:
            assert verdict.holds, verdict.numbers()


def outcomes(verdicts):
    """Whether each comparison holds, by claim, block and place."""
    return {(v.claim, v.block, i): c.holds for v in verdicts for i, c in enumerate(v.checks)}


@pytest.mark.parametrize("label", [label for label in CLAIMS if label in PAPER])
def test_every_comparison_of_a_claim_can_fail(label):
    """For each of them there is a number of the paper's whose change makes it fail."""
    table, failed = PAPER[label], set()
    for block, method, row in rows(table):
        for column, number in row.items():
            for value in (-1e6, 1e6):
                other = {**row, column: dataclasses.replace(number, mean=value)}
                blocks = {**table.blocks, block: {**table.blocks[block], method: other}}
                verdicts = judge(dataclasses.replace(table, blocks=blocks))
                found = outcomes(verdicts)
                failed |= {key for key, holds in found.items() if holds is False}
                lost = {key[:2] for key, holds in found.items() if holds is False}
                assert {(v.claim, v.block) for v in verdicts if not v.holds} == lost
    assert failed == outcomes(JUDGED[label]).keys()


def test_a_method_of_a_users_changes_no_verdict():
    for label, table in PAPER.items():
        for value in (-1e9, 1e9):
            mine = dict.fromkeys(table.columns, Number(value, values=(value, value)))
            blocks = {
                block: {"mr_mine": mine, **found, "mine": mine, "ca_mine": mine}
                for block, found in table.blocks.items()
            }
            assert judge(dataclasses.replace(table, blocks=blocks)) == JUDGED[label], label
            alone = judge(dataclasses.replace(table, blocks={**blocks, "mine": {"mine": mine}}))
            known = [[v for v in found if v.block in blocks] for found in (alone, JUDGED[label])]
            assert known[0] == known[1], label


def test_bwt_of_retrieval_alone_is_not_always_better():
    baselines, columns = ("vanilla", "ewc", "gem", "cflat", "dns"), ("BWT_A", "BWT_R5", "BWT")
    lost = [
        (block, *names)
        for block, found in MAIN.blocks.items()
        for names in itertools.product(("hmcl_mr", "hmcl_ca"), baselines, columns)
        if found[names[0]][names[2]].mean <= found[names[1]][names[2]].mean
    ]
    assert lost == [("meru-l", "hmcl_ca", "cflat", "BWT_R5")]
    assert listed("contributions", "-2.046", "C-FLAT -2.032")


def test_what_varies_over_the_bound_is_not_settled():
    ratio = dataclasses.replace(spread([0.9, 1.0, 1.2]), mean=1.05)
    assert [settled("x", ratio, bound).holds for bound in (1.1, 1.3, 0.8)] == [None, True, False]
    assert "1.05 (0.90 to 1.20 in 3 repeats) against 1.10" in settled("x", ratio, 1.1).text
    assert settled("x", Number(1.05, values=(1.05,)), 1.1).holds
    assert settled("x", Number(1.15), 1.1).holds is False
    verdict = Verdict("claim", "where", "block", (Check("a", None), Check("b", True)))
    assert (verdict.word, verdict.count) == ("not settled", "1 of 2")
    lost = dataclasses.replace(verdict, checks=(*verdict.checks, Check("c", False)))
    assert (lost.word, lost.numbers()) == ("does not hold", "not: c")


def test_seeds_are_counted_apart_from_the_mean():
    found = compare("x", spread([1.0, 5.0]), spread([2.0, 2.0]), lambda a, b: a > b)
    assert (found.holds, found.seeds) == (True, (1, 2))
    assert str(found) == "x 3.00 against 2.00 (1 of 2 seeds)"
