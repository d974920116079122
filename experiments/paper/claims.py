"""The paper's claims, checked against numbers: ours, and the paper's own.

A claim is a list of comparisons between means over seeds. It holds if all of them do; for every
comparison stands also on how many seeds it holds, as far as seeds are known. It is not settled if
none fails, but a measurement varies too much to tell. What the paper says of one backbone or of its
own data sets is judged only there. Not judged is what no table shows: single pictures (the tree of
primates, the traversals), and words without a number, such as "pronounced".
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from paper import checkers
from paper.comparisons import Check, all_hold
from paper.tables import Table

WORDS = {True: "holds", False: "does not hold", None: "not settled"}


class Claim(NamedTuple):
    """What the paper says.

    Attributes:
      text: in few words; how a vague one is read stands in brackets.
      where: in the paper.
      checker: gives the comparisons for one block of the table.
      whole: whether it is of all blocks at once.
    """

    text: str
    where: str
    checker: Callable[[Table, str], Iterator[Check]]
    whole: bool = False


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
        parts = [check.told() for check in shown[:most]]
        more = f"; and {len(shown) - most} more" if len(shown) > most else ""
        before = {True: "", False: "not: ", None: "not settled: "}[self.holds]
        return f"{before}{'; '.join(parts)}{more}"


def by_claim(verdicts: Iterable[Verdict]) -> dict[str, bool | None]:
    """Whether each claim holds wherever it was checked."""
    found: dict[str, list[bool | None]] = {}
    for verdict in verdicts:
        found.setdefault(verdict.claim, []).append(verdict.holds)
    return {claim: all_hold(states) for claim, states in found.items()}


CLAIMS: Mapping[str, tuple[Claim, ...]] = {
    "tab:main_results16": (
        Claim("HMCL_CA has the best Overall on every backbone", "RQ1", checkers.best_overall),
        Claim("Both variants beat every baseline in Acc, R@5 and Overall", "RQ1",
              checkers.outperform),
        Claim("Both variants have a better BWT than every baseline", "abstract, contributions",
              checkers.forget_least),
        Claim("Both variants forget less than vanilla, in classification, retrieval and overall",
              "RQ1", checkers.forget_less),
        Claim("DNS improves only modestly over vanilla (read: by less than half of CA's gain)",
              "RQ1", checkers.dns_modest),
        Claim("CA has a higher Acc and Overall than MR", "RQ1", checkers.ca_over_mr),
        Claim("MR retrieves better than CA on MERU-L and HyCoCLIP-B, and has the best BWT on "
              "MERU-L", "RQ1", checkers.mr_over_ca),
    ),
    "tab:supp_extended_per_task": (
        Claim("The variants are best on all tasks but one", "appendix, per-task results",
              checkers.per_task),
        Claim("CA leads on ten classification tasks, MR on ImageNet, COCO, Flickr30K, Flowers102 "
              "and SST-2, C-FLAT on PCAM", "appendix, per-task results",
              checkers.per_task_leaders),
    ),
    "fig:stage_task_relative_change": (
        Claim("Both variants stay closer to the task-end scores than vanilla at every stage",
              "RQ1", checkers.stages),
    ),
    "tab:task_order_stability": (
        Claim("Both variants beat vanilla in all columns under other orders", "RQ1",
              checkers.all_columns),
        Claim("MR has the best Overall under one other order, CA under another", "RQ1",
              checkers.lead_changes, whole=True),
    ),
    "tab:backbone_robustness17": (
        Claim("With new modalities both variants improve Overall and BWT, CA also R@5", "RQ1",
              checkers.new_modalities),
        Claim("With new modalities CA retrieves better than MR", "RQ1", checkers.ca_retrieves),
        Claim("With new modalities MR has the best Overall on MERU-L and MERU-B, CA on HyCoCLIP-B",
              "RQ1", checkers.modalities_lead),
    ),
    "tab:retrieval_finegrained": (
        Claim("CA is best in every direction and at every cutoff", "RQ1", checkers.fine_grained),
    ),
    "fig:drift_analysis": (
        Claim("HMCL lowers every drift, on every old task", "RQ2", checkers.drift),
    ),
    "fig:drift_analysis, percentages": (
        Claim("HMCL lowers every mean drift by 81.2 % or more", "abstract, contributions",
              checkers.reduction),
        Claim("CA has a lower mean drift than MR in every measure", "RQ2",
              checkers.ca_drifts_less),
    ),
    "fig:norm_distribution": (
        Claim("Vanilla contracts norms (read: to less than 0.95)", "appendix, norms",
              checkers.contracts),
        Claim("Vanilla contracts norms of text most", "appendix, norms", checkers.contracts_text),
        Claim("MR keeps norms (read: nearer to 1 than 0.95 is)", "appendix, norms",
              checkers.keeps_norms),
    ),
    "apdx:norm_contraction": (
        Claim("Vanilla contracts norms on all tasks but one, for every modality",
              "appendix, norms", checkers.contracts_tasks),
        Claim("With MR no task's norms shrink to less than 0.9", "appendix, norms",
              checkers.keeps_tasks),
    ),
    "tab:wordnet_hierarchy": (
        Claim("Both variants beat the baselines in accuracy and every hierarchy measure", "RQ3",
              checkers.hierarchy),
        Claim("MR is the best in accuracy and every hierarchy measure", "RQ3",
              checkers.mr_hierarchy),
    ),
    "tab:optimizer_placement": (
        Claim("Every corrected configuration beats vanilla", "RQ4", checkers.corrected),
        Claim("Correcting the step (post) beats correcting the gradient (pre)", "RQ4",
              checkers.post_over_pre),
        Claim("Anchoring improves BWT, the retention of one task, and Overall", "RQ4",
              checkers.anchor),
        Claim("Anchored CA has the best Overall of all placements, anchored MR the best BWT and "
              "retention of one task", "RQ4", checkers.strongest),
    ),
    "tab:adamw_weight_decay": (
        Claim("Vanilla < MR_pre < HMCL_CA with every weight decay", "appendix, weight decay",
              checkers.decay_order),
        Claim("Weight decay up to 1e-2 changes next to nothing (read: Overall and BWT by less than "
              "0.05)", "appendix, weight decay", checkers.decay_small),
    ),
    "apdx:adamw_weight_decay": (
        Claim("MR_pre forgets more in retrieval than in classification", "appendix, weight decay",
              checkers.decay_kinds),
    ),
    "apdx:pullback_sensitivity": (
        Claim("A weaker pullback gives higher Overall and Acc, lower R@5", "appendix, pullback",
              checkers.pullback),
    ),
    "apdx:pullback_sensitivity, retention": (
        Claim("A weaker pullback worsens BWT and the retention of one task", "appendix, pullback",
              checkers.retention),
    ),
    "fig:clean_training_time": (
        Claim("HMCL takes less than 1.1 times vanilla's time", "appendix, training time",
              checkers.time),
    ),
}  # fmt: skip


def judge(table: Table) -> list[Verdict]:
    """Verdicts on the claims that a table speaks to, for each of its blocks."""
    verdicts = []
    for claim in CLAIMS.get(table.label, ()):
        for block in (" and ".join(table.blocks),) if claim.whole else tuple(table.blocks):
            checks = tuple(claim.checker(table, block))
            if checks:
                verdicts.append(Verdict(claim.text, claim.where, block, checks))
    return verdicts
