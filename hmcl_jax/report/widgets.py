"""The parts of a page: tables that sort, heat maps that tell their values, pictures, cards.

What they do when they are clicked or hovered over is in ``page.js``, how they look in
``page.css``. Without scripts everything is still there to be read.
"""

import base64
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hmcl_jax.report.markup import Markup, element, escape, join

SHORT = 26  # characters of a name that is kept on one line
LEVELS = 12  # of colour, on either side of 0
NUMBER = re.compile(r"[-+\u2212]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
MINUS = re.compile(r"(?<![\w.])-(?=[\d.])")
PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}
# Ends and middles of the colour scale, (light, dark): worse, none, better.
SCALE = {
    -1.0: ("#b2182b", "#ff7a6b"),
    -0.5: ("#f0a58a", "#8f3a34"),
    0.0: ("#f4f4f1", "#262b33"),
    0.5: ("#94c4de", "#2f5f8a"),
    1.0: ("#2166ac", "#7cc0ff"),
}


def leading_number(text: str) -> float | None:
    """The number that a cell starts with, which it is sorted by.

    Args:
      text: such as ``"30.99 ± 0.17"``.

    Returns:
      The number, or None if the text starts with something else.

    Example:
      >>> from hmcl_jax.report.widgets import leading_number
      >>> print(leading_number("-5.07 ± 0.20"), leading_number("12.5 %"), leading_number("3rd"))
      -5.07 12.5 None
    """
    found = NUMBER.match(text.strip())
    if found is None or re.match(r"\w", text.strip()[found.end() :]):
        return None
    return float(found[0].replace("\u2212", "-"))


def table(
    rows: Sequence[Sequence[object]],
    caption: str,
    note: object = None,
    best: Mapping[int, Callable] | None = None,
    about: Mapping[str, str] | None = None,
) -> Markup:
    """A table that sorts by the column whose header is pressed.

    Args:
      rows: cells, the header first; the first column names its row.
      caption: what the table shows.
      note: units and conventions, below the table.
      best: by column, `max` or `min`: the best of its numbers is set off.
      about: what a column means, by header; shown when it is pointed at.

    Returns:
      The HTML.

    Example:
      >>> from hmcl_jax.report.widgets import table
      >>> html = table([["Method", "Acc"], ["a<b", "30.99 ± 0.17"]], "Scores", "Percent.")
      >>> print('data-value="30.99"' in html, "a&lt;b" in html)
      True True
    """
    header, *body = rows
    numbers = [[_number(cell) for cell in row] for row in body]
    winners = {}
    for column, choose in (best or {}).items():
        known = [row[column] for row in numbers if row[column] is not None]
        winners[column] = choose(known) if len(known) > 1 else None
    heads = [
        element(
            "th",
            element("button", name, element("span", class_="arrow"), type="button"),
            scope="col",
            aria_sort="none",
            title=(about or {}).get(str(name)),
            class_=None if i == 0 or not _numeric(body, i) else "number",
        )
        for i, name in enumerate(header)
    ]
    lines = []
    for row, values in zip(body, numbers, strict=True):
        short = "short" if len(str(row[0])) <= SHORT else None
        name = element("bdi", row[0])
        cells = [element("th", name, scope="row", data_value=values[0], class_=short)]
        for i, (cell, value) in enumerate(zip(row[1:], values[1:], strict=True), 1):
            kinds = ["number"] * _numeric(body, i)
            kinds += ["best"] * (value is not None and winners.get(i) == value)
            kind = " ".join(kinds) or None
            cells.append(element("td", _cell(cell), data_value=value, class_=kind))
        lines.append(element("tr", *cells))
    made = element(
        "table",
        element("caption", element("span", caption)),
        element("thead", element("tr", *heads)),
        element("tbody", *lines),
        class_="sortable",
    )
    return join(scroll(made, caption), _note(note))


def true_minus(text: str) -> str:
    """Text whose negative numbers have a minus sign, not a hyphen."""
    return MINUS.sub("\u2212", text)


def _number(cell: object) -> float | None:
    if isinstance(cell, bool | Markup):
        return None
    if isinstance(cell, int | float | np.number):
        return float(cell) if np.isfinite(cell) else None
    return leading_number(str(cell))


def _numeric(body: Sequence[Sequence[object]], column: int) -> bool:
    """Whether a column holds numbers and nothing else."""
    known = [_number(row[column]) for row in body if row[column] != ""]
    return bool(known) and None not in known


def _cell(cell: object) -> object:
    """A number does not break the line and has a true minus; brackets are smaller, or below it."""
    if isinstance(cell, Markup) or _number(cell) is None:
        return cell
    text = true_minus(str(cell)).replace(" ", "\u00a0")
    main, bracket, rest = text.partition("\u00a0(")
    plain = element("span", main)
    below = "below" if len(rest) > 12 else None
    return join(plain, " ", element("small", f"({rest}", class_=below)) if bracket else plain


