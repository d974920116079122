"""Every figure in every format, with odd names; SVG that fits into any page; equal bytes."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest

from hmcl_jax.evaluation import (
    Drift,
    Norms,
    TreePoints,
    make_tree,
    radial_tree,
    radius_by_depth,
    relative_change,
)
from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.geometry import draw_depth, draw_drift, draw_norms, draw_radial_tree
from hmcl_jax.report.figures.scores import draw_methods, draw_retrieval, draw_stages
from hmcl_jax.report.figures.training import draw_training
from hmcl_jax.report.tables import RECALL_MEASURES, drift_tables

ODD = ("a $x$ <b> & \"c\" 'd'", "😀 \x00\n" + "long " * 30, "$")
TASKS = (*ODD, "last")
KINDS = ("classification", "retrieval", "classification", "retrieval")
METHODS = ("vanilla", "mine <script>alert(1)</script> $", "hmcl_ca")


def drift(rng, seeds=2):
    shape = (len(METHODS), seeds)
    norms = {
        m: Norms(np.repeat(np.arange(3), 5), *rng.uniform(1, 2, size=(2, *shape, 15)))
        for m in ("image", "$text$")
    }
    return Drift(
        *(METHODS, tuple(range(seeds)), TASKS[:3], KINDS[:3], (5, 5, 5)),
        rng.uniform(size=(*shape, 3, 4)),
        rng.uniform(size=(*shape, 3, 6)),
        norms,
    )


def points(rng, seeds=2):
    rows = [(ODD[0], "top"), (ODD[1], "top"), (ODD[2], ODD[0])]
    tree = make_tree(rows, ODD)
    before, after = rng.normal(size=(2, len(METHODS), seeds, 4, 5)).astype(np.float32)
    return TreePoints("task", tree, tree.names, METHODS, tuple(range(seeds)), 10.0, before, after)


def stages(rng, path, seeds=2):
    R = rng.uniform(0.2, 0.9, size=(len(METHODS), seeds, 4, 4))
    R[:, :, 1, 1] = 0
    R[..., ~np.tri(4, dtype=bool)] = np.nan
    change = relative_change(R).mean(axis=1)
    draw_stages(dict(zip(METHODS, change, strict=True)), TASKS, KINDS, path)


def methods(rng, path, seeds=2):
    columns = ("Overall", "BWT")
    draw_methods({m: {c: rng.normal(size=seeds) for c in columns} for m in METHODS}, path)


def retrieval(rng, path, seeds=2):
    tasks = {i: name for i, name in enumerate(TASKS) if KINDS[i] == "retrieval"}
    details = [[{name: rng.uniform(size=seeds) for name in RECALL_MEASURES}] * 4] * 4
    draw_retrieval(dict.fromkeys(METHODS, details), tasks, path)


def training(rng, path, seeds=2):
    losses = {m: [rng.uniform(size=(seeds, 3)).tolist()] * 4 for m in METHODS}
    names = ("defect_before", "defect_after", "rotation", "anchor_distance", "anchor_bound")
    log = {n: rng.uniform(size=(seeds, 3)) for n in names} | {"rank_$a$": [3.0] * seeds}
    log["defect_after"] = np.zeros((seeds, 3))
    draw_training(losses, {METHODS[2]: [{}, log, log, log]}, TASKS, path)


def depth(rng, path, seeds=2):
    made = points(rng, seeds)
    radii = np.linalg.norm(np.stack([made.before, made.after], axis=2), axis=-1)
    draw_depth(METHODS, radius_by_depth(made.tree, radii, made.names), path, ODD[0])


FIGURES = {
    "stages": stages,
    "methods": methods,
    "retrieval": retrieval,
    "training": training,
    "drift": lambda rng, path, seeds=2: draw_drift(drift(rng, seeds), path),
    "norms": lambda rng, path, seeds=2: draw_norms(drift(rng, seeds), path),
    "tree": lambda rng, path, seeds=2: draw_radial_tree(
        radial_tree(points(rng, seeds)), path, ODD[0]
    ),
    "depth": depth,
}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_fits_into_a_page(name, tmp_path):
    path = tmp_path / f"{name}.svg"
    FIGURES[name](np.random.default_rng(0), path, seeds=1 if name in ("drift", "depth") else 2)
    svg = path.read_text("utf8")
    root = ElementTree.fromstring(svg)
    assert style.INK in svg
    assert "mine &lt;script&gt;" in svg
    assert next(e.text for e in root.iter() if e.tag.endswith("title"))


def test_the_same_numbers_give_the_same_bytes_in_every_format(tmp_path):
    for name in "ab":
        paths = [tmp_path / f"{name}.{ending}" for ending in ("pdf", "png", "svg")]
        methods(np.random.default_rng(0), paths, seeds=1)
    contents = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert contents[:3] == contents[3:]
    assert [content[:5] for content in contents[:3]] == [b"%PDF-", b"\x89PNG\r", b"<?xml"]


def test_a_method_in_several_folders_keeps_its_colour_in_other_shades_and_markers():
    places = ("vanilla", *(f"{f}/{m}" for f in "abc" for m in ("vanilla", "ewc")))
    found = style.looks(["a/mine", *places, *(f"other {i}" for i in range(20))])
    assert found["vanilla"] == style.looks(["vanilla"])["vanilla"]
    assert len(set(found.values())) == len(found)
    for grey in (found["a/vanilla"].color, found["b/vanilla"].color):
        assert len({grey[i : i + 2] for i in (1, 3, 5)}) == 1
        assert grey != found["vanilla"].color
    assert style.looks(["b/vanilla"])["b/vanilla"] == found["vanilla"]


LONG = tuple(f"pocket8/hmcl_rotation_{i:02}" + "x" * 42 for i in range(5))


@pytest.mark.parametrize(
    "name", ["stages", "methods", "retrieval", "drift", "norms", "tree", "depth"]
)
def test_no_title_is_cut_or_covers_another(name, tmp_path, monkeypatch):
    def look(figure, paths):
        figure.canvas.draw()
        titles = [axes.title for axes in figure.axes if axes.get_title()]
        boxes = [title.get_window_extent() for title in (figure._suptitle, *titles)]
        for box in boxes:
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        seen.append(figure)

    seen = []
    monkeypatch.setattr(style, "save", look)
    for what in ("METHODS", "TASKS"):
        monkeypatch.setitem(globals(), what, LONG[: 3 if what == "METHODS" else 4])
    monkeypatch.setitem(globals(), "ODD", LONG[:3])
    FIGURES[name](np.random.default_rng(0), tmp_path / "f.png")
    assert len(seen) == 1


def test_the_figure_of_norms_says_the_medians_of_the_table(tmp_path):
    found = drift(np.random.default_rng(0), seeds=3)
    draw_norms(found, tmp_path / "n.svg")
    texts = re.findall(r">([\d.]+)</text>", (tmp_path / "n.svg").read_text("utf8"))
    for row in drift_tables(found)["norms"].rows[1:]:
        for cell in row[1:]:
            assert cell.split()[0] in texts


def test_a_wrong_ending_is_refused_before_anything_is_drawn(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in .*, got .*x\.bmp"):
        methods(np.random.default_rng(0), [tmp_path / "x.png", tmp_path / "x.bmp"])
    assert not list(tmp_path.iterdir())
