"""The page of an analysis: what is shown in which order, and how each part is to be read."""

import json
from collections.abc import Mapping

import numpy as np

from hmcl_jax.evaluation import bonferroni, relative_change
from hmcl_jax.evaluation.drift import MEASURES
from hmcl_jax.evaluation.seeds import seed_mean
from hmcl_jax.report import widgets
from hmcl_jax.report.analysis import Analysis, compared_with
from hmcl_jax.report.drift import TITLES, p_value
from hmcl_jax.report.markup import Markup, element, join
from hmcl_jax.report.page import Large, Page
from hmcl_jax.report.results import columns
from hmcl_jax.report.tables import Table, all_tables, spread
from hmcl_jax.report.trees import WHEN

UPPER_BOUND = "joint"  # trains on all tasks at once
OPEN_MAPS = 4
CAPTIONS = {
    "methods": "Overall and BWT of each method; bars are sample standard deviations over seeds.",
    "drift": "Drift of each old task under each method, and the mean over old tasks with its "
    "change in percent. Lower is better.",
    "norms": "Distribution of the norm ratio, final over task end, of all test anchors. At 1 a "
    "point has kept its distance from the origin.",
    "depth": "Mean distance from the origin of the names at each depth of one class tree, at the "
    "end of the task and at the end of the stream.",
    "radial_tree": "One class tree under every method. Radius is the distance from the origin; the "
    "final points are turned onto those of the task end by one proper rotation. Orange lines show "
    "what moved otherwise: radius and angle change on paper as they do in full dimension.",
    "retrieval": "Recall at 1, 5 and 10 in both directions of every retrieval task; thin lines are "
    "sample standard deviations over seeds, thick ones the score right after the task.",
    "training": "Training over the whole stream, epoch by epoch; thin lines are ends of tasks. The "
    "defect says how far a step is from moving all protected points by one rotation, to first "
    "order; the finite rotation turns points that have turned already, so its own is not 0, "
    "although it keeps them exactly.",
}


def report_page(
    analysis: Analysis,
    drawings: Mapping[str, Markup | bytes] | None = None,
    against: str = "vanilla",
    notes: tuple[str, ...] = (),
) -> Page:
    """The page of an analysis.

    Args:
      analysis: what was measured.
      drawings: figures by name, of :data:`CAPTIONS`: ``<svg>`` elements, or PNG files.
      against: the method that others are compared with.
      notes: further sentences on what is lacking.

    Returns:
      The page; ``.html()`` gives the file.
    """
    against, chosen = compared_with(analysis.methods, against)
    if against not in analysis.methods:
        chosen = f"There is no {against} to compare with; --against names another."
    notes = (*notes, chosen) if chosen else notes
    made = _Maker(analysis, drawings or {}, against)
    count = len(analysis.seeds)
    page = Page(
        f"{analysis.store.name}: what was learned, and what was kept",
        join(
            f"{len(analysis.methods)} method{'s' * (len(analysis.methods) > 1)} on "
            f"{len(analysis.order)} tasks, {count} seed{'s' * (count > 1)} each. Scores, drift of "
            "the geometry, hierarchy, retrieval and walks to the root, from the checkpoints of "
            "the runs."
        ),
    )
    page.add("Summary", *made.summary(), *map(_lacking, (*analysis.lacking, *notes)))
    for title, parts in (
        ("Methods", made.methods()),
        ("Stages", made.stages()),
        ("Drift", made.drift()),
        ("Norms", made.norms()),
        ("Hierarchy", made.hierarchy()),
        ("Retrieval", made.retrieval()),
        ("Training", made.training()),
        ("Traversals", made.traversals()),
        ("Settings", made.settings()),
        ("Provenance", made.provenance()),
        ("Conventions", made.conventions()),
    ):
        if parts:
            page.add(title, *parts)
    return page


def _lacking(sentence: str) -> Markup:
    return element("div", element("p", sentence), class_="lacking")