def facts(pairs: Sequence[tuple[str, object]], caption: str) -> Markup:
    """Names and values, one below the other.

    Args:
      pairs: of them.
      caption: what they are about.

    Returns:
      The HTML.
    """
    listed = [
        element("div", element("dt", name), element("dd", value), class_="fact")
        for name, value in pairs
    ]
    return join(element("h3", caption), element("dl", *listed))


def scroll(content: object, label: str, kind: str = "scroll") -> Markup:
    """A box that scrolls by itself, also with the keyboard, if its content is too wide."""
    return element("div", content, class_=kind, tabindex=0, role="region", aria_label=label)


def _note(note: object) -> Markup | None:
    return None if note is None else element("p", note, class_="note")


@dataclasses.dataclass(frozen=True)
class Scale:
    """A diverging colour scale, one for all maps that are to be compared.

    Attributes:
      limit: the value of the darkest colours; what lies beyond has them too.
      unit: written behind values.
      worse: what negative values mean.
      better: what positive values mean.
    """

    limit: float
    unit: str = ""
    worse: str = "worse"
    better: str = "better"

    def level(self, value: float) -> int:
        """The colour of a value, from ``-LEVELS`` to ``LEVELS``."""
        share = float(np.clip(value / self.limit, -1, 1))
        return round(LEVELS * share)

    def legend(self) -> Markup:
        """The colours and what they mean."""
        swatches = [element("span", class_=_level(i)) for i in range(-LEVELS, LEVELS + 1)]
        ends = (f"\u2264 \u2212{self.limit:g}{self.unit}", f"\u2265 +{self.limit:g}{self.unit}")
        return element(
            "div",
            element("span", f"{self.worse} {ends[0]}"),
            element("span", *swatches, class_="swatches", aria_hidden="true"),
            element("span", f"{ends[1]} {self.better}"),
            class_="legend",
        )


def _level(level: int) -> str:
    return f"h{'m' if level < 0 else 'p'}{abs(level)}"


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    caption: str,
    scale: Scale,
    label: Callable[[int, int], str] | None = None,
    outlined: Callable[[int, int], bool] | None = None,
) -> Markup:
    """Numbers as colours; hover, focus and arrow keys tell them exactly.

    Args:
      values: of shape ``(rows, columns)``; NaN is an empty cell.
      rows: names.
      columns: names; their numbers, from 1, stand above the map.
      caption: what it shows.
      scale: shared by maps that are to be compared.
      label: what is told about a cell. Default: its row, column and value.
      outlined: which cells are framed.

    Returns:
      The HTML.

    Example:
      >>> import numpy as np
      >>> from hmcl_jax.report.widgets import Scale, heat_map
      >>> values = np.array([[0.0, -12.34]])
      >>> html = heat_map(values, ["cats"], ["cats", "dogs"], "Change", Scale(20.0, " %"))
      >>> print('aria-label="cats, dogs: \u221212.3 %"' in html)
      True
    """
    values = np.asarray(values, float)
    if values.shape != (len(rows), len(columns)):
        raise ValueError(
            f"values must have shape ({len(rows)}, {len(columns)}), one row per name in rows and "
            f"one column per name in columns, got shape {values.shape}."
        )

    def said(i: int, j: int) -> str:
        return f"{rows[i]}, {columns[j]}: {signed(values[i, j], 1)}{scale.unit}"

    tell = label or said
    head = [element("th", element("span", "task / stage", class_="unseen"), scope="col")]
    head += [element("th", str(j + 1), scope="col", title=n) for j, n in enumerate(columns)]
    lines, reached = [element("tr", *head, role="row")], False
    for i, name in enumerate(rows):
        short = "short" if len(name) <= SHORT else None
        number = element("i", str(i + 1))
        cells = [element("th", number, " ", element("bdi", name), scope="row", class_=short)]
        for j, value in enumerate(values[i]):
            if np.isnan(value):
                cells.append(element("td", class_="empty", role="gridcell"))
                continue
            kinds = [_level(scale.level(value))]
            kinds += ["framed"] * bool(outlined and outlined(i, j))
            cells.append(
                element(
                    "td",
                    signed(value, 0),
                    class_=" ".join(kinds),
                    role="gridcell",
                    tabindex=-1 if reached else 0,
                    aria_label=tell(i, j),
                )
            )
            reached = True
        lines.append(element("tr", *cells, role="row"))
    made = element(
        "table",
        element("caption", element("span", element("bdi", caption))),
        *lines,
        class_="map",
        role="grid",
    )
    return element("div", scroll(made, caption), class_="heat")


def signed(value: float, digits: int) -> str:
    """A number with its sign, a true minus, and no sign for 0.

    Args:
      value: finite.
      digits: behind the point.

    Example:
      >>> from hmcl_jax.report.widgets import signed
      >>> print(signed(-12.34, 1), signed(0.04, 1), signed(3, 0))
      \u221212.3 0.0 +3
    """
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return text
    return ("\u2212" if value < 0 else "+") + text


