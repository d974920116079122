"""Every table of a report, once: as cells, from which HTML, Markdown and LaTeX are made."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hmcl_jax.evaluation import Drift, bonferroni, chance_scores
from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.evaluation.statistics import seed_mean
from hmcl_jax.report.analyse import Analysis
from hmcl_jax.report.results import COLUMNS, CONVENTION, markdown_rows, mean_std, method_rows

RECALLS = (1, 5, 10)
DIRECTIONS = ("general_to_specific", "specific_to_general")
RECALL_MEASURES = tuple(f"{direction}_r{k}" for direction in DIRECTIONS for k in RECALLS)
DRIFT_TITLES = ("Radial", "Angular", "Cross-modal", "Paired distance")  # of MEASURES
TREE_MEASURES = ("top1", "tie", "lca", "jaccard", "precision", "recall")
TREE_SCALES = np.array([100, 1, 1, 100, 100, 100])  # TIE and LCA in edges, the others in percent
TREE_DIGITS = (1, 3, 3, 1, 1, 1)
TREE_TITLES = {
    "Top-1": "share of correct predictions; higher is better",
    "TIE": "edges between prediction and truth (tree-induced error); lower is better",
    "LCA": "edges from the prediction up to the lowest common ancestor, 1 for a correct "
    "prediction; lower is better",
    "Jaccard": "shared ancestors over all ancestors; higher is better",
    "HP": "shared ancestors over those of the prediction; higher is better",
    "HR": "shared ancestors over those of the truth; higher is better",
}
LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\to$",
    "°": r"$^\circ$",
    "\u2212": "$-$",
} | {c: f"\\{c}" for c in "&%$#_{}"}


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells, and the words around them."""

    caption: str
    rows: Sequence[Sequence[str]]  # the header first
    note: str  # units and conventions
    best: Mapping[int, Callable] = dataclasses.field(default_factory=dict)  # `max` or `min`
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what a column means

    def markdown(self) -> str:
        """With its caption and note; bars and line breaks in names are made harmless."""
        rows = [[_one_line(cell).replace("|", "\\|") for cell in row] for row in self.rows]
        return f"{self.caption}\n\n{markdown_rows(rows)}\n\n{self.note}\n"

    def latex(self) -> str:
        """A ``tabular`` for ``booktabs``, its caption and note as comments."""
        rows = [" & ".join(map(_latex, row)) + r" \\" for row in self.rows]
        head = [f"% {_one_line(self.caption)}", f"% {_one_line(self.note)}"]
        begin = rf"\begin{{tabular}}{{l{'c' * (len(self.rows[0]) - 1)}}}"
        lines = [*head, begin, r"\toprule", rows[0], r"\midrule", *rows[1:]]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _latex(cell: str) -> str:
    return "".join(LATEX.get(c, c) for c in _one_line(cell))


def all_tables(analysis: Analysis) -> dict[str, Table]:
    """The tables that an analysis has the numbers for, by the names of their files."""
    tables: dict[str, Table] = {}
    if analysis.results:
        seeds = ", ".join(map(str, analysis.seeds))
        tables["methods"] = Table(
            "Scores at the end of the stream, by method",
            method_rows(analysis.results),
            f"{CONVENTION} Seeds: {seeds}.",
            dict.fromkeys(range(1, len(COLUMNS) + 1), max),
            COLUMNS,
        )
        tables["tasks"] = _tasks(analysis)
        if has_recall(analysis):
            tables["retrieval"] = _retrieval(analysis)
    if analysis.drift is not None:
        tables |= drift_tables(analysis.drift, analysis.against)
    if analysis.hierarchies:
        tables |= _hierarchy(analysis)
    if any(tree.radius is not None for tree in analysis.hierarchies):
        tables["depth"] = _depth(analysis)
    return tables


def _tasks(analysis: Analysis) -> Table:
    rows = [["Task", "Kind", "Chance", *analysis.results]]
    for i, name in enumerate(analysis.order):
        cells = []
        for result in analysis.results.values():
            final, learned = (100 * result.scores[:, t, i].mean() for t in (-1, i))
            cells.append(f"{final:.1f} ({final - learned:+.1f})")
        chance = f"{100 * analysis.store[name].chance:.1f}"
        rows.append([f"{i + 1} {name}", analysis.kinds[i], chance, *cells])
    return Table(
        "Final score of each task, by method",
        rows,
        "Percent, mean over seeds: top-1 of classification, R@5 (mean of both directions) of "
        "retrieval tasks, after the last task; in brackets the change since the end of the task. "
        "Chance is that of guessing.",
    )


def has_recall(analysis: Analysis) -> bool:
    """Whether the results hold recall in both directions, for retrieval tasks."""
    tasks = [i for i, kind in enumerate(analysis.kinds) if kind == "retrieval"]
    return bool(tasks and analysis.results) and all(
        len(result.details[t]) > i and result.details[t][i].keys() >= set(RECALL_MEASURES)
        for result in analysis.results.values()
        for i in tasks
        for t in (i, -1)
    )


