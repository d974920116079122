"""Every figure, with odd names; SVG that fits into any page; equal bytes."""

import itertools
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from report_runs import hostile_analysis

from hmcl_jax.report.figures import style
from hmcl_jax.report.figures.draw import draw_all
from hmcl_jax.report.figures.geometry import draw_norms
from hmcl_jax.report.figures.scores import draw_methods, draw_stages
from hmcl_jax.report.figures.training import draw_training
from hmcl_jax.report.tables import drift_tables

FIGURES = {"depth", "drift", "methods", "norms", "radial_tree", "retrieval", "stages", "training"}
SCORES = {name: {"Overall": np.array([40.0]), "BWT": np.array([-1.0])} for name in ("a $x$", "😀")}
LONG = tuple(f"hmcl_rotation_{i:02}" + "x" * 50 for i in range(5))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return hostile_analysis(tmp_path_factory.mktemp("runs"))


def test_every_figure_fits_into_a_page(hostile, tmp_path):
    draw_all(hostile, tmp_path / "figures", ["svg"])
    paths = {path.stem: path for path in (tmp_path / "figures").iterdir()}
    assert paths.keys() == FIGURES
    for path in paths.values():
        svg = path.read_text("utf8")
        root = ElementTree.fromstring(svg)
        assert style.INK in svg
        assert "&lt;img src=x" in svg
        assert next(e.text for e in root.iter() if e.tag.endswith("title"))


def test_no_title_is_cut_or_covers_another(tmp_path, monkeypatch):
    found = hostile_analysis(tmp_path / "runs", LONG[:3], names=LONG, seeds=(3,))
    real, seen = style.save, []

    def look(figure, files):
        figure.canvas.draw()
        titles = [axes.title for axes in figure.axes if axes.get_title()]
        boxes = [title.get_window_extent() for title in (figure._suptitle, *titles)]
        for box in boxes:
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        seen.append(figure)
        real(figure, files)

    monkeypatch.setattr(style, "save", look)
    draw_all(found, tmp_path / "figures", [])
    assert len(seen) >= len(FIGURES)


def test_logs_of_training_and_scores_of_zero_are_drawn(rng, tmp_path):
    names = ("defect_before", "defect_after", "rotation", "anchor_distance", "anchor_bound")
    log = {n: rng.uniform(size=(2, 3)) for n in names} | {"rank_$a$": [3.0, 3.0]}
    log["defect_after"] = np.tile([0.0, 1e-3, 1.0], (2, 1))
    losses = {"m": [rng.uniform(size=(2, 3)).tolist()] * 4}
    draw_training(losses, {"m": [{}, log, log, log]}, "abcd", tmp_path / "training.svg")
    svg = (tmp_path / "training.svg").read_text("utf8")
    assert "0 is drawn at the lower edge" in svg
    assert "protected rank" in svg
    change = {"m": np.array([[0.0, np.nan], [-3.0, np.nan]])}
    draw_stages(change, "ab", ("classification",) * 2, tmp_path / "stages.svg")
    assert "Hatched: score 0 when learned" in (tmp_path / "stages.svg").read_text("utf8")


def test_the_same_numbers_give_the_same_bytes_in_every_format(tmp_path):
    for name in "ab":
        draw_methods(SCORES, [tmp_path / f"{name}.{ending}" for ending in ("pdf", "png", "svg")])
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


def test_the_figure_of_norms_says_the_medians_of_the_table(hostile, tmp_path):
    draw_norms(hostile.drift, tmp_path / "n.svg")
    texts = re.findall(r">([\d.]+)</text>", (tmp_path / "n.svg").read_text("utf8"))
    for row in drift_tables(hostile.drift)["norms"].rows[1:]:
        for cell in row[1:]:
            assert cell.split()[0] in texts


def test_a_wrong_ending_is_refused_before_anything_is_drawn(tmp_path):
    with pytest.raises(ValueError, match=r"path must end in .*, got .*x\.bmp"):
        draw_methods(SCORES, [tmp_path / "x.png", tmp_path / "x.bmp"])
    assert not list(tmp_path.iterdir())
