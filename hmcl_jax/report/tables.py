"""Every table of a report, once: as cells, from which HTML, Markdown and LaTeX are made."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hmcl_jax.evaluation.drift import CONES, MEASURES
from hmcl_jax.evaluation.seeds import seed_mean
from hmcl_jax.report import drift as drift_tables
from hmcl_jax.report.analysis import Analysis, compared_with
from hmcl_jax.report.results import COLUMNS, CONVENTION, markdown_rows, method_rows
from hmcl_jax.report.trees import MEASURES as TREE_MEASURES

RECALLS = (1, 5, 10)
DIRECTIONS = ("general_to_specific", "specific_to_general")
TREE_TITLES = {
    "top1": "Top-1",
    "tie": "TIE",
    "lca": "LCA",
    "jaccard": "Jaccard",
    "precision": "HP",
    "recall": "HR",
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
    """A table.

    Attributes:
      caption: what it shows.
      rows: cells, the header first.
      note: units and conventions.
      best: by column, `max` or `min`.
      about: by header, what a column means.
    """

    caption: str
    rows: Sequence[Sequence[str]]
    note: str
    best: Mapping[int, Callable] = dataclasses.field(default_factory=dict)
    about: Mapping[str, str] = dataclasses.field(default_factory=dict)

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


def spread(values: Any, digits: int = 2, scale: float = 100.0) -> str:
    """Mean and sample standard deviation over seeds, as text; empty if there is none.

    Args:
      values: one per seed; NaN for one that was stopped.
      digits: behind the point.
      scale: that they are multiplied with.

    Example:
      >>> from hmcl_jax.report.tables import spread
      >>> print(spread([0.5, 0.7]), spread([0.5]))
      60.00 ± 14.14 50.00
    """
    values = scale * np.asarray(values, float)
    values = values[~np.isnan(values)]
    if not len(values):
        return ""
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def all_tables(analysis: Analysis, against: str = "vanilla") -> dict[str, Table]:
    """The tables that can be made, by name.

    Args:
      analysis: what was measured.
      against: the method that others are compared with.

    Returns:
      Some of ``methods``, ``tasks``, ``retrieval``, ``drift``, ``drift_tests``, ``cones``,
      ``norms``, ``hierarchy``, ``hierarchy_tasks`` and ``depth``.
    """
    against, _ = compared_with(analysis.methods, against)
    found: dict[str, Table] = {}
    if analysis.results:
        found["methods"] = _methods(analysis)
        found["tasks"] = _tasks(analysis)
        if has_recall(analysis):
            found["retrieval"] = _retrieval(analysis)
    if analysis.drift is not None:
        found |= _drift(analysis, against)
    if analysis.hierarchy:
        found |= _hierarchy(analysis)
    return found


def _methods(analysis: Analysis) -> Table:
    return Table(
        "Scores at the end of the stream, by method",
        method_rows(analysis.results),
        f"{CONVENTION} Seeds: {', '.join(map(str, analysis.seeds))}.",
        dict.fromkeys(range(1, len(COLUMNS) + 1), max),
        COLUMNS,
    )


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
    names = [f"{direction}_r{k}" for direction in DIRECTIONS for k in RECALLS]
    tasks = [i for i, kind in enumerate(analysis.kinds) if kind == "retrieval"]
    kept = [
        result.details[t][i]
        for result in analysis.results.values()
        for i in tasks
        for t in (i, -1)
        if len(result.details[t]) > i
    ]
    wanted = 2 * len(tasks) * len(analysis.results)
    return 0 < len(kept) == wanted and all(name in held for held in kept for name in names)


def _retrieval(analysis: Analysis) -> Table:
    tasks = [i for i, kind in enumerate(analysis.kinds) if kind == "retrieval"]
    sides = {analysis.store[analysis.order[i]].general for i in tasks}
    general = sides.pop() if len(sides) == 1 else "general"
    rows = [
        [
            "Method",
            *(f"{way} R@{k}" for way in (f"from {general}", f"to {general}") for k in RECALLS),
        ]
    ]
    for method, result in analysis.results.items():
        cells = []
        for direction in DIRECTIONS:
            for k in RECALLS:
                measure = f"{direction}_r{k}"
                final, learned = (
                    np.mean([result.details[t(i)][i][measure] for i in tasks], axis=0)
                    for t in (lambda i: -1, lambda i: i)
                )
                change = 100 * float(seed_mean(final - learned))
                cell = spread(final, 1)
                cells.append(f"{cell} ({change:+.1f})" if cell else "")
        rows.append([method, *cells])
    return Table(
        "Recall in both directions, mean over the retrieval tasks",
        rows,
        "Percent after the last task, mean and sample standard deviation over seeds; in brackets "
        f"the change since the end of each task. \u201cFrom {general}\u201d looks for the sample "
        f"that a {general} belongs to, \u201cto {general}\u201d the other way round. Higher is "
        "better.",
        dict.fromkeys(range(1, 2 * len(RECALLS) + 1), max),
    )


def _drift(analysis: Analysis, against: str) -> dict[str, Table]:
    drift = analysis.drift
    assert drift is not None
    rows = drift_tables.drift_rows(drift, against)
    titles = dict(zip(drift_tables.TITLES.values(), MEASURES.values(), strict=True))
    anchors = f"at most {max(drift.anchors)}" if len(set(drift.anchors)) > 1 else drift.anchors[0]
    compared = against in drift.methods and len(drift.methods) > 1
    brackets = f"; in brackets the change against {against}" if compared else ""
    found = {
        "drift": Table(
            "Mean drift of the old tasks, by method",
            rows,
            f"{drift_tables.CONVENTION} Radial and paired distance in units of the space, angular "
            f"and cross-modal as cosines. {anchors} anchors per task{brackets}.",
            dict.fromkeys(range(1, len(rows[0])), min),
            titles,
        )
    }
    if compared:
        found["drift_tests"] = Table(
            f"Adjusted p-values of the difference to {against}",
            drift_tables.drift_tests_rows(drift, against),
            f"{drift_tables.TEST_CONVENTION} n = {len(drift.tasks)} old tasks.",
            about=titles,
        )
    cones = drift_tables.cone_rows(drift)
    said = (text.replace("(radians) ", "") for text in CONES.values())
    about = dict(zip(cones[0][1:], said, strict=True))
    found["cones"] = Table(
        "Cones: what became of entailment",
        cones,
        "Mean over old tasks and seeds. "
        + "; ".join(f"{name}: {said}" for name, said in about.items())
        + ". Angles in degrees; above 0 lies outside the cone.",
        about=about,
    )
    found["norms"] = Table(
        "Norm at the end of the stream over norm at the end of the task",
        drift_tables.norm_rows(drift),
        "Median over the test anchors of all old tasks, mean and sample standard deviation over "
        "seeds; 1 means that points kept their distance from the origin. In brackets the number of "
        "old tasks whose own median is below 0.9.",
    )
    return found


def _unit(measure: str) -> tuple[float, int]:
    """Factor and digits of a hierarchy score: edges, or percent."""
    return (1.0, 3) if measure in ("tie", "lca") else (100.0, 1)


def _guess(measure: str, value: float) -> str:
    scale, digits = _unit(measure)
    return f"{scale * value:.{digits}f}"


def _hierarchy(analysis: Analysis) -> dict[str, Table]:
    trees, methods = analysis.hierarchy, analysis.geometry
    rows = [["Method", *TREE_TITLES.values()]]
    for m, method in enumerate(methods):
        cells = []
        for measure in TREE_TITLES:
            scale, digits = _unit(measure)
            ends = np.mean([tree.scores[measure][m] for tree in trees], axis=0)  # (seeds, 2)
            change = scale * float(seed_mean(ends[:, 1] - ends[:, 0]))
            cells.append(f"{spread(ends[:, 1], digits, scale)} ({change:+.{digits}f})")
        rows.append([method, *cells])
    chance = {n: float(np.mean([tree.chance[n] for tree in trees])) for n in TREE_TITLES}
    rows.append(["chance", *(_guess(name, value) for name, value in chance.items())])
    titles = {TREE_TITLES[name]: said for name, said in TREE_MEASURES.items()}
    note = (
        "Chance: uniform guesses over the classes. TIE and LCA in edges, the others in percent. "
        + "; ".join(f"{name}: {said}" for name, said in titles.items())
        + "."
    )
    found = {
        "hierarchy": Table(
            f"Hierarchy scores, mean over {len(trees)} tasks with a class tree",
            rows,
            "After the last task, mean and sample standard deviation over seeds; in brackets the "
            f"change since the end of each task. {note}",
            about=titles,
        )
    }
    each = [["Task", "Method", *TREE_TITLES.values()]]
    for tree in trees:
        for m, method in enumerate(methods):
            cells = []
            for name in TREE_TITLES:
                scale, digits = _unit(name)
                first, last = scale * seed_mean(tree.scores[name][m], 0)
                cells.append(f"{last:.{digits}f} (from {first:.{digits}f})")
            each.append([tree.task, method, *cells])
        cells = [_guess(name, tree.chance[name]) for name in TREE_TITLES]
        each.append([tree.task, "chance", *cells])
    found["hierarchy_tasks"] = Table(
        "Hierarchy scores of each task",
        each,
        f"After the last task, mean over seeds; in brackets at the end of the task itself. {note}",
        about=titles,
    )
    return found | _depth(analysis)


def _depth(analysis: Analysis) -> dict[str, Table]:
    trees = [tree for tree in analysis.hierarchy if tree.radius is not None]
    if not trees:
        return {}
    rows = [["Task", "Names", "Depths", *analysis.geometry]]
    for tree in trees:
        radius = tree.radius
        assert radius is not None
        cells = []
        for correlation in np.asarray(radius.correlation):  # (seeds, 2)
            first, last = seed_mean(correlation, 0)
            cells.append("" if np.isnan(first + last) else f"{last:.3f} ({last - first:+.3f})")
        rows.append([tree.task, str(radius.counts.sum()), str(len(radius.depths)), *cells])
    return {
        "depth": Table(
            "Rank correlation of radius with depth, by task",
            rows,
            "Spearman's, over the names of the class tree, of depth (edges below the root) with "
            "distance from the origin after the last task; mean over seeds, in brackets the change "
            "since the end of the task. 1 if every deeper name lies further out; empty if all "
            "names have one depth.",
        )
    }
