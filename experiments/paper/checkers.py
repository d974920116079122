"""One function per claim: the comparisons that it means.

They look only at rows that are the paper's: a method that a user adds changes no verdict.
"""

from collections.abc import Iterator

from paper.comparisons import (
    Check,
    above,
    beats,
    below,
    compare,
    least,
    limit,
    minus,
    most,
    settled,
)
from paper.tables import Number, Table

BASELINES = ("vanilla", "ewc", "gem", "cflat", "dns")
HMCL = ("hmcl_mr", "hmcl_ca")
PLACEMENTS = ("mr_pre", "ca_pre", "mr_post", "ca_post", "mr_post_anchor", "ca_post_anchor")
DECAYED = ("vanilla", "mr_pre", "hmcl_ca")
# Who leads on which of the paper's tasks; on its ten others HMCL_CA does.
LEADERS = {
    **dict.fromkeys(("imagenet", "coco", "flickr30k", "flowers102", "sst2"), "hmcl_mr"),
    "pcam": "cflat",
}


def best_overall(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], [*BASELINES, "hmcl_mr"], ["Overall"])


def outperform(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, BASELINES, ["Acc", "R@5", "Overall"])


def forget_least(table: Table, block: str) -> Iterator[Check]:
    """The column BWT, of all tasks.

    That of retrieval alone is not meant: on MERU-L, C-FLAT's is better than HMCL_CA's.
    """
    yield from beats(table, block, HMCL, BASELINES, ["BWT"])


