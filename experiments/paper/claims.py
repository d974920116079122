"""The paper's claims, checked against numbers: ours, and the paper's own.

A claim is a list of comparisons between means over seeds. It holds if all of them do; for every
comparison stands also on how many seeds it holds, as far as seeds are known.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence

from paper.tables import Number, Table

BASELINES = ("vanilla", "ewc", "gem", "cflat", "dns")
HMCL = ("hmcl_mr", "hmcl_ca")


@dataclasses.dataclass(frozen=True)
class Check:
    """One comparison.

    Attributes:
      text: with the numbers.
      holds: for the means.
      seeds: on how many seeds it holds, and of how many; None if they are not known.
    """

    text: str
    holds: bool
    seeds: tuple[int, int] | None = None


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a claim on one stream.

    Attributes:
      claim: what the paper says.
      where: in the paper.
      block: the stream, order or whatever the numbers are of.
      checks: all comparisons, at least one.
    """

    claim: str
    where: str
    block: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)

    @property
    def count(self) -> str:
        """How many comparisons hold."""
        return f"{sum(check.holds for check in self.checks)} of {len(self.checks)}"

    def numbers(self, most: int = 6) -> str:
        """The comparisons that do not hold, or, if all do, some of them."""
        failed = [check for check in self.checks if not check.holds]
        shown = failed or self.checks
        parts = [_told(check) for check in shown[:most]]
        more = f"; and {len(shown) - most} more" if len(shown) > most else ""
        return f"{'not: ' if failed else ''}{'; '.join(parts)}{more}"


def _told(check: Check) -> str:
    if check.seeds is None:
        return check.text
    return f"{check.text} ({check.seeds[0]} of {check.seeds[1]} seeds)"


def shown(value: float) -> str:
    """A number with as many digits as say something."""
    return f"{value:.2f}" if abs(value) >= 0.095 else f"{value:.2g}"


def compare(name: str, one: Number, other: Number, better: Callable[[float, float], bool]) -> Check:
    """Whether one number is better than another, in the mean and on each seed."""
    text = f"{name} {shown(one.mean)} against {shown(other.mean)}"
    seeds = None
    if len(one.values) == len(other.values) > 1:
        held = [better(a, b) for a, b in zip(one.values, other.values, strict=True)]
        seeds = (sum(held), len(held))
    return Check(text, better(one.mean, other.mean), seeds)


def beats(
    table: Table, block: str, ones: Sequence[str], others: Sequence[str], columns: Sequence[str]
) -> Iterator[Check]:
    """Comparisons of each of some methods with each of others, as far as they are in the table."""
    rows = table.blocks[block]
    for one in ones:
        for other in others:
            for column in columns:
                if one not in rows or other not in rows or column not in rows[one]:
                    continue
                name = f"{one} vs {other}, {column}:"
                pair = rows[one][column], rows[other][column]
                yield compare(name, *pair, functools.partial(table.better, column))


def limit(name: str, number: Number, bound: float, better: Callable[[float, float], bool]) -> Check:
    """Whether a number is on the right side of a bound."""
    other = Number(bound, values=(bound,) * len(number.values))
    return compare(name, number, other, better)


def above(a: float, b: float) -> bool:
    return a > b


def below(a: float, b: float) -> bool:
    return a < b


def least(a: float, b: float) -> bool:
    return a >= b


def _best_overall(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], [*BASELINES, "hmcl_mr"], ["Overall"])


def _outperform(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, BASELINES, ["Acc", "R@5", "Overall"])


