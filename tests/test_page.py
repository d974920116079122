"""The parts of a page: what is escaped, sorted, coloured and left out."""

import html.parser

import numpy as np
import pytest
from report_runs import HOSTILE

from hmcl_jax.report import widgets
from hmcl_jax.report.drift import p_value
from hmcl_jax.report.markup import Markup, element, escape, join
from hmcl_jax.report.page import Large, Page
from hmcl_jax.report.widgets import Scale, heat_map, leading_number, picture, table

TAGS = (
    "html head meta title style body header div h1 h2 h3 p nav ol li a main section table caption "
    "thead tbody tr th td button span bdi i img figure figcaption details summary script small dl "
    "dt dd"
)
VOID = ("br", "img", "meta")
JPEG, PNG = b"\xff\xd8\xff\xe0 picture", b"\x89PNG picture"


class Reader(html.parser.HTMLParser):
    """Tags with attributes, text, and whether every element is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open, self.open

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


def shown(name):
    return name.replace("\ud800", "\ufffd").replace("\x00", "\ufffd")


@pytest.mark.parametrize("name", HOSTILE)
def test_any_text_is_shown_as_it_is(name):
    read = Reader(element("p", name, title=name))
    assert read.tags == [("p", {"title": shown(name)})]
    assert read.text == shown(name)
    page = Page(name, name)
    page.add(name, table([[name, "n"], [name, "1"]], name, name, about={name: name}))
    scale = Scale(2.0, "", name, name)
    page.add(name, heat_map(np.ones((1, 1)), [name], [name], name, scale), scale.legend())
    page.add(name, widgets.traversal(name, {name: [[name], [name]]}, [name, name], JPEG))
    page.add(
        name, picture(PNG, name, name), widgets.details(name, name), widgets.cards([(name,) * 3])
    )
    read = Reader(page.html())
    tags = {tag for tag, _ in read.tags}
    assert tags <= set(TAGS.split())
    assert len(read.all("script")) == len(read.all("style")) == 1
    assert not [a for _, a in read.tags if any(key.startswith("on") for key in a)]
    assert read.text.count(shown(name)) > 12
    page.html().encode()


def test_markup_is_kept_and_text_is_not():
    assert escape(Markup("<b>")) == "<b>"
    assert join("<", Markup("<b>"), None, between="&") == "&lt;&amp;<b>"
    assert element("td", Markup("<br>"), class_="x", hidden=False, a=None, b=True) == (
        '<td class="x" b><br></td>'
    )
    assert escape("a\r\nb\rc\x0b\x9f") == "a\nb\nc\ufffd\ufffd"
    with pytest.raises(ValueError, match="plain name"):
        element("td", **{"on x": 1})
    with pytest.raises(ValueError, match="tag must be a plain name"):
        element("td onclick=x")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("30.99 ± 0.17", 30.99),
        ("-5.07", -5.07),
        ("\u22125.07 %", -5.07),
        ("+45.2°", 45.2),
        ("2.4e-05 (15/15)", 2.4e-05),
        (".5", 0.5),
        ("12", 12.0),
        ("1st", None),
        ("4 tasks", 4.0),
        ("", None),
        ("vanilla", None),
        ("-", None),
    ],
)
def test_numbers_that_cells_are_sorted_by(text, number):
    assert leading_number(text) == number


def test_a_table_has_headers_to_press_and_values_to_sort_by():
    rows = [["Method", "Acc", "Note"], ["a", "1.50 ± 0.10", "x"], ["b", "-2.00 ± 0.10 (-3 %)", ""]]
    read = Reader(table(rows, "Scores", "Percent.", {1: max}, {"Acc": "top-1"}))
    heads = [a for a in read.all("th") if a["scope"] == "col"]
    assert [a["aria-sort"] for a in heads] == ["none"] * 3
    assert heads[1]["title"] == "top-1"
    assert len(read.all("button")) == 3
    cells = read.all("td")
    assert [a.get("data-value") for a in cells] == ["1.5", None, "-2.0", None]
    assert [a.get("class") for a in cells] == ["number best", None, "number", None]
    assert "\u22122.00\u00a0±\u00a00.10 (\u22123\u00a0%)" in read.text
    box = next(a for a in read.all("div") if a["class"] == "scroll")
    assert (box["tabindex"], box["role"], box["aria-label"]) == ("0", "region", "Scores")
    assert "Percent." in read.text


def test_a_heat_map_tells_its_values_and_has_one_stop_for_the_tab_key():
    values = np.array([[0.0, -50.0, 7.25], [np.nan, 0.0, 100.0]])
    read = Reader(heat_map(values, ["r", "s"], ["a", "b", "c"], "m", Scale(50.0, " %")))
    cells = read.all("td")
    assert [a.get("tabindex") for a in cells] == ["0", "-1", "-1", None, "-1", "-1"]
    assert [a.get("aria-label") for a in cells] == [
        *(
            "r, a: 0.0 %",
            "r, b: \u221250.0 %",
            "r, c: +7.2 %",
            None,
            "s, b: 0.0 %",
            "s, c: +100.0 %",
        )
    ]
    assert [a["class"] for a in cells] == ["hp0", "hm12", "hp2", "empty", "hp0", "hp12"]
    with pytest.raises(ValueError, match=r"shape \(2, 2\).*got shape \(2, 3\)"):
        heat_map(values, ["r", "s"], ["a", "b"], "m", Scale(50.0))


def test_text_on_every_colour_has_contrast():
    for level in range(-widgets.LEVELS, widgets.LEVELS + 1):
        for dark in (0, 1):
            back = widgets._luminance(widgets._colour(level / widgets.LEVELS, dark))
            rule = widgets.scale_css().splitlines()[level + widgets.LEVELS]
            ink = rule.split("color:light-dark(")[1].rstrip(")}").split(",")[dark]
            text = {"#fff": 1.0, "#000": 0.0}[ink]
            light, deep = max(back, text), min(back, text)
            assert (light + 0.05) / (deep + 0.05) >= 4.5, (level, dark)


def test_pictures_are_within_the_page():
    read = Reader(picture(PNG, "below", "what it shows"))
    assert read.all("img")[0]["src"].startswith("data:image/png;base64,")
    assert read.all("img")[0]["alt"] == "what it shows"
    with pytest.raises(ValueError, match="PNG or JPEG"):
        picture(b"GIF89a", "", "")
    assert widgets.data_uri(b"<svg onload=x>") is None
    assert "no picture" in Reader(widgets.traversal("t", {"m": [["a"]]}, ["end"], b"<svg>")).text


def test_a_title_may_hold_names_that_are_kept_apart():
    title = join(element("bdi", "<cat>"), " (", element("bdi", "pets"), ")")
    made = widgets.traversal(title, {"m": [["a"]]}, ["end"], JPEG, alt="<cat> (pets)")
    assert "<bdi>&lt;cat&gt;</bdi> (<bdi>pets</bdi>)" in made
    read = Reader(made)
    assert read.all("img")[0]["alt"] == "The picture: <cat> (pets)"
    assert read.all("div")[1]["aria-label"] == "Walks from <cat> (pets)"


def test_a_p_value_shows_on_which_side_of_a_twentieth_it_is():
    found = [p_value(p) for p in (0.04, 0.04634, 0.0498, 0.05, 0.0502, 0.04996, 0.06, 1.0)]
    assert found == ["0.04", "0.0463", "0.0498", "0.05", "0.0502", "0.04996", "0.06", "1"]


def test_sections_have_anchors_of_their_own():
    page = Page("t", "l")
    for title in ("One", "One", "!", "\u05e9"):
        page.add(title, "text")
    read = Reader(page.html())
    anchors = [a["id"] for a in read.all("section")]
    assert anchors == ["one", "one-2", "section", "section-2"]
    assert [a["href"] for a in read.all("a")[1:]] == [f"#{anchor}" for anchor in anchors]
    assert read.all("html")[0]["lang"] == "en"


def test_the_policy_admits_our_script_alone():
    import base64
    import hashlib

    made = Page("t", "l").html()
    script = made.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a for a in Reader(made).all("meta") if "http-equiv" in a)["content"]
    assert f"script-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "http" not in policy


def test_a_page_that_is_too_large_leaves_out_the_largest():
    page = Page("t", "l", largest=40_000)
    page.add("a", Large(Markup("x" * 9_000), "small is out"), "kept")
    page.add("b", Large(Markup("y" * 60_000), "large is out"))
    made = page.html()
    assert len(made.encode()) <= 40_000
    assert "large is out" in made
    assert "small is out" not in made
    page.add("c", Markup("z" * 60_000))
    with pytest.raises(ValueError, match="more than 40000; analyse fewer methods"):
        page.html()