def forget_less(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla"], ["BWT_A", "BWT_R5", "BWT"])


def dns_modest(table: Table, block: str) -> Iterator[Check]:
    rows = table.blocks[block]
    if {"dns", "vanilla", "hmcl_ca"} <= rows.keys():
        yield from beats(table, block, ["dns"], ["vanilla"], ["Overall"])
        dns, vanilla, ca = (rows[m]["Overall"] for m in ("dns", "vanilla", "hmcl_ca"))
        gains = [minus(number, vanilla) for number in (dns, ca)]
        half = Number(gains[1].mean / 2, values=tuple(v / 2 for v in gains[1].values))
        yield compare("gain of dns against half of hmcl_ca's:", gains[0], half, below)


def ca_over_mr(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["hmcl_mr"], ["Acc", "Overall"])


def mr_over_ca(table: Table, block: str) -> Iterator[Check]:
    if block in ("meru-l", "hycoclip-b"):
        yield from beats(table, block, ["hmcl_mr"], ["hmcl_ca"], ["R@5"])
    if block == "meru-l":
        yield from beats(table, block, ["hmcl_mr"], [*BASELINES, "hmcl_ca"], ["BWT"])


def per_task(table: Table, block: str) -> Iterator[Check]:
    leaders = _leaders(table, block)
    won = sum(leader in HMCL for leader in leaders.values())
    if leaders:
        yield Check(f"best on {won} of {len(leaders)} tasks", won >= len(leaders) - 1)


def per_task_leaders(table: Table, block: str) -> Iterator[Check]:
    leaders = _leaders(table, block)
    if leaders.keys() >= LEADERS.keys():
        for task, leader in leaders.items():
            wanted = LEADERS.get(task, "hmcl_ca")
            yield Check(f"best on {task}: {leader}, in the paper {wanted}", leader == wanted)


def _leaders(table: Table, block: str) -> dict[str, str]:
    rows = {m: row for m, row in table.blocks[block].items() if m in (*BASELINES, *HMCL)}
    if not rows:
        return {}
    return {c: max(rows, key=lambda m: rows[m][c].mean) for c in table.columns}


def stages(table: Table, block: str) -> Iterator[Check]:
    """The mean absolute change: "closer to their task-end reference" has no sign.

    In a signed mean, tasks that rise would hide others that fall, and a method that moves all
    scores far upwards would count as close.
    """
    yield from beats(table, block, HMCL, ["vanilla"], table.columns)


def all_columns(table: Table, block: str) -> Iterator[Check]:
    columns = ["Acc", "BWT_A", "R@5", "BWT_R5", "Overall", "BWT"]
    yield from beats(table, block, HMCL, ["vanilla"], columns)


def lead_changes(table: Table, _: str) -> Iterator[Check]:
    """Over all orders at once: HMCL_MR has the best Overall under one, HMCL_CA under another."""
    leaders, told = set(), []
    for block, rows in table.blocks.items():
        scores = {m: rows[m]["Overall"].mean for m in ("vanilla", *HMCL) if m in rows}
        if len(scores) == 3:
            leader = max(scores, key=lambda m: scores[m])
            leaders.add(leader)
            numbers = ", ".join(f"{m} {score:.2f}" for m, score in scores.items())
            told.append(f"best Overall under {block}: {leader} ({numbers})")
    if len(told) > 1:
        yield Check("; ".join(told), leaders == set(HMCL))


def new_modalities(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla"], ["Overall", "BWT"])
    yield from beats(table, block, ["hmcl_ca"], ["vanilla"], ["R@5"])


def ca_retrieves(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["hmcl_mr"], ["R@5"])


def modalities_lead(table: Table, block: str) -> Iterator[Check]:
    leader = {
        "meru-l-modalities": "hmcl_mr",
        "meru-b-modalities": "hmcl_mr",
        "hycoclip-b-modalities": "hmcl_ca",
    }.get(block)
    if leader:
        yield from beats(table, block, [leader], ["vanilla", *HMCL], ["Overall"])


def fine_grained(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["vanilla", "hmcl_mr"], table.columns)


def drift(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if method in table.blocks[block]:
            row = table.blocks[block][method]
            yield limit(f"{method}, adjusted p:", row["adjusted"], 0.05, below)
            yield limit(f"{method}, tasks with less drift:", row["lower"], row["tasks"].mean, least)


def reduction(table: Table, block: str) -> Iterator[Check]:
    """Every measure of both variants; of the paper only the least of all eight is known."""
    rows = table.blocks[block]
    for method in HMCL if rows.keys() & HMCL else ("both",):
        for name, number in rows.get(method, {}).items():
            if name != "most":
                yield limit(f"{method}, {name}, percent less:", number, 81.2, least)


def ca_drifts_less(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["hmcl_mr"], table.columns)


def contracts(table: Table, block: str) -> Iterator[Check]:
    for modality, number in table.blocks[block].get("vanilla", {}).items():
        yield limit(f"vanilla, {modality}:", number, 0.95, below)


def contracts_text(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("vanilla", {})
    if {"image", "text"} <= row.keys():
        yield limit("vanilla, text:", row["text"], 1.0, below)
        yield compare("vanilla, text and image:", row["text"], row["image"], below)


def keeps_norms(table: Table, block: str) -> Iterator[Check]:
    def nearer(a: float, b: float) -> bool:
        return abs(a - 1) < abs(b - 1)

    for modality, number in table.blocks[block].get("hmcl_mr", {}).items():
        yield limit(f"hmcl_mr, {modality}, nearer to 1:", number, 0.95, nearer)


def contracts_tasks(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("vanilla", {})
    for name, number in row.items():
        modality, _, kind = name.partition(" ")
        if kind == "below 1":
            bound = row[f"{modality} tasks"].mean - 1
            yield limit(f"vanilla, {modality}, tasks that shrink:", number, bound, least)


def keeps_tasks(table: Table, block: str) -> Iterator[Check]:
    for name, number in table.blocks[block].get("hmcl_mr", {}).items():
        if name.endswith("below 0.9"):
            yield limit(f"hmcl_mr, tasks, {name}:", number, 0, most)


def hierarchy(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, HMCL, ["vanilla", "ewc", "cflat", "dns"], table.columns)


def mr_hierarchy(table: Table, block: str) -> Iterator[Check]:
    others = ["vanilla", "ewc", "cflat", "dns", "hmcl_ca"]
    yield from beats(table, block, ["hmcl_mr"], others, table.columns)


def corrected(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, PLACEMENTS, ["vanilla"], table.columns)


def post_over_pre(table: Table, block: str) -> Iterator[Check]:
    for variant in ("mr", "ca"):
        yield from beats(table, block, [f"{variant}_post"], [f"{variant}_pre"], table.columns)


def anchor(table: Table, block: str) -> Iterator[Check]:
    for variant in ("mr", "ca"):
        pair = [f"{variant}_post_anchor"], [f"{variant}_post"]
        yield from beats(table, block, *pair, ["BWT", "task", "Overall"])


def strongest(table: Table, block: str) -> Iterator[Check]:
    others = ("vanilla", *PLACEMENTS)
    yield from beats(table, block, ["ca_post_anchor"], others, ["Overall"])
    yield from beats(table, block, ["mr_post_anchor"], others, ["BWT", "task"])


def decay_order(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["hmcl_ca"], ["mr_pre"], ["Overall", "BWT"])
    yield from beats(table, block, ["mr_pre"], ["vanilla"], ["Overall", "BWT"])


def decay_small(table: Table, block: str) -> Iterator[Check]:
    if block == "decay-0":
        return
    for method in DECAYED:
        row, base = (table.blocks.get(b, {}).get(method, {}) for b in (block, "decay-0"))
        for column in table.columns:
            if column in row.keys() & base.keys():
                change = Number(abs(row[column].mean - base[column].mean))
                yield limit(f"{method}, change of {column}:", change, 0.05, below)


def decay_kinds(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("mr_pre", {})
    if {"BWT_A", "BWT_R5"} <= row.keys():
        yield compare("mr_pre, BWT_R5 and BWT_A:", row["BWT_R5"], row["BWT_A"], below)


def pullback(table: Table, block: str) -> Iterator[Check]:
    row = table.blocks[block].get("weaker", {})
    for column, better in (("Overall", above), ("Acc", above), ("R@5", below)):
        if column in row:
            yield limit(f"weaker pullback, {column}, percent:", row[column], 0.0, better)


def retention(table: Table, block: str) -> Iterator[Check]:
    yield from beats(table, block, ["stronger"], ["weaker"], ["BWT", "task"])


def time(table: Table, block: str) -> Iterator[Check]:
    for method in HMCL:
        if method in table.blocks[block]:
            yield settled(f"{method}, times vanilla:", table.blocks[block][method]["ratio"], 1.1)
