"""The paper's claims, checked against numbers: ours, and the paper's own.

A claim is a list of comparisons between means over seeds. It holds if all of them do; each also
says on how many seeds it holds, as far as seeds are known. It is not settled if none fails, but a
measurement varies too much to tell. Comparisons look only at rows that are the paper's: a method
that a user adds changes no verdict. What the paper says of one backbone or of its own data sets is
judged only there. Not judged is what no table shows: single pictures (the tree of primates, the
traversals), and words without a number, such as "pronounced".
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import ge, gt, le, lt
from typing import NamedTuple

from paper.published import Number, Table

WORDS = {True: "holds", False: "does not hold", None: "not settled"}
Better = Callable[[float, float], bool]


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison."""

    text: str  # with the numbers
    holds: bool | None  # for the means; None if the measurement cannot tell
    seeds: tuple[int, int] | None = None  # on how many seeds it holds, and of how many

    def __str__(self) -> str:
        seeds = f" ({self.seeds[0]} of {self.seeds[1]} seeds)" if self.seeds else ""
        return f"{self.text}{seeds}"


Checker = Callable[[Table, str], Iterator[Check]]


class Claim(NamedTuple):
    """What the paper says."""

    text: str  # in few words; how a vague one is read stands in brackets
    where: str  # in the paper
    checker: Checker  # gives the comparisons for one block of the table
    whole: bool = False  # whether it is of all blocks at once


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The outcome of a claim on one stream."""

    claim: str
    where: str  # in the paper
    block: str  # the stream, order or whatever the numbers are of
    checks: tuple[Check, ...]  # at least one

    @property
    def holds(self) -> bool | None:
        """Whether all comparisons hold; None if that is not settled."""
        return all_hold([check.holds for check in self.checks])

    @property
    def word(self) -> str:
        """Holds, does not hold, or not settled."""
        return WORDS[self.holds]

    @property
    def count(self) -> str:
        """How many comparisons hold."""
        return f"{sum(check.holds is True for check in self.checks)} of {len(self.checks)}"

    def numbers(self, most: int = 6) -> str:
        """The comparisons that do not hold, or are not settled, or, if all hold, some of them."""
        shown = [check for check in self.checks if check.holds is self.holds]
        more = f"; and {len(shown) - most} more" if len(shown) > most else ""
        before = {True: "", False: "not: ", None: "not settled: "}[self.holds]
        return f"{before}{'; '.join(map(str, shown[:most]))}{more}"


def all_hold(states: Sequence[bool | None]) -> bool | None:
    """Whether all of some comparisons hold; None if none fails, but some are not settled."""
    if any(state is False for state in states):
        return False
    return None if None in states else True


def by_claim(verdicts: Iterable[Verdict]) -> dict[str, bool | None]:
    """Whether each claim holds wherever it was checked."""
    found: dict[str, list[bool | None]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.claim, []).append(verdict.holds)
    return {claim: all_hold(states) for claim, states in found.items()}


def judge(table: Table) -> list[Verdict]:
    """Verdicts on the claims that a table speaks to, for each of its blocks."""
    verdicts = []
    for claim in CLAIMS.get(table.label, ()):
        for block in (" and ".join(table.blocks),) if claim.whole else tuple(table.blocks):
            if checks := tuple(claim.checker(table, block)):
                verdicts.append(Verdict(claim.text, claim.where, block, checks))
    return verdicts


# Comparisons of numbers.


def rounded(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def compare(name: str, one: Number, other: Number, better: Better) -> Check:
    """Whether one number is better than another, in the mean and on each seed."""
    text = f"{name} {rounded(one.mean)} against {rounded(other.mean)}"
    seeds = None
    if len(one.values) == len(other.values) > 1:
        held = [better(a, b) for a, b in zip(one.values, other.values, strict=True)]
        seeds = (sum(held), len(held))
    return Check(text, better(one.mean, other.mean), seeds)


def limit(name: str, number: Number, bound: float, better: Better) -> Check:
    """Whether a number is on the right side of a bound."""
    return compare(name, number, Number(bound, values=(bound,) * len(number.values)), better)


def settled(name: str, number: Number, bound: float) -> Check:
    """Whether a number that was measured several times is below a bound.

    Its values are here those of the repeats. If they lie on both sides of the bound, the
    measurement cannot tell. A number that is known without repeats is taken as it is.
    """
    if len(number.values) < 2:
        return limit(name, number, bound, lt)
    low, high = min(number.values), max(number.values)
    spread = f"({rounded(low)} to {rounded(high)} in {len(number.values)} repeats)"
    text = f"{name} {rounded(number.mean)} {spread} against {rounded(bound)}"
    return Check(text, None if low <= bound <= high else number.mean < bound)


# What the claims mean: checkers of one block of a table.


def wins(
    ones: Sequence[str], others: Sequence[str], columns: str = "", on: Sequence[str] = ()
) -> Checker:
    """Each of some methods beats each of others, as far as they are in the table.

    By default in all `columns`, which are separated by blanks, and `on` all blocks.
    """

    def check(table: Table, block: str) -> Iterator[Check]:
        rows = table.blocks[block] if not on or block in on else {}
        for one in ones:
            for other in others:
                for column in columns.split() or table.columns:
                    if one == other or column not in rows.get(one, {}).keys() & rows.get(other, {}):
                        continue
                    better = functools.partial(table.better, column)
                    pair = rows[one][column], rows[other][column]
                    yield compare(f"{one} vs {other}, {column}:", *pair, better)

    return check


def both(*checkers: Checker) -> Checker:
    """All comparisons of several checkers."""

    def check(table: Table, block: str) -> Iterator[Check]:
        for checker in checkers:
            yield from checker(table, block)

    return check


VANILLA, MR, CA, HMCL = ("vanilla",), ("hmcl_mr",), ("hmcl_ca",), ("hmcl_mr", "hmcl_ca")
BASELINES = ("vanilla", "ewc", "gem", "cflat", "dns")
IN_TREE = ("vanilla", "ewc", "cflat", "dns")
PLACEMENTS = ("mr_pre", "ca_pre", "mr_post", "ca_post", "mr_post_anchor", "ca_post_anchor")
DECAYED = ("vanilla", "mr_pre", "hmcl_ca")
# Who leads on which of the paper's tasks; on its ten others HMCL_CA does.
LEADERS = {
    **dict.fromkeys(("imagenet", "coco", "flickr30k", "flowers102", "sst2"), "hmcl_mr"),
    "pcam": "cflat",
}


def dns_modest(table: Table, block: str) -> Iterator[Check]:
    rows = table.blocks[block]
    if not {"dns", "vanilla", "hmcl_ca"} <= rows.keys():
        return
    base = rows["vanilla"]["Overall"]

    def gain(method: str, share: float) -> Number:
        number = rows[method]["Overall"]
        pairs = zip(number.values, base.values, strict=False)
        values = tuple(share * (a - b) for a, b in pairs)
        return Number(share * (number.mean - base.mean), values=values)

    yield from wins(("dns",), VANILLA, "Overall")(table, block)
    half = gain("hmcl_ca", 0.5)
    yield compare("gain of dns against half of hmcl_ca's:", gain("dns", 1), half, lt)


def leaders(table: Table, block: str) -> dict[str, str]:
    """The best of the paper's methods on every task."""
    rows = {m: row for m, row in table.blocks[block].items() if m in (*BASELINES, *HMCL)}
    return {c: max(rows, key=lambda m: rows[m][c].mean) for c in table.columns} if rows else {}


