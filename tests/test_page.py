"""The parts of a page: what is escaped, sorted, coloured and left out."""

import base64
import dataclasses
import hashlib
import html.parser
import itertools
import re

import numpy as np
import pytest
from report_runs import HOSTILE, hostile_analysis

from hmcl_jax.report import page
from hmcl_jax.report.page import document, leading_number, macros, table
from hmcl_jax.report.tables import Table, p_value

TAGS = (
    "html head meta title style body header div h1 h2 h3 p nav ol li a main section table caption "
    "thead tbody tr th td button span bdi i img figure figcaption details summary script small dl "
    "dt dd pre"
)
VOID = ("br", "img", "meta")
PNG = b"\x89PNG picture"


class Reader(html.parser.HTMLParser):
    """Tags with attributes, text, and that every element is closed and no script is added."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open
        assert {tag for tag, _ in self.tags} <= set(TAGS.split())
        assert len(self.all("script")) <= 1
        assert not [a for _, a in self.tags if any(key.startswith("on") for key in a)]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def kept(name):
    return name.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_shown_as_it_is(name):
    cell = {"level": 1, "framed": True, "label": name, "text": name}
    parts = [
        table(Table(name, [[name, "n"], [name, "1"]], name, about={name: name})),
        macros().map(name, [name], [(name, [cell, None])]),
        macros().picture(page.data_uri(PNG), name, name),
        macros().details(name, name),
        macros().facts([(name, name)], name),
    ]
    read = Reader(document(name, name, {name: type(parts[0])().join(parts), "text": name}))
    assert len(read.all("style")) == 1
    assert read.text.count(kept(name)) > 12
    for attribute in ("title", "aria-label", "alt"):
        assert kept(name) in [a.get(attribute) for _, a in read.tags]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return hostile_analysis(tmp_path_factory.mktemp("runs"))


def test_a_report_of_hostile_names_is_text_alone(hostile):
    read = Reader(page.report_page(hostile))
    for name in (*hostile.methods, *hostile.order):
        assert kept(name) in read.text
    levels = [int(tag[1]) for tag, _ in read.tags if tag in ("h1", "h2", "h3")]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(b <= a + 1 for a, b in itertools.pairwise(levels))
    known = {f"#{attributes['id']}" for _, attributes in read.tags if "id" in attributes}
    assert {a["href"] for a in read.all("a")} <= known


def test_numbers_by_which_cells_are_sorted():
    texts = ("30.99 ± 0.17", "\u22125.07 %", "+45.2°", "2.4e-05 (15/15)", ".5", "4 tasks")
    assert [*map(leading_number, texts)] == [30.99, -5.07, 45.2, 2.4e-05, 0.5, 4.0]
    assert {*map(leading_number, ("1st", "1.5x", "", "-"))} == {None}


def test_a_table_has_headers_to_press_and_values_to_sort_by():
    rows = [["Method", "Acc", "Note"], ["a", "1.50 ± 0.10", "x"], ["b", "-2.00 ± 0.10 (-3 %)", ""]]
    read = Reader(table(Table("Scores", rows, "Percent.", {1: max}, {"Acc": "top-1"})))
    heads = [a for a in read.all("th") if a["scope"] == "col"]
    assert [a["aria-sort"] for a in heads] == ["none"] * len(read.all("button")) == ["none"] * 3
    assert heads[1]["title"] == "top-1"
    cells = read.all("td")
    assert [a.get("data-value") for a in cells] == ["1.5", None, "-2.0", None]
    assert [a.get("class") for a in cells] == ["number best", None, "number", None]
    assert "\u22122.00\u00a0±\u00a00.10 (\u22123\u00a0%)" in read.text
    box = {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": "Scores"}
    assert box in read.all("div")


def test_heat_maps_tell_their_values_and_have_one_stop_for_the_tab_key(hostile):
    R = np.full((2, 4, 4), np.nan)
    R[:, *np.tril_indices(4)] = [0.0, *(0.4, 0.5), *(0.0, 0.25, 0.5), *(0.3, 0.5, 0.5, 0.5)]
    results = {"m": dataclasses.replace(hostile.results["vanilla"], scores=R)}
    read = Reader(page.report_page(dataclasses.replace(hostile, results=results)))
    cells = [a for a in read.all("td") if "aria-label" in a]
    assert [a["tabindex"] for a in cells] == ["0", *["-1"] * (len(cells) - 1)]
    two, three, four = map(kept, hostile.order[1:])
    assert [a["aria-label"] for a in cells][:3] == [
        f"{two} (R) after 2 {two} (R): 0.0 % (50.0 \u2192 50.0)",
        f"{two} (R) after 3 {three}: \u221250.0 % (50.0 \u2192 25.0)",
        f"{two} (R) after 4 {four} (R): 0.0 % (50.0 \u2192 50.0)",
    ]
    assert [a["class"] for a in cells][:3] == ["hp0 framed", "hm12", "hp0 framed"]


def luminance(colour):
    """WCAG's relative luminance."""
    digits = colour * 2 if len(colour) == 3 else colour
    c = np.array([int(digits[i : i + 2], 16) for i in (0, 2, 4)]) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_text_on_every_colour_has_contrast():
    pair = r"light-dark\(#(\w+), #(\w+)\)"
    rule = rf"\.h([mp]\d+) \{{ background: {pair}; color: {pair}"
    rules = re.findall(rule, page._asset("page.css"))
    assert len({name for name, *_ in rules}) == len(rules) == 2 * page.LEVELS + 1
    for name, *colours in rules:
        for back, text in (colours[::2], colours[1::2]):
            deep, light = sorted([luminance(back), luminance(text)])
            assert (light + 0.05) / (deep + 0.05) >= 4.5, name


def test_pictures_are_within_the_page_and_drawings_have_its_ink():
    assert page.data_uri(PNG).startswith("data:image/png;base64,")
    assert page.data_uri(b"GIF89a") is page.data_uri(b"<svg onload=x>") is None
    svg = b'<?xml version="1.0"?><svg viewBox="0 0 9 9"><path style="stroke: #1C1E21"/></svg>'
    source = page.data_uri(svg)
    drawn = base64.b64decode(source.partition(",")[2]).decode()
    assert '<svg viewBox="0 0 9 9"><style>:root{color:#' in drawn
    assert '<path style="stroke: currentColor"/>' in drawn
    image = Reader(macros().picture(source, "below", "what it shows")).all("img")[0]
    assert (image["src"], image["alt"]) == (source, "what it shows")


def test_a_p_value_shows_on_which_side_of_a_twentieth_it_is():
    texts = [p_value(p) for p in (0.04, 0.04634, 0.0498, 0.05, 0.0502, 0.04996, 0.06, 1.0)]
    assert texts == ["0.04", "0.0463", "0.0498", "0.05", "0.0502", "0.04996", "0.06", "1"]


def test_the_policy_admits_our_script_alone():
    made = document("t", "l", {"One": "text", "Two": "text"})
    script = made.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a for a in Reader(made).all("meta") if "http-equiv" in a)["content"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert [a["href"] for a in Reader(made).all("a")[1:]] == ["#one", "#two"]
    assert [a["id"] for a in Reader(made).all("section")] == ["one", "two"]
