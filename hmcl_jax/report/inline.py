"""Figures as part of an HTML page: an SVG file becomes an element that fits into any page.

Several of them may stand in one page, so names within each get a prefix, and a style that would
hold for the whole page is bound to its own figure. Ink becomes ``currentColor``, which follows the
page from light to dark.
"""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

INK = "#1c1e21"
XLINK = "{http://www.w3.org/1999/xlink}href"
# What matplotlib draws with; all else, such as scripts and metadata, stays outside.
ALLOWED = {
    *("svg", "g", "defs", "title", "desc", "path", "use", "clipPath", "rect", "circle", "ellipse"),
    *("line", "polyline", "polygon", "text", "tspan", "image", "pattern"),
}
ATTRIBUTES = {
    *("d", "x", "y", "x1", "y1", "x2", "y2", "cx", "cy", "r", "rx", "ry", "dx", "dy", "width"),
    *("height", "points", "transform", "style", "viewBox", "clip-path", "clip-rule", "fill"),
    *("fill-opacity", "fill-rule", "stroke", "stroke-width", "stroke-opacity", "opacity"),
    *("stroke-dasharray", "stroke-linecap", "stroke-linejoin", "stroke-miterlimit"),
    *("patternUnits", "patternTransform", "preserveAspectRatio", "text-anchor"),
}


def inline_svg(svg: str | os.PathLike[str], prefix: str) -> str:
    """A figure as an ``<svg>`` element to be put into HTML as it is.

    It has its natural width, 96 pixels to the inch, but never more than there is.

    Args:
      svg: the path of an SVG file, or its text.
      prefix: for the names within, one of its own for every figure of a page.

    Returns:
      The element, without anything that runs, loads from elsewhere, or styles the page.

    Raises:
      ValueError: if it is no SVG, or for a prefix that cannot begin a name.

    Example:
      >>> from hmcl_jax.report.inline import inline_svg
      >>> text = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 72 72"><path id="a"/></svg>'
      >>> print(inline_svg(text, "first"))
      <svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 72 72" style="width:96px;...
    """
    if not re.fullmatch(r"[A-Za-z][\w-]*", prefix, re.ASCII):
        raise ValueError(
            f"prefix must be a letter, then letters, digits, - or _, got prefix = {prefix!r}."
        )
    is_text = isinstance(svg, str) and svg.lstrip().startswith("<")
    text = str(svg) if is_text else Path(svg).read_text("utf8")
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"svg must be the text of an SVG file or its path: {error}.") from error
    box = re.split(r"[\s,]+", root.get("viewBox", "").strip())
    if _local(root.tag) != "svg" or len(box) != 4:
        raise ValueError("svg must be an <svg> element with a viewBox; save it with canvas.save.")
    title = next((e.text or "" for e in root if _local(e.tag) == "title"), "") or "figure"
    used = set(re.findall(r"url\(#([^)]+)\)", text) + re.findall(r"""href=["']#([^"']+)""", text))
    _clean(root, prefix, used)
    for child in [e for e in root if e.tag == "title"]:
        root.remove(child)
    shape = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "viewBox": " ".join(box)}
    width = float(box[2]) * 96 / 72
    root.attrib = shape | {
        "style": f"width:{width:.0f}px;max-width:100%;height:auto;stroke-linejoin:round;"
        "font-family:'DejaVu Sans',Verdana,sans-serif"
    }
    named = ElementTree.Element("title")
    named.text = title
    root.insert(0, named)
    return ElementTree.tostring(root, encoding="unicode")


def _local(tag: object) -> str:
    """The name without its namespace; empty for comments and instructions."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _clean(element: ElementTree.Element, prefix: str, used: set[str]) -> None:
    """Takes away what is not allowed and renames what is, down the whole tree."""
    element.tag = _local(element.tag)
    kept = {}
    for name, value in element.attrib.items():
        if name in (XLINK, "href"):
            if value.startswith("#"):
                kept["href"] = f"#{prefix}-{value[1:]}"
            elif re.match(r"data:image/(png|jpeg);base64,", value):
                kept["href"] = value
        elif name == "id":
            if value in used:
                kept["id"] = f"{prefix}-{value}"
        elif name in ATTRIBUTES and (clean := _value(value, prefix)):
            kept[name] = clean
    element.attrib = kept
    for child in list(element):
        if _local(child.tag) in ALLOWED:
            _clean(child, prefix, used)
        else:
            element.remove(child)
    if element.tag not in ("text", "tspan", "title", "desc"):
        element.text = None
    if element.tag != "tspan":
        element.tail = None


def _value(value: str, prefix: str) -> str:
    value = re.sub(r"url\(#([^)]+)\)", rf"url(#{prefix}-\1)", value)
    value = re.sub(r"font-family:[^;]*;?\s*", "", value)  # the figure has one for all
    value = re.sub(re.escape(INK), "currentColor", value, flags=re.IGNORECASE)
    outside = re.search(r"url\((?!#)|@import|expression\(|javascript:", value, re.IGNORECASE)
    return "" if outside else re.sub(r":\s+|;\s+", lambda m: m[0][0], value)