class _Maker:
    """Makes the sections; each gives its parts, or nothing."""

    def __init__(
        self, analysis: Analysis, drawings: Mapping[str, Markup | bytes], against: str
    ) -> None:
        self.analysis, self.drawings, self.against = analysis, drawings, against
        self.tables = all_tables(analysis, against)

    def table(self, name: str) -> Markup | None:
        if name not in self.tables:
            return None
        found: Table = self.tables[name]
        return widgets.table(found.rows, found.caption, found.note, found.best, found.about)

    def drawing(self, name: str) -> Large | None:
        if name not in self.drawings:
            return None
        caption = CAPTIONS[name]
        made = widgets.picture(self.drawings[name], caption, caption.partition(";")[0])
        return Large(made, f"Left out because the page would be too large: figures/{name}.png.")

    def summary(self) -> list[object]:
        facts = [*self._best("Overall"), *self._best("BWT"), *self._reduction()]
        a = self.analysis
        kinds = ", ".join(f"{a.kinds.count(kind)} {kind}" for kind in dict.fromkeys(a.kinds))
        seeds = ", ".join(map(str, a.seeds))
        about = f"{kinds}. Seeds {seeds}. Features in {a.store.dimension} dimensions."
        facts.append(("Stream", f"{len(a.order)} tasks", about))
        return [widgets.cards(facts)]

    def _best(self, column: str) -> list[tuple[str, str, object]]:
        found = {name: columns(result)[column] for name, result in self.analysis.results.items()}
        shared = {n: v for n, v in found.items() if n.split("/")[-1] != UPPER_BOUND} or found
        if not shared:
            return []
        best = max(shared, key=lambda name: float(shared[name].mean()))
        about = [element("bdi", best), ", percent"]
        if self.against in found and best != self.against:
            other = widgets.true_minus(spread(found[self.against], 2, 1))
            about += ["; ", element("bdi", self.against), f" {other}"]
        bound = [name for name in found if name not in shared]
        if bound:
            about.append(f"; {bound[0]}, which sees all tasks at once, left out")
        title = "Highest Overall" if column == "Overall" else "Least forgetting (BWT)"
        return [(title, spread(shared[best], 2, 1), join(*about, "."))]

    def _reduction(self) -> list[tuple[str, str, object]]:
        drift = self.analysis.drift
        if drift is None or self.against not in drift.methods or len(drift.methods) < 2:
            return []
        others = [m for m in drift.methods if m != self.against and m.split("/")[-1] != UPPER_BOUND]
        if not others:
            return []
        reduction = seed_mean(drift.reduction(self.against), 1)
        saved = {m: reduction[drift.methods.index(m)] for m in others}
        saved = {m: values for m, values in saved.items() if np.isfinite(values).all()}
        if not saved:
            return []
        best = max(saved, key=lambda m: float(saved[m].mean()))
        low, high = 100 * saved[best].min(), 100 * saved[best].max()
        tests = drift.compare(best, self.against)
        p = max(bonferroni(test.p, len(tests)) for test in tests)
        return [
            (
                f"Drift avoided against {self.against}",
                f"{low:.0f} to {high:.0f} %",
                join(
                    element("bdi", best),
                    f", over the {len(MEASURES)} measures; adjusted p at most {p_value(p)} on "
                    f"{len(drift.tasks)} old tasks.",
                ),
            )
        ]

    def methods(self) -> list[object]:
        if "methods" not in self.tables:
            return []
        how = (
            "Acc and R@5 say how good the heads are at the end; the BWT columns say how much of "
            "each task's own score was lost (below 0) or gained since it was learned. Press a "
            "column's header to sort by it."
        )
        return [
            widgets.paragraph(how),
            self.table("methods"),
            self.drawing("methods"),
            widgets.details("Scores of every task", self.table("tasks")),
        ]

    def stages(self) -> list[object]:
        a = self.analysis
        if not a.results:
            return []
        means = {name: result.scores.mean(axis=0) for name, result in a.results.items()}
        # Rows are tasks, columns stages.
        change = {name: relative_change(R).T for name, R in means.items()}
        every = np.abs(np.concatenate([np.zeros(1), *(c[np.isfinite(c)] for c in change.values())]))
        limit = max(5.0, 5 * float(np.ceil(np.quantile(every, 0.97) / 5)))
        scale = widgets.Scale(limit, " %")
        names = [
            n + (" (R)" if k == "retrieval" else "") for n, k in zip(a.order, a.kinds, strict=True)
        ]
        maps = [self._map(name, change[name], means[name], names, scale) for name in change]
        how = (
            "Each map follows one method: a row is a task, a column the state after so many "
            "tasks, and the colour how its score has changed since it was learned, relative to "
            "that score. Read a row from left to right: red grows where a task is forgotten. "
            "The diagonal and the last column are framed, (R) marks retrieval. Hover, or move "
            "with the arrow keys, for exact values."
        )
        parts: list[object] = [widgets.paragraph(how), scale.legend()]
        parts.append(element("div", *maps[:OPEN_MAPS], class_="maps"))
        if maps[OPEN_MAPS:]:
            rest = element("div", *maps[OPEN_MAPS:], class_="maps")
            inside = widgets.details(f"{len(maps) - OPEN_MAPS} more methods", rest)
            parts.append(Large(inside, "More methods are in figures/stages.png."))
        note = (
            "Percent of the immediate score, from the mean of the scores over seeds; one colour "
            f"scale for all maps, clipped at {limit:g}\u00a0%. A task whose immediate score is 0 "
            "has no relative change and stays empty. For print: figures/stages."
        )
        return [*parts, element("p", note, class_="note")]

    def _map(
        self, method: str, change: np.ndarray, R: np.ndarray, names: list[str], scale: widgets.Scale
    ) -> Markup:
        last = len(names) - 1

        def label(i: int, t: int) -> str:
            value = widgets.signed(change[i, t], 1)
            scores = f"{100 * R[i, i]:.1f} \u2192 {100 * R[t, i]:.1f}"
            return f"{names[i]} after {t + 1} {names[t]}: {value} % ({scores})"

        return widgets.heat_map(
            change, names, names, method, scale, label, lambda i, t: t in (i, last)
        )

    def drift(self) -> list[object]:
        if self.analysis.drift is None:
            return []
        how = (
            "How far the points of old tasks have moved between the end of their own task and the "
            "end of the stream, in ways that matter: radii, angles within a modality, angles "
            "between modalities, distances of matched pairs. A rotation that all points share "
            "counts as none. Lower is better."
        )
        cones = (
            "Texts entail what lies in their cones. Training pulls samples into the cones of their "
            "texts; what is inside at the end of a task may be outside later."
        )
        return [
            widgets.paragraph(how),
            self.table("drift"),
            self.drawing("drift"),
            element("h3", "Is the difference more than chance?")
            if "drift_tests" in self.tables
            else None,
            self.table("drift_tests"),
            element("h3", "Cones"),
            widgets.paragraph(cones),
            self.table("cones"),
        ]

    def norms(self) -> list[object]:
        if "norms" not in self.tables:
            return []
        how = (
            "Whether points of a modality have sunk towards the origin (below 1) or risen from it "
            "(above 1) since the end of their task."
        )
        return [widgets.paragraph(how), self.table("norms"), self.drawing("norms")]

    def hierarchy(self) -> list[object]:
        if "hierarchy" not in self.tables:
            return []
        how = (
            "How far wrong wrong predictions are, in the class trees of the tasks. A good geometry "
            "errs towards near relatives: TIE and LCA low, Jaccard, HP and HR high."
        )
        depth = (
            "More specific names should lie further out: radius should grow with depth. The rank "
            "correlation (Spearman) says how well it does."
        )
        return [
            widgets.paragraph(how),
            self.table("hierarchy"),
            widgets.details("Every task", self.table("hierarchy_tasks")),
            element("h3", "Radius and depth") if "depth" in self.tables else None,
            widgets.paragraph(depth) if "depth" in self.tables else None,
            self.table("depth"),
            self.drawing("depth"),
            element("h3", "A class tree in the plane") if "radial_tree" in self.drawings else None,
            self.drawing("radial_tree"),
        ]

    def retrieval(self) -> list[object]:
        if "retrieval" not in self.tables:
            return []
        how = (
            "Share of queries whose match is among the first 1, 5 or 10 found, in both directions, "
            "for the retrieval tasks alone."
        )
        return [widgets.paragraph(how), self.table("retrieval"), self.drawing("retrieval")]

    def training(self) -> list[object]:
        if "training" not in self.drawings:
            return []
        results = self.analysis.results.values()
        logged = any("defect_after" in log for result in results for log in result.logs)
        lacks = (
            "These runs hold no figures per epoch beside the loss (defect, rotation, distance from "
            "the anchor): they are of an older version; run again for them."
        )
        how = (
            "The loss of every epoch, task after task, mean over seeds; where methods keep them, "
            "also what the correction did to each step."
        )
        return [
            widgets.paragraph(how),
            self.drawing("training"),
            None if logged else element("p", lacks, class_="note"),
        ]

    def traversals(self) -> list[object]:
        a = self.analysis
        if not a.walks:
            return []
        how = (
            "From a picture straight to the origin, [ROOT], in 20 steps: the nearest text at each "
            "step, repeated ones once. A good walk goes from specific to general, and is the same "
            f"at the end of the stream as at the end of the task. Seed {a.seeds[0]}, or the first "
            "that was not stopped; texts are all names of classes and class trees of the stream."
        )
        filtered = [w.paths[m][True] for w in a.walks for m in w.paths]
        ends = [path for paths in filtered for path in paths]
        bare = sum(len(path) == 1 for path in ends)
        entailing = (
            "With the filter, a text counts only if its cone holds the point. "
            f"In {bare} of {len(ends)} walks no text does, and only [ROOT] remains, which entails "
            "everything: there the picture lies in no text's cone, at any step. That says that "
            "entailment does not hold between these texts and pictures, not that the walk failed."
        )
        parts: list[object] = [widgets.paragraph(how)]
        shown = [element("h3", "Nearest text"), *self._walks(False)]
        parts.append(Large(join(*shown), "Walks are in analysis.json."))
        parts += [element("h3", "Only texts that entail the point"), widgets.paragraph(entailing)]
        inside = widgets.details(f"{len(a.walks)} walks with the filter", *self._walks(True))
        parts.append(Large(inside, "Walks with the filter are in analysis.json."))
        return parts

    def _walks(self, entailing: bool) -> list[Markup]:
        made = []
        for walk in self.analysis.walks:
            paths = {method: of[entailing] for method, of in walk.paths.items()}
            title = join(element("bdi", walk.title), " (", element("bdi", walk.task), ")")
            alt = f"{walk.title} ({walk.task})"
            columns = [when.capitalize() for when in WHEN]
            # A picture that has been shown is not shown again: every byte counts.
            thumbnail = None if entailing else walk.thumbnail
            made.append(
                widgets.traversal(title, paths, columns, thumbnail, bare=entailing, alt=alt)
            )
        return made

    def settings(self) -> list[object]:
        a = self.analysis
        rows = [["Method", "Settings"]]
        for method, settings in a.settings.items():
            text = ", ".join(f"{key} = {_plain(value)}" for key, value in settings.items())
            rows.append([method, text or "none"])
        note = "What they mean: experiments/run_stream.py --list-methods."
        shared: dict[str, list[str]] = {}
        for method, config in a.config.items():
            shared.setdefault(_plain(config), []).append(method)
        parts: list[object] = [widgets.table(rows, "Settings of each method", note)]
        for text, methods in shared.items():
            whose = "all methods" if len(shared) == 1 else ", ".join(methods)
            shown = widgets.facts(_flat(json.loads(text)), "Training settings")
            parts.append(widgets.details(f"Training settings of {whose}", shown))
        return parts

    def provenance(self) -> list[object]:
        a = self.analysis
        store = [
            ("Name", a.store.name),
            ("Fingerprint", a.store.fingerprint),
            ("Backbone", a.store.backbone),
            ("K (curvature is \u22121/K)", f"{a.store.K:g}"),
            ("tau", f"{a.store.tau:.5g}"),
            ("Dimension", str(a.store.dimension)),
            ("Order", ", ".join(a.order)),
            ("Seeds", ", ".join(map(str, a.seeds))),
        ]
        parts: list[object] = [
            widgets.paragraph("What these numbers were made from, and with."),
            widgets.facts(store, "Stream"),
        ]
        for place, saved in a.about.items():
            rows: list[tuple[str, object]] = [
                (f"Version of {name}", value) for name, value in saved.versions.items()
            ]
            rows += _flat({k: v for k, v in saved.about.items() if k != "experiment"})
            parts.append(widgets.facts(rows, f"Runs in {place}"))
            learn = {
                m: sum(task.get("learn", 0) for task in r.seconds) for m, r in saved.results.items()
            }
            if any(learn.values()):
                times = [["Method", "Seconds"], *([m, f"{s:.1f}"] for m, s in learn.items())]
                note = "Learning all tasks with all seeds, compilation included."
                parts.append(
                    widgets.details("Times", widgets.table(times, f"Times in {place}", note))
                )
            config = json.dumps(saved.about.get("experiment", {}), indent=1, ensure_ascii=False)
            parts.append(
                widgets.details("The experiment as it was asked for", element("pre", config))
            )
        return parts

    def conventions(self) -> list[object]:
        said = [f"{table.caption}. {table.note}" for table in self.tables.values()]
        drift = ", ".join(f"{TITLES[name]}: {text}" for name, text in MEASURES.items())
        return [
            widgets.paragraph(
                "When you cite a number from this page, cite its convention too: publications "
                "differ in what they average, and over what."
            ),
            widgets.details("Conventions of all tables", *map(widgets.paragraph, said)),
            widgets.details("Measures of drift", widgets.paragraph(drift + ".")),
        ]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _flat(values: Mapping[str, object], before: str = "") -> list[tuple[str, object]]:
    """Nested settings as rows, ``train.batch``."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{before}{key}.")
        else:
            rows.append((f"{before}{key}", _plain(value)))
    return rows
