"""Rules of a lab's text: headings, images, links."""

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
class Part:
    """A heading, an image or a link. `line` counts from 1 in the cell; `text` is a heading's, or an
    image's alternative text."""

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
        """Whether the link leads to another file beside the notebook."""
        split = urlsplit(self.url)
        return not (split.scheme or split.netloc) and bool(split.path)


@cache
def parts(markdown: str) -> tuple[Part, ...]:
    """All headings, images and links of a cell, in order."""
    from markdown_it import MarkdownIt

    found: list[Part] = []
    tokens = MarkdownIt("commonmark").parse(markdown)
    for before, token in zip([None, *tokens], tokens, strict=False):
        line = token.map[0] + 1 if token.map else 1
        if token.type == "html_block":
            found += _html(token.content, line)
        for child in token.children or ():
            if child.type == "image":
                found.append(Part("image", line, child.content, str(child.attrs["src"])))
            elif child.type == "link_open":
                found.append(Part("link", line, url=str(child.attrs["href"])))
            elif child.type == "html_inline":
                found += _html(child.content, line)
        if token.type == "inline" and before is not None and before.type == "heading_open":
            text = "".join(child.content for child in token.children or ()
                           if child.type in ("text", "code_inline"))
            found.append(Part("heading", line, text, level=int(before.tag[1])))
    return tuple(found)


def _html(text: str, line: int) -> list[Part]:
    found: list[Part] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            given = dict(attrs)
            if tag == "img":
                found.append(Part("image", line, given.get("alt") or "", given.get("src") or ""))
            elif tag == "a" and given.get("href"):
                found.append(Part("link", line, url=given["href"]))

    Reader().feed(text)
    return found


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the text of a lab.

    Args:
        lab: the lab.
        problems: takes the errors.
    """
    texts = [cell if cell.role is Role.TEXT else replace(cell, source=without_markers(cell.source))
             for cell in lab.cells if cell.kind == "markdown"]
    headings = [(cell, part) for cell in texts for part in parts(cell.source)
                if part.kind == "heading" and cell.role is Role.TEXT]
    _headings(lab, headings, problems)
    anchors = {part.anchor for _, part in headings}
    for cell in texts:
        for part in parts(cell.source):
            if part.kind == "image" and not part.text.strip():
                problems.add(cell, part.line, f"image {part.url} has no alternative text: say in "
                             "![...] what one sees")
            if part.kind != "heading" and (wrong := _wrong_target(part, lab, anchors)):
                problems.add(cell, part.line, wrong)


def _headings(lab: Lab, headings: list[tuple[Cell, Part]], problems: Problems) -> None:
    first = lab.cells[0] if lab.cells else None
    if first is not None and not re.match(r"# \S", first.source):
        problems.add(first, 1, "a lab begins with a text cell that begins with its title: # Title")
    level, seen = 0, {}
    for cell, part in headings:
        if part.level == 1 and level:
            problems.add(cell, part.line, f"a second title, {part.text!r}: use ##")
        elif part.level > level + 1:
            problems.add(cell, part.line, f"{'#' * part.level} {part.text} follows "
                         f"{'#' * level or 'nothing'}: use {'#' * (level + 1)}")
        if part.anchor in seen:
            problems.add(cell, part.line, f"heading {part.text!r} stands in line "
                         f"{seen[part.anchor]} too: links could not tell them apart")
        seen.setdefault(part.anchor, cell.line_of(part.line))
        level = part.level


def _wrong_target(part: Part, lab: Lab, anchors: set[str]) -> str:
    """Return why the target of a link or an image is wrong; empty if it is right."""
    split = urlsplit(part.url)
    if split.scheme in ("http", "https", "mailto") and part.kind == "link":
        return ""
    if split.scheme or split.netloc:
        return f"{part.url}: images come from images/, so that labs work without internet"
    if not split.path:
        missing = unquote(split.fragment) not in anchors
        return f"{part.url}: no such heading{nearest(split.fragment, anchors)}" if missing else ""
    if split.path.startswith("/"):
        return f"{part.url} begins with /: it would lead nowhere behind a base path"
    target = normpath(join("notebooks", unquote(split.path)))
    if part.kind == "image" and not target.startswith("images/"):
        return f"{part.url}: images stand in images/, for example ../images/bubble.svg"
    source = _source(target, lab.path.parents[1])
    if source is None:
        return f"{part.url}: students have notebooks/, ../images/ and ../code/ (job scripts) only"
    if not source.is_file():
        near = nearest(source.name, {path.name for path in source.parent.glob("*")})
        return f"{part.url}: there is no {source.name}{near}"
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
    """The text with all its relative links as they must be one folder further down."""
    urls = {part.url for part in parts(markdown) if part.is_relative}
    before, after = r"""(\]\(\s*<?|\]:\s*<?|(?:src|href)=["'])""", r"""(?=[\s)>"'])"""
    for url in urls:
        # The replacement is a function: a URL may hold what re takes for a reference.
        markdown = re.sub(before + re.escape(url) + after,
                          lambda found, url=url: f"{found[1]}../{url}", f"{markdown}\n")[:-1]
    return markdown


def text_of(cells: list[Cell], index: int) -> int | None:
    """Return the index of the nearest text cell above a cell.

    Args:
        cells: the lab's cells.
        index: of the cell.
    """
    return next((above for above in reversed(range(index)) if cells[above].role is Role.TEXT
                 and cells[above].kind == "markdown"), None)