def scale_css() -> str:
    """Rules for the colours of heat maps, light and dark, with text that can be read on them."""
    rules = []
    for level in range(-LEVELS, LEVELS + 1):
        pairs = [_colour(level / LEVELS, dark) for dark in (0, 1)]
        inks = ["#fff" if _luminance(colour) < 0.179 else "#000" for colour in pairs]
        rules.append(
            f".{_level(level)}{{background:light-dark({pairs[0]},{pairs[1]});"
            f"color:light-dark({inks[0]},{inks[1]})}}"
        )
    return "\n".join(rules)


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)], float)


def _colour(share: float, dark: int) -> str:
    stops = sorted(SCALE)
    channels = np.array([_rgb(SCALE[stop][dark]) for stop in stops]).T
    mixed = [round(float(np.interp(share, stops, channel))) for channel in channels]
    return "#" + "".join(f"{value:02x}" for value in mixed)


def _luminance(colour: str) -> float:
    """WCAG's relative luminance: white text is the better one below 0.179."""
    c = _rgb(colour) / 255
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def data_uri(picture: bytes) -> str | None:
    """A JPEG or PNG file as an address that needs no network; None for anything else."""
    for start, kind in PICTURES.items():
        if picture.startswith(start):
            return f"data:{kind};base64,{base64.b64encode(picture).decode()}"
    return None


def picture(image: Markup | bytes, caption: object, alt: str) -> Markup:
    """A figure with its caption; where it is narrow, a button gives it its full width.

    Args:
      image: an ``<svg>`` element that is safe to be shown, or a PNG or JPEG file.
      caption: below it.
      alt: what it shows, for those who cannot see it.

    Returns:
      The HTML.
    """
    if isinstance(image, Markup):
        shown = element("div", image, class_="drawing", role="img", aria_label=alt)
    else:
        address = data_uri(image)
        if address is None:
            raise ValueError(f"image must be a PNG or JPEG file, got {image[:8]!r}.")
        shown = element("img", src=address, alt=alt, class_="drawing")
    box = scroll(shown, alt, "scroll wide")
    larger = element(
        "button",
        element("span", "Enlarge", class_="to-large"),
        element("span", "Fit", class_="to-fit"),
        element("span", f" {alt}", class_="unseen"),
        type="button",
        class_="enlarge",
        aria_pressed="false",
    )
    return element("figure", larger, box, element("figcaption", caption))


def cards(facts: Sequence[tuple[str, str, object]]) -> Markup:
    """The main numbers in a row: of each what it is, the number, and a sentence about it."""
    return element(
        "div",
        *(
            element(
                "div",
                element("p", title, class_="what"),
                element("p", *_figure(number), class_="figure"),
                element("p", text, class_="about"),
                class_="card",
            )
            for title, number, text in facts
        ),
        class_="cards",
    )


def _figure(number: str) -> tuple[object, ...]:
    main, sign, rest = true_minus(number).replace(" ", "\u00a0").partition("\u00a0±")
    return (main, " ", element("small", f"±{rest}")) if sign else (main,)


def details(summary: str, *content: object) -> Markup:
    """Something long that opens when it is pressed; in print it is open."""
    return element("details", element("summary", summary), *content)


def traversal(
    title: str | Markup,
    paths: Mapping[str, Sequence[Sequence[str]]],
    columns: Sequence[str],
    thumbnail: bytes | None = None,
    bare: bool = False,
    alt: str | None = None,
) -> Markup:
    """Walks from one picture to the root: one line per method, steps side by side.

    Args:
      title: what is known of the picture.
      paths: by method, one path for each of `columns`.
      columns: what the paths are.
      thumbnail: the picture, a JPEG or PNG file.
      bare: whether neither a picture nor a word on its absence is shown.
      alt: the title without markup. Default: the title.

    Returns:
      The HTML.
    """
    alt = str(title) if alt is None else alt
    address = data_uri(thumbnail) if thumbnail else None
    shown = (
        element("img", src=address, alt=f"The picture: {alt}", width=72, height=72)
        if address
        else element("span", "no picture in the store", class_="missing")
    )
    head = [element("th", name, scope="col") for name in ("Method", *columns)]
    lines = []
    for method, of_method in paths.items():
        cells = [element("td", _walk(path)) for path in of_method]
        lines.append(element("tr", element("th", element("bdi", method), scope="row"), *cells))
    made = element(
        "table",
        element("caption", element("span", element("bdi", title))),
        element("thead", element("tr", *head)),
        element("tbody", *lines),
        class_="walks",
    )
    box = scroll(made, f"Walks from {alt}")
    return box if bare else element("div", shown, box, class_="traversal")


def _walk(path: Sequence[str]) -> Markup:
    return element("ol", *(element("li", element("bdi", name)) for name in path), class_="walk")


def paragraph(*parts: object) -> Markup:
    """A paragraph of text."""
    return element("p", *parts)


def names(listed: Sequence[str]) -> Markup:
    """Names in a sentence, each kept apart from the direction of the text around it."""
    return join(*(element("bdi", escape(name)) for name in listed), between=", ")
