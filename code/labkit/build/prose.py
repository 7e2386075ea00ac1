"""Rules for a lab's text: headings, images, and links."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from posixpath import join, normpath
from urllib.parse import unquote, urlsplit

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems, nearest
from labkit.build.stubs import without_markers


@dataclass(frozen=True)
class Element:
    """A heading, an image, or a link.

    Attributes:
        line: its line in the cell, from 1.
        text: the text of a heading, or the alternative text of an image.
    """

    kind: str
    line: int
    text: str = ""
    url: str = ""
    level: int = 0

    @property
    def anchor(self) -> str:
        """The heading's anchor in JupyterLab's addresses."""
        return self.text.replace(" ", "-")

    @property
    def is_relative(self) -> bool:
        """Return whether the link points to another file, relative to the notebook."""
        split = urlsplit(self.url)
        return not (split.scheme or split.netloc) and bool(split.path)


@cache
def elements(markdown: str) -> tuple[Element, ...]:
    """Return all headings, images, and links of a cell, in order."""
    from markdown_it import MarkdownIt

    elements: list[Element] = []
    tokens = MarkdownIt("commonmark").parse(markdown)
    for before, token in zip([None, *tokens], tokens, strict=False):
        line = token.map[0] + 1 if token.map else 1
        if token.type == "html_block":
            elements += _html(token.content, line)
        for child in token.children or ():
            if child.type == "image":
                elements.append(Element("image", line, child.content, str(child.attrs["src"])))
            elif child.type == "link_open":
                elements.append(Element("link", line, url=str(child.attrs["href"])))
            elif child.type == "html_inline":
                elements += _html(child.content, line)
        if token.type == "inline" and before is not None and before.type == "heading_open":
            text = "".join(child.content for child in token.children or ()
                           if child.type in ("text", "code_inline"))
            elements.append(Element("heading", line, text, level=int(before.tag[1])))
    return tuple(elements)


def _html(text: str, line: int) -> list[Element]:
    elements: list[Element] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if tag == "img":
                elements.append(Element("image", line, given.get("alt") or "",
                                        given.get("src") or ""))
            elif tag == "a" and given.get("href"):
                elements.append(Element("link", line, url=given["href"]))

    Reader().feed(text)
    return elements


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the text of a lab.

    Args:
        problems: takes the errors.
    """
    texts = [cell if cell.role is Role.TEXT else replace(cell, source=without_markers(cell.source))
             for cell in lab.cells if cell.kind == "markdown"]
    headings = [(cell, element) for cell in texts for element in elements(cell.source)
                if element.kind == "heading" and cell.role is Role.TEXT]
    _headings(lab, headings, problems)
    anchors = {element.anchor for _, element in headings}
    for cell in texts:
        for element in elements(cell.source):
            if element.kind == "image" and not element.text.strip():
                problems.add(cell, element.line, f"image {element.url} has no alternative text: "
                             "describe the image in ![...]")
            if element.kind != "heading" and (wrong := _wrong_target(element, lab, anchors)):
                problems.add(cell, element.line, wrong)


def _headings(lab: Lab, headings: list[tuple[Cell, Element]], problems: Problems) -> None:
    first = lab.cells[0] if lab.cells else None
    if first is not None and not re.match(r"# \S", first.source):
        problems.add(first, 1, "a lab begins with a text cell that begins with its title: # Title")
    level, seen = 0, {}
    for cell, element in headings:
        if element.level == 1 and level:
            problems.add(cell, element.line, f"a second title, {element.text!r}: use ##")
        elif element.level > level + 1:
            problems.add(cell, element.line, f"{'#' * element.level} {element.text} follows "
                         f"{'#' * level or 'nothing'}: use {'#' * (level + 1)}")
        if element.anchor in seen:
            problems.add(cell, element.line, f"heading {element.text!r} is also in line "
                         f"{seen[element.anchor]}: links could not tell them apart")
        seen.setdefault(element.anchor, cell.line_of(element.line))
        level = element.level


def _wrong_target(element: Element, lab: Lab, anchors: set[str]) -> str:
    """Return why the target of a link or an image is wrong; empty if it is right."""
    split = urlsplit(element.url)
    if split.scheme in ("http", "https", "mailto") and element.kind == "link":
        return ""
    if split.scheme or split.netloc:
        return f"{element.url}: images come from images/, so that labs work without internet"
    if not split.path:
        missing = unquote(split.fragment) not in anchors
        near = nearest(split.fragment, anchors)
        return f"{element.url}: no such heading{near}" if missing else ""
    if split.path.startswith("/"):
        return f"{element.url} begins with /: it breaks on a server with a base path"
    target = normpath(join("notebooks", unquote(split.path)))
    if element.kind == "image" and not target.startswith("images/"):
        return f"{element.url}: images belong in images/, for example ../images/bubble.svg"
    source = _source(target, lab.path.parents[1])
    if source is None:
        return f"{element.url}: students only have notebooks/, ../images/, and ../code/"
    if not source.is_file():
        near = nearest(source.name, {path.name for path in source.parent.glob("*")})
        return f"{element.url}: no such file: {source.name}{near}"
    return ""


def _source(target: str, root: Path) -> Path | None:
    """Return the file in the checkout that becomes `target` in a student's workspace."""
    folder, _, name = target.partition("/")
    if folder == "notebooks" and "/" not in name and name.endswith(".ipynb"):
        return root / "solutions" / f"{name.removesuffix('.ipynb')}.py"
    if folder == "images":
        return root / target
    return root / "code" / "jobs" / name if folder == "code" else None


def moved_down(markdown: str) -> str:
    """Return the text with its relative links rewritten for one folder further down."""
    urls = {element.url for element in elements(markdown) if element.is_relative}
    before, after = r"""(\]\(\s*<?|\]:\s*<?|(?:src|href)=["'])""", r"""(?=[\s)>"'])"""
    for url in urls:
        # The replacement is a function, since a URL may contain a group reference such as \1.
        markdown = re.sub(before + re.escape(url) + after,
                          lambda match, url=url: f"{match[1]}../{url}", f"{markdown}\n")[:-1]
    return markdown


def text_of(cells: list[Cell], index: int) -> int | None:
    """Return the index of the nearest text cell above a cell.

    Args:
        cells: the lab's cells.
        index: the cell's index.
    """
    return next((above for above in reversed(range(index)) if cells[above].role is Role.TEXT
                 and cells[above].kind == "markdown"), None)
