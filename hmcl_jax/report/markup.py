"""HTML from text: one function escapes, one makes elements, and nothing else writes a tag."""

import html
import re

# What no HTML file may hold: controls except tab and line feed, and halves of surrogate pairs.
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
NAME = re.compile(r"[a-z][a-z0-9-]*")
VOID = ("br", "img", "meta")


class Markup(str):
    """HTML that is ready to be shown; any other string is text and is escaped first."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Text as HTML, safe between tags and in quoted attributes.

    Args:
      value: anything; a :class:`Markup` stays as it is.

    Returns:
      The HTML. Characters that no file may hold are shown as U+FFFD.

    Example:
      >>> from hmcl_jax.report.markup import escape
      >>> print(escape('<b> & "c"'), escape(escape("<")))
      &lt;b&gt; &amp; &quot;c&quot; &lt;
    """
    if isinstance(value, Markup):
        return value
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")
    return Markup(html.escape(FORBIDDEN.sub("\ufffd", text), quote=True))


def join(*parts: object, between: str = "") -> Markup:
    """Several pieces one after the other, each escaped unless it is :class:`Markup`.

    Args:
      *parts: the pieces; None is left out.
      between: text between them.

    Example:
      >>> from hmcl_jax.report.markup import element, join
      >>> print(join("a < b", None, element("br"), "c"))
      a &lt; b<br>c
    """
    return Markup(str(escape(between)).join(escape(part) for part in parts if part is not None))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
      tag: its name.
      *children: what is in it, escaped unless it is :class:`Markup`; None is left out.
      **attributes: values are escaped. True gives the bare name; None and False leave it out. In
        names ``_`` stands for ``-``, and one at the end for nothing, as in ``class_``.

    Returns:
      The HTML.

    Example:
      >>> from hmcl_jax.report.markup import element
      >>> print(element("td", "a < b", class_="number", data_value=1.5, hidden=None))
      <td class="number" data-value="1.5">a &lt; b</td>
    """
    written = [tag]
    for name, value in attributes.items():
        name = name.removesuffix("_").replace("_", "-")
        if not NAME.fullmatch(name):
            raise ValueError(f"An attribute must have a plain name, got {name!r}.")
        if value is not None and value is not False:
            written.append(name if value is True else f'{name}="{escape(str(value))}"')
    if not NAME.fullmatch(tag):
        raise ValueError(f"tag must be a plain name, got {tag!r}.")
    opening = f"<{' '.join(written)}>"
    return Markup(opening if tag in VOID else f"{opening}{join(*children)}</{tag}>")