def retrieval_sides(analysis: Analysis) -> tuple[str, str]:
    """The general and the specific modality of the retrieval tasks."""
    tasks = (analysis.store[name] for name in analysis.order)
    sides = {(task.general, task.specific) for task in tasks if task.kind == "retrieval"}
    return sides.pop() if len(sides) == 1 else ("general", "specific")


def _retrieval(analysis: Analysis) -> Table:
    tasks = [i for i, kind in enumerate(analysis.kinds) if kind == "retrieval"]
    general, _ = retrieval_sides(analysis)
    ways = [f"{way} R@{k}" for way in (f"from {general}", f"to {general}") for k in RECALLS]
    rows = [["Method", *ways]]
    for method, result in analysis.results.items():
        cells = []
        for measure in RECALL_MEASURES:
            final = np.mean([result.details[-1][i][measure] for i in tasks], axis=0)
            learned = np.mean([result.details[i][i][measure] for i in tasks], axis=0)
            change = 100 * float(seed_mean(final - learned))
            cells.append(f"{mean_std(final, 1, 100)} ({change:+.1f})")
        rows.append([method, *cells])
    return Table(
        "Recall in both directions, mean over the retrieval tasks",
        rows,
        "Percent after the last task, mean and sample standard deviation over seeds; in brackets "
        f"the change since the end of each task. \u201cFrom {general}\u201d looks for the sample "
        f"that a {general} belongs to, \u201cto {general}\u201d the other way round. Higher is "
        "better.",
        dict.fromkeys(range(1, len(ways) + 1), max),
    )


def drift_tables(drift: Drift, against: str = "vanilla") -> dict[str, Table]:
    """Tables of drift, of its tests if there is something to compare, of cones and of norms."""
    about = dict(zip(DRIFT_TITLES, MEASURES.values(), strict=True))
    others = [method for method in drift.methods if method != against]
    compared = bool(others) and against in drift.methods
    measures = " ".join(f"{title}: {text}." for title, text in about.items())
    anchors = f"at most {max(drift.anchors)}" if len(set(drift.anchors)) > 1 else drift.anchors[0]
    brackets = f"; in brackets the change against {against}" if compared else ""
    tables = {
        "drift": Table(
            "Mean drift of the old tasks, by method",
            _drift_rows(drift, against),
            "Change between the end of a task and the end of the stream on fixed test anchors, "
            "mean over the old tasks (all but the last) and over seeds; lower is better. "
            f"{measures} Radial and paired distance in units of the space, angular and cross-modal "
            f"as cosines. {anchors} anchors per task{brackets}.",
            dict.fromkeys(range(1, len(MEASURES) + 1), min),
            about,
        )
    }
    if compared:
        rows = [[f"Method against {against}", *DRIFT_TITLES]]
        for method in others:
            tests = drift.compare(method, against)
            cells = [
                f"{p_value(bonferroni(test.p, len(tests)))} ({test.positive}/{len(drift.tasks)})"
                for test in tests
            ]
            rows.append([method, *cells])
        tables["drift_tests"] = Table(
            f"Adjusted p-values of the difference to {against}",
            rows,
            "Exact two-sided Wilcoxon signed-rank test over the old tasks (drift averaged over "
            "seeds), Bonferroni-adjusted over the four measures; in brackets, on how many old "
            f"tasks drift is lower. n = {len(drift.tasks)} old tasks.",
            about=about,
        )
    return tables | {"cones": _cones(drift), "norms": _norms(drift)}


def _drift_rows(drift: Drift, against: str) -> list[list[str]]:
    changes = np.full((len(drift.methods), len(MEASURES)), np.nan)
    if against in drift.methods:
        changes = -seed_mean(drift.reduction(against), 1)
    rows = [["Method", *DRIFT_TITLES]]
    for method, values, own in zip(drift.methods, drift.mean(), changes, strict=True):
        cells = [mean_std(measure, 4) for measure in values.T]
        if method != against:
            marks = [f" ({100 * x:+.0f} %)" if np.isfinite(x) else "" for x in own]
            cells = [cell + mark for cell, mark in zip(cells, marks, strict=True)]
        rows.append([method, *cells])
    return rows


def p_value(p: float) -> str:
    """A p-value in two digits; in three or more near 0.05, so that its side can be seen."""
    digits = 3 if 0.045 <= p <= 0.055 else 2
    while float(f"{p:.{digits}g}") == 0.05 != p and digits < 17:
        digits += 1
    return f"{p:.{digits}g}"