def _forget_less(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla"], ["BWT_A", "BWT_R5", "BWT"])


def _dns_modest(table: Table, block: str) -> Iterator[Check]:
    rows = table.blocks[block]
    if {"dns", "vanilla", "hmcl_ca"} <= rows.keys():
        yield from beats(table, block, ["dns"], ["vanilla"], ["Overall"])
        dns, vanilla, ca = (rows[m]["Overall"] for m in ("dns", "vanilla", "hmcl_ca"))
        gains = [_minus(number, vanilla) for number in (dns, ca)]
        half = Number(gains[1].mean / 2, values=tuple(v / 2 for v in gains[1].values))
        yield compare("gain of dns against half of hmcl_ca's:", gains[0], half, below)


def _minus(one: Number, other: Number) -> Number:
    values = tuple(a - b for a, b in zip(one.values, other.values, strict=False))
    return Number(one.mean - other.mean, values=values)


def _all_columns(table: Table, block: str) -> Iterator[Check]:
    columns = ["Acc", "BWT_A", "R@5", "BWT_R5", "Overall", "BWT"]
    yield from beats(table, block, HMCL, ["vanilla"], columns)


def _new_modalities(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla"], ["Overall", "BWT"])
    yield from beats(table, block, ["hmcl_ca"], ["vanilla"], ["R@5"])


def _fine_grained(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["vanilla", "hmcl_mr"], table.columns)


def _corrected(table: Table, block: str) -> Iterator[Check]:
    ones = [m for m in table.blocks[block] if m.startswith(("mr_", "ca_"))]
    yield from beats(table, block, ones, ["vanilla"], table.columns)


def _post_over_pre(table: Table, block: str) -> Iterator[Check]:
    for variant in ("mr", "ca"):
        pair = [f"{variant}_post"], [f"{variant}_pre"]
        yield from beats(table, block, *pair, ["Overall", "BWT"])


def _anchor(table: Table, block: str) -> Iterator[Check]:
    for variant in ("mr", "ca"):
        pair = [f"{variant}_post_anchor"], [f"{variant}_post"]
        yield from beats(table, block, *pair, ["BWT", "Overall"])


def _hierarchy(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla", "ewc", "cflat", "dns"], table.columns)


def _decay_order(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["mr_pre"], ["Overall", "BWT"])
    yield from beats(table, block, ["mr_pre"], ["vanilla"], ["Overall", "BWT"])


def _decay_small(table: Table, block: str) -> Iterator[Check]:
    if block == "decay-0":
        return
    for method, row in table.blocks[block].items():
        base = table.blocks.get("decay-0", {}).get(method)
        if base is not None:
            change = abs(row["Overall"].mean - base["Overall"].mean)
            yield limit(f"{method}, change of Overall:", Number(change), 0.05, below)


def _drift(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if method in table.blocks[block]:
            row = table.blocks[block][method]
            yield limit(f"{method}, adjusted p:", row["adjusted"], 0.05, below)
            yield limit(f"{method}, tasks with less drift:", row["lower"], row["tasks"].mean, least)


def _norms(table: Table, block: str) -> Iterator[Check]:
    rows = table.blocks[block]
    for modality in table.columns:
        yield limit(f"vanilla, {modality}:", rows["vanilla"][modality], 0.95, below)
        if modality in rows.get("hmcl_mr", {}):
            kept, lost = (rows[m][modality] for m in ("hmcl_mr", "vanilla"))
            name = f"hmcl_mr vs vanilla, {modality}, nearer to 1:"
            yield compare(name, kept, lost, lambda a, b: abs(a - 1) < abs(b - 1))


def _per_task(table: Table, block: str) -> Iterator[Check]:
    rows = {m: row for m, row in table.blocks[block].items() if m in (*BASELINES, *HMCL)}
    won = 0
    for column in table.columns:
        best = max(rows, key=lambda m: rows[m][column].mean)
        won += best in HMCL
    most = len(table.columns) - 1
    yield Check(f"best on {won} of {len(table.columns)} tasks", won >= most)


def _stages(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla"], table.columns)


def _pullback(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block]["weaker"]
    yield limit("weaker pullback, Overall, percent:", row["Overall"], 0.0, above)
    yield limit("weaker pullback, Acc, percent:", row["Acc"], 0.0, above)
    yield limit("weaker pullback, R@5, percent:", row["R@5"], 0.0, below)


def _time(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if method in table.blocks[block]:
            ratio = table.blocks[block][method]["ratio"]
            yield limit(f"{method}, times vanilla:", ratio, 1.1, below)


Checker = Callable[[Table, str], Iterator[Check]]
CLAIMS: Mapping[str, tuple[tuple[str, str, Checker], ...]] = {
    "tab:main_results16": (
        ("HMCL_CA has the best Overall on every backbone", "RQ1", _best_overall),
        ("Both variants beat every baseline in Acc, R@5 and Overall", "RQ1", _outperform),
        ("Both variants forget less than vanilla", "RQ1", _forget_less),
        ("DNS improves only modestly over vanilla (read: by less than half of CA's gain)", "RQ1",
         _dns_modest),
    ),
    "tab:supp_extended_per_task": (
        ("The variants are best on all tasks but one", "appendix, per-task results", _per_task),
    ),
    "fig:stage_task_relative_change": (
        ("Both variants stay closer to the task-end scores at every stage", "RQ1", _stages),
    ),
    "tab:task_order_stability": (
        ("Both variants beat vanilla in all columns under other orders", "RQ1", _all_columns),
    ),
    "tab:backbone_robustness17": (
        ("With new modalities both variants improve Overall and BWT, CA also R@5", "RQ1",
         _new_modalities),
    ),
    "tab:retrieval_finegrained": (
        ("CA is best in every direction and at every cutoff", "RQ1", _fine_grained),
    ),
    "fig:drift_analysis": (
        ("HMCL lowers every drift, on every old task", "RQ2", _drift),
    ),
    "fig:norm_distribution": (
        ("Vanilla contracts norms (read: below 0.95), HMCL_MR keeps them", "appendix, norms",
         _norms),
    ),
    "tab:wordnet_hierarchy": (
        ("Both variants beat the baselines in accuracy and every hierarchy measure", "RQ3",
         _hierarchy),
    ),
    "tab:optimizer_placement": (
        ("Every corrected configuration beats vanilla", "RQ4", _corrected),
        ("Correcting the step (post) beats correcting the gradient (pre)", "RQ4", _post_over_pre),
        ("Anchoring improves BWT, and Overall", "RQ4", _anchor),
    ),
    "tab:adamw_weight_decay": (
        ("Vanilla < MR_pre < HMCL_CA with every weight decay", "appendix, weight decay",
         _decay_order),
        ("Weight decay up to 1e-2 changes Overall by less than 0.05", "appendix, weight decay",
         _decay_small),
    ),
    "apdx:pullback_sensitivity": (
        ("A weaker pullback gives higher Overall and Acc, lower R@5", "appendix, pullback",
         _pullback),
    ),
    "fig:clean_training_time": (
        ("HMCL takes less than 1.1 times vanilla's time", "appendix, training time", _time),
    ),
}  # fmt: skip


def judge(table: Table) -> list[Verdict]:
    """Verdicts on the claims that a table speaks to, for each of its blocks."""
    verdicts = []
    for claim, where, checker in CLAIMS.get(table.label, ()):
        for block in table.blocks:
            checks = tuple(checker(table, block))
            if checks:
                verdicts.append(Verdict(claim, where, block, checks))
    return verdicts