def per_task(table: Table, block: str) -> Iterator[Check]:
    if found := leaders(table, block):
        won = sum(leader in HMCL for leader in found.values())
        yield Check(f"best on {won} of {len(found)} tasks", won >= len(found) - 1)


def per_task_leaders(table: Table, block: str) -> Iterator[Check]:
    found = leaders(table, block)
    if found.keys() >= LEADERS.keys():
        for task, leader in found.items():
            wanted = LEADERS.get(task, "hmcl_ca")
            yield Check(f"best on {task}: {leader}, in the paper {wanted}", leader == wanted)


def lead_changes(table: Table, _: str) -> Iterator[Check]:
    """Over all orders at once: HMCL_MR has the best Overall under one, HMCL_CA under another."""
    best, texts = set(), []
    for block, rows in table.blocks.items():
        scores = {m: rows[m]["Overall"].mean for m in ("vanilla", *HMCL) if m in rows}
        if len(scores) == 3:
            leader = max(scores, key=lambda m: scores[m])
            best.add(leader)
            numbers = ", ".join(f"{m} {score:.2f}" for m, score in scores.items())
            texts.append(f"best Overall under {block}: {leader} ({numbers})")
    if len(texts) > 1:
        yield Check("; ".join(texts), best == set(HMCL))


def drift(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if row := table.blocks[block].get(method):
            yield limit(f"{method}, adjusted p:", row["adjusted"], 0.05, lt)
            yield limit(f"{method}, tasks with less drift:", row["lower"], row["tasks"].mean, ge)


def reduction(table: Table, block: str) -> Iterator[Check]:
    """Every measure of both variants; of the paper only the least of all eight is known."""
    rows = table.blocks[block]
    for method in HMCL if rows.keys() & HMCL else ("both",):
        for name, number in rows.get(method, {}).items():
            if name != "most":
                yield limit(f"{method}, {name}, percent less:", number, 81.2, ge)


def contracts(table: Table, block: str) -> Iterator[Check]:
    for modality, number in table.blocks[block].get("vanilla", {}).items():
        yield limit(f"vanilla, {modality}:", number, 0.95, lt)


def contracts_text(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("vanilla", {})
    if {"image", "text"} <= row.keys():
        yield limit("vanilla, text:", row["text"], 1.0, lt)
        yield compare("vanilla, text and image:", row["text"], row["image"], lt)


def keeps_norms(table: Table, block: str) -> Iterator[Check]:
    for modality, number in table.blocks[block].get("hmcl_mr", {}).items():
        name = f"hmcl_mr, {modality}, nearer to 1:"
        yield limit(name, number, 0.95, lambda a, b: abs(a - 1) < abs(b - 1))


def contracts_tasks(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("vanilla", {})
    for name, number in row.items():
        modality, _, kind = name.partition(" ")
        if kind == "below 1":
            bound = row[f"{modality} tasks"].mean - 1
            yield limit(f"vanilla, {modality}, tasks that shrink:", number, bound, ge)


def keeps_tasks(table: Table, block: str) -> Iterator[Check]:
    for name, number in table.blocks[block].get("hmcl_mr", {}).items():
        if name.endswith("below 0.9"):
            yield limit(f"hmcl_mr, tasks, {name}:", number, 0, le)


def decay_small(table: Table, block: str) -> Iterator[Check]:
    if block == "decay-0":
        return
    for method in DECAYED:
        row, base = (table.blocks.get(b, {}).get(method, {}) for b in (block, "decay-0"))
        for column in table.columns:
            if column in row.keys() & base.keys():
                change = Number(abs(row[column].mean - base[column].mean))
                yield limit(f"{method}, change of {column}:", change, 0.05, lt)


def decay_kinds(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("mr_pre", {})
    if {"BWT_A", "BWT_R5"} <= row.keys():
        yield compare("mr_pre, BWT_R5 and BWT_A:", row["BWT_R5"], row["BWT_A"], lt)


def pullback(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("weaker", {})
    for column, better in (("Overall", gt), ("Acc", gt), ("R@5", lt)):
        if column in row:
            yield limit(f"weaker pullback, {column}, percent:", row[column], 0.0, better)


def time(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if row := table.blocks[block].get(method):
            yield settled(f"{method}, times vanilla:", row["ratio"], 1.1)


CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "tab:main_results16": (
        Claim("HMCL_CA has the best Overall on every backbone", "RQ1",
              wins(CA, (*BASELINES, *MR), "Overall")),
        Claim("Both variants beat every baseline in Acc, R@5 and Overall", "RQ1",
              wins(HMCL, BASELINES, "Acc R@5 Overall")),
        # The column BWT, of all tasks: of retrieval alone, C-FLAT's is better than CA's on MERU-L.
        Claim("Both variants have a better BWT than every baseline", "abstract, contributions",
              wins(HMCL, BASELINES, "BWT")),
        Claim("Both variants forget less than vanilla, in classification, retrieval and overall",
              "RQ1", wins(HMCL, VANILLA, "BWT_A BWT_R5 BWT")),
        Claim("DNS improves only modestly over vanilla (read: by less than half of CA's gain)",
              "RQ1", dns_modest),
        Claim("CA has a higher Acc and Overall than MR", "RQ1", wins(CA, MR, "Acc Overall")),
        Claim("MR retrieves better than CA on MERU-L and HyCoCLIP-B, and has the best BWT on "
              "MERU-L", "RQ1", both(wins(MR, CA, "R@5", on=("meru-l", "hycoclip-b")),
                                    wins(MR, (*BASELINES, *CA), "BWT", on=("meru-l",)))),
    ),
    "tab:supp_extended_per_task": (
        Claim("The variants are best on all tasks but one", "appendix, per-task results", per_task),
        Claim("CA leads on ten classification tasks, MR on ImageNet, COCO, Flickr30K, Flowers102 "
              "and SST-2, C-FLAT on PCAM", "appendix, per-task results", per_task_leaders),
    ),
    # The mean absolute change, because "closer to their task-end reference" has no sign: in a mean
    # with signs, tasks that rise would hide others that fall.
    "fig:stage_task_relative_change": (
        Claim("Both variants stay closer to the task-end scores than vanilla at every stage",
              "RQ1", wins(HMCL, VANILLA)),
    ),
    "tab:task_order_stability": (
        Claim("Both variants beat vanilla in all columns under other orders", "RQ1",
              wins(HMCL, VANILLA, "Acc BWT_A R@5 BWT_R5 Overall BWT")),
        Claim("MR has the best Overall under one other order, CA under another", "RQ1",
              lead_changes, whole=True),
    ),
    "tab:backbone_robustness17": (
        Claim("With new modalities both variants improve Overall and BWT, CA also R@5", "RQ1",
              both(wins(HMCL, VANILLA, "Overall BWT"), wins(CA, VANILLA, "R@5"))),
        Claim("With new modalities CA retrieves better than MR", "RQ1", wins(CA, MR, "R@5")),
        Claim("With new modalities MR has the best Overall on MERU-L and MERU-B, CA on HyCoCLIP-B",
              "RQ1", both(
                  wins(MR, (*VANILLA, *CA), "Overall", ("meru-l-modalities", "meru-b-modalities")),
                  wins(CA, (*VANILLA, *MR), "Overall", ("hycoclip-b-modalities",)))),
    ),
    "tab:retrieval_finegrained": (
        Claim("CA is best in every direction and at every cutoff", "RQ1",
              wins(CA, (*VANILLA, *MR))),
    ),
    "fig:drift_analysis": (
        Claim("HMCL lowers every drift, on every old task", "RQ2", drift),
    ),
    "fig:drift_analysis, percentages": (
        Claim("HMCL lowers every mean drift by 81.2 % or more", "abstract, contributions",
              reduction),
        Claim("CA has a lower mean drift than MR in every measure", "RQ2", wins(CA, MR)),
    ),
    "fig:norm_distribution": (
        Claim("Vanilla contracts norms (read: to less than 0.95)", "appendix, norms", contracts),
        Claim("Vanilla contracts norms of text most", "appendix, norms", contracts_text),
        Claim("MR keeps norms (read: nearer to 1 than 0.95 is)", "appendix, norms", keeps_norms),
    ),
    "apdx:norm_contraction": (
        Claim("Vanilla contracts norms on all tasks but one, for every modality",
              "appendix, norms", contracts_tasks),
        Claim("With MR no task's norms shrink to less than 0.9", "appendix, norms", keeps_tasks),
    ),
    "tab:wordnet_hierarchy": (
        Claim("Both variants beat the baselines in accuracy and every hierarchy measure", "RQ3",
              wins(HMCL, IN_TREE)),
        Claim("MR is the best in accuracy and every hierarchy measure", "RQ3",
              wins(MR, (*IN_TREE, *CA))),
    ),
    "tab:optimizer_placement": (
        Claim("Every corrected configuration beats vanilla", "RQ4", wins(PLACEMENTS, VANILLA)),
        Claim("Correcting the step (post) beats correcting the gradient (pre)", "RQ4",
              both(wins(("mr_post",), ("mr_pre",)), wins(("ca_post",), ("ca_pre",)))),
        Claim("Anchoring improves BWT, the retention of one task, and Overall", "RQ4",
              both(wins(("mr_post_anchor",), ("mr_post",), "BWT task Overall"),
                   wins(("ca_post_anchor",), ("ca_post",), "BWT task Overall"))),
        Claim("Anchored CA has the best Overall of all placements, anchored MR the best BWT and "
              "retention of one task", "RQ4",
              both(wins(("ca_post_anchor",), (*VANILLA, *PLACEMENTS), "Overall"),
                   wins(("mr_post_anchor",), (*VANILLA, *PLACEMENTS), "BWT task"))),
    ),
    "tab:adamw_weight_decay": (
        Claim("Vanilla < MR_pre < HMCL_CA with every weight decay", "appendix, weight decay",
              both(wins(CA, ("mr_pre",), "Overall BWT"),
                   wins(("mr_pre",), VANILLA, "Overall BWT"))),
        Claim("Weight decay up to 1e-2 changes next to nothing (read: Overall and BWT by less than "
              "0.05)", "appendix, weight decay", decay_small),
    ),
    "apdx:adamw_weight_decay": (
        Claim("MR_pre forgets more in retrieval than in classification", "appendix, weight decay",
              decay_kinds),
    ),
    "apdx:pullback_sensitivity": (
        Claim("A weaker pullback gives higher Overall and Acc, lower R@5", "appendix, pullback",
              pullback),
    ),
    "apdx:pullback_sensitivity, retention": (
        Claim("A weaker pullback worsens BWT and the retention of one task", "appendix, pullback",
              wins(("stronger",), ("weaker",), "BWT task")),
    ),
    "fig:clean_training_time": (
        Claim("HMCL takes less than 1.1 times vanilla's time", "appendix, training time", time),
    ),
}  # fmt: skip