def _cones(drift: Drift) -> Table:
    about = {
        name.replace("_", " ").capitalize(): text.replace("(radians) ", "")
        for name, text in CONES.items()
    }
    rows = [["Method", *about]]
    for method, numbers in zip(drift.methods, seed_mean(drift.cones, (1, 2)), strict=True):
        cells = [f"{100 * share:.1f} %" for share in numbers[:4]]
        cells += [f"{np.rad2deg(angle):+.2f}°" for angle in numbers[4:]]
        known = np.isfinite(numbers)
        rows.append([method, *(c if k else "" for c, k in zip(cells, known, strict=True))])
    return Table(
        "Cones: which samples their texts entail",
        rows,
        f"Mean over old tasks and seeds. {_listed(about)}. Angles in degrees; above 0 lies outside "
        "the cone.",
        about=about,
    )


def _listed(about: Mapping[str, str]) -> str:
    return "; ".join(f"{title}: {text}" for title, text in about.items())


def _norms(drift: Drift) -> Table:
    rows = [["Method", *drift.norms]]
    for index, method in enumerate(drift.methods):
        cells = []
        for norms in drift.norms.values():
            own = np.array([norms.task_contraction(task)[index] for task in np.unique(norms.tasks)])
            cell = mean_std(norms.contraction()[index], 4)
            cells.append(f"{cell} ({np.sum(seed_mean(own, 1) < 0.9)})" if cell else "")
        rows.append([method, *cells])
    return Table(
        "Norm at the end of the stream over norm at the end of the task",
        rows,
        "Median over the test anchors of all old tasks, mean and sample standard deviation over "
        "seeds; 1 means that points kept their distance from the origin. In brackets the number of "
        "old tasks whose own median is below 0.9.",
    )


def _hierarchy(analysis: Analysis) -> dict[str, Table]:
    trees = analysis.hierarchies
    scores = [np.stack([tree.scores[name] for name in TREE_MEASURES], axis=-1) for tree in trees]
    ends = TREE_SCALES * np.stack(scores, axis=1)  # (methods, trees, seeds, 2, measures)
    guesses = [chance_scores(tree.tree) for tree in trees]
    chances = TREE_SCALES * [[guess[name] for name in TREE_MEASURES] for guess in guesses]

    def texts(values: np.ndarray, sign: str = "") -> list[str]:
        return [f"{x:{sign}.{digits}f}" for x, digits in zip(values, TREE_DIGITS, strict=True)]

    rows, each = [["Method", *TREE_TITLES]], [["Task", "Method", *TREE_TITLES]]
    for method, values in zip(analysis.geometry, ends.mean(axis=1), strict=True):
        changes = texts(seed_mean(values[:, 1] - values[:, 0], 0), "+")
        final = map(mean_std, values[:, 1].T, TREE_DIGITS)
        rows.append(
            [method, *(f"{x} ({change})" for x, change in zip(final, changes, strict=True))]
        )
    rows.append(["chance", *texts(chances.mean(axis=0))])
    for t, (tree, chance) in enumerate(zip(trees, chances, strict=True)):
        for method, values in zip(analysis.geometry, seed_mean(ends[:, t], 1), strict=True):
            first, last = map(texts, values)
            cells = (f"{x} (from {before})" for before, x in zip(first, last, strict=True))
            each.append([tree.task.name, method, *cells])
        each.append([tree.task.name, "chance", *texts(chance)])
    note = (
        "Chance: uniform guesses over the classes. TIE and LCA in edges, the others in percent. "
        f"{_listed(TREE_TITLES)}."
    )
    return {
        "hierarchy": Table(
            f"Hierarchy scores, mean over {len(trees)} tasks with a class tree",
            rows,
            "After the last task, mean and sample standard deviation over seeds; in brackets the "
            f"change since the end of each task. {note}",
            about=TREE_TITLES,
        ),
        "hierarchy_tasks": Table(
            "Hierarchy scores of each task",
            each,
            "After the last task, mean over seeds; in brackets at the end of the task itself. "
            f"{note}",
            about=TREE_TITLES,
        ),
    }


def _depth(analysis: Analysis) -> Table:
    rows = [["Task", "Names", "Depths", *analysis.geometry]]
    for tree in analysis.hierarchies:
        if (radius := tree.radius) is None:
            continue
        cells = []
        for first, last in seed_mean(radius.correlation, 1):  # by method
            cells.append("" if np.isnan(first + last) else f"{last:.3f} ({last - first:+.3f})")
        rows.append([tree.task.name, str(radius.counts.sum()), str(len(radius.depths)), *cells])
    return Table(
        "Rank correlation of radius with depth, by task",
        rows,
        "Spearman's, over the names of the class tree, of depth (edges below the root) with "
        "distance from the origin after the last task; mean over seeds, in brackets the change "
        "since the end of the task. 1 if every deeper name lies further out; empty if all names "
        "have one depth.",
    )
