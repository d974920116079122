"""One self-contained HTML page: no network, no fonts from elsewhere, opens by double click."""

import base64
import dataclasses
import hashlib
import re
from importlib import resources

from hmcl_jax.report.markup import Markup, element, escape, join
from hmcl_jax.report.widgets import scale_css

LARGEST = 5_000_000  # bytes of a page


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
      title: its heading.
      content: HTML.
      anchor: for links to it.
    """

    title: str
    content: Markup
    anchor: str


@dataclasses.dataclass(frozen=True)
class Large:
    """Something large that may be left out of a page.

    Attributes:
      content: HTML.
      instead: what is said if it is left out.
    """

    content: Markup
    instead: str


class Page:
    """A page with a table of contents, light and dark, to be filled section by section.

    Args:
      title: of the page.
      lead: the first sentences.
      largest: bytes that the page must not exceed.

    Example:
      >>> from hmcl_jax.report.page import Page
      >>> page = Page("Results", "What came out.")
      >>> page.add("Scores <all>", "Higher is better.")
      >>> html = page.html()
      >>> print(html[:15], "Scores &lt;all&gt;" in html, 'href="#scores-all"' in html)
      <!doctype html> True True
    """

    def __init__(self, title: str, lead: object, largest: int = LARGEST) -> None:
        self.title, self.lead, self.largest = title, lead, largest
        self.sections: list[tuple[str, str, tuple[object, ...]]] = []

    def add(self, title: str, *content: object) -> None:
        """Adds a section.

        Args:
          title: its heading.
          *content: text is escaped, :class:`Markup` is not; None is left out. Of
            :class:`Large` parts the largest are replaced by a sentence if the page is too large.
        """
        taken = {anchor for _, anchor, _ in self.sections}
        base = anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        number = 2
        while anchor in taken:
            anchor, number = f"{base}-{number}", number + 1
        self.sections.append((title, anchor, content))

    def html(self) -> str:
        """The page.

        Raises:
          ValueError: if it is too large even without what may be left out.
        """
        parts = [part for _, _, content in self.sections for part in content]
        large = [part for part in parts if isinstance(part, Large)]
        large.sort(key=lambda part: len(part.content.encode()))
        left_out: set[int] = set()
        made = self._made(left_out)
        while len(made.encode()) > self.largest:
            if not large:
                raise ValueError(
                    f"The page has {len(made.encode())} bytes, more than {self.largest}; analyse "
                    "fewer methods at a time."
                )
            left_out.add(id(large.pop()))
            made = self._made(left_out)
        return made

    def _made(self, left_out: set[int]) -> str:
        sections = []
        for title, anchor, content in self.sections:
            shown = []
            for part in content:
                if isinstance(part, Large):
                    out = id(part) in left_out
                    part = element("p", part.instead, class_="note") if out else part.content
                shown.append(part)
            sections.append(Section(title, join(*shown), anchor))
        return _document(self.title, self.lead, sections)


def _asset(name: str) -> str:
    return resources.files("hmcl_jax.report").joinpath(name).read_text("utf8")


def _document(title: str, lead: object, sections: list[Section]) -> str:
    style = f"{_asset('page.css')}\n{scale_css()}"
    script = _asset("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Drawings carry style attributes, which have no hashes; scripts are ours alone.
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    links = [element("li", element("a", s.title, href=f"#{s.anchor}")) for s in sections]
    toggle = element(
        "button",
        element("span", "Dark", class_="to-dark"),
        element("span", "Light", class_="to-light"),
        id="theme",
        type="button",
        aria_label="Switch between light and dark",
    )
    header = element(
        "header", element("div", element("h1", title), toggle), element("p", lead, class_="lead")
    )
    contents = element("nav", element("ol", *links), aria_label="Contents")
    body = [
        element(
            "section",
            element("h2", s.title, id=f"{s.anchor}-title"),
            s.content,
            id=s.anchor,
            aria_labelledby=f"{s.anchor}-title",
        )
        for s in sections
    ]
    skip = element("a", "Skip to the contents", href="#main", class_="skip")
    tip = element("div", id="tip", role="tooltip", hidden=True)
    head = join(
        element("meta", charset="utf-8"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", title),
        Markup(f"<style>{style}</style>"),
    )
    main = element("main", *body, id="main", tabindex=-1)
    script = Markup(f"<script>{script}</script>")
    page = element("body", skip, header, contents, main, tip, script)
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n{page}\n</html>\n'
