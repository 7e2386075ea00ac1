"""Bound the work of rendering one page, no matter what a student wrote.

Highlighting, Markdown, ANSI colors, and the sanitizer each take at least quadratic time on some
input, and most of them run in C, which an alarm cannot interrupt. A browser's layout of tables does
the same, and a picture of a few kilobytes may unpack to gigabytes. So input above a limit is not
rendered: it is shown as plain text.
"""

from __future__ import annotations

import base64
import binascii
import html
import io
import re
from collections.abc import Callable
from itertools import accumulate

from PIL import Image

from grader.nbgrader_plugin.clean import PICTURE
from labcore.html import render

MOST_MARKUP = 40_000  # characters `<` and `&` of a page's HTML outputs
MOST_DEPTH = 500  # nested tags: 20,000 of them take a second, and the time grows quadratically
MOST_HTML = 1_000_000  # characters of a page's HTML outputs, pictures aside
MOST_MARKDOWN = 40_000  # characters of a page's written answers, about 6,000 words
MOST_CODE = 200_000  # characters of a page's code that is highlighted
MOST_COLORS = 5_000  # ANSI sequences of a page's streams and tracebacks
MOST_COLUMNS = 1_000  # of one table: Chromium lays out 8,000 cells of 100 columns each in 44 s
MOST_SLOTS = 200_000  # rows times columns of a page's tables
MOST_PIXELS = 25_000_000  # of one picture, which take 100 MB
MOST_PIXELS_OF_PAGE = 10 * MOST_PIXELS
LONGEST_SHOWN = 100_000  # characters of what is shown as plain text
ESCAPE = re.compile("\x1b\\[[0-9;]*m")
TAG = re.compile("<(/?)[A-Za-z]")
TABLE = re.compile(r"<(/?)(table|tr|t[dh])\b([^>]*)>")
SPANS = re.compile(r'(col|row)span="(\d+)"')
SHOWN_PICTURE = re.compile(r'<img\b[^>]*\ssrc="[^",]*,([^"]*)"')  # `>` is escaped in attributes
PICTURES = {"image/png": "PNG", "image/jpeg": "JPEG", "image/gif": "GIF"}
TOO_LARGE = "This picture is not shown, because it is broken or has too many pixels.\n"
NOT_RENDERED = "This is too long or too complex to render, so it is shown as text.\n"


class PageBudget:
    """The work that is left for one page."""

    def __init__(self) -> None:
        self.markup, self.html, self.markdown = MOST_MARKUP, MOST_HTML, MOST_MARKDOWN
        self.code, self.colors = MOST_CODE, MOST_COLORS
        self.slots, self.pixels = MOST_SLOTS, MOST_PIXELS_OF_PAGE

    @classmethod
    def spent(cls) -> PageBudget:
        """Return a budget with which nothing is rendered."""
        budget = cls()
        vars(budget).update(dict.fromkeys(vars(budget), 0))
        return budget

    def takes_html(self, text: str) -> bool:
        """Return whether HTML may be sanitized and shown."""
        markup, length = text.count("<") + text.count("&"), len(text)
        if length > self.html:  # unless it is one picture
            length -= sum(len(picture) for picture in PICTURE.findall(text))
        return (self._takes("markup", markup) and self._takes("html", length)
                and depth(text) <= MOST_DEPTH)

    def takes_layout(self, cleaned: str) -> bool:
        """Return whether a browser may lay out sanitized HTML: its tables and its pictures."""
        slots, columns = grid(cleaned)
        return (columns <= MOST_COLUMNS and self._takes("slots", slots)
                and all(map(self.takes_picture, SHOWN_PICTURE.findall(cleaned))))

    def takes_picture(self, content: str) -> bool:
        """Return whether a picture, in base64, may be shown."""
        count = pixels(content)
        return count <= MOST_PIXELS and self._takes("pixels", count)

    def takes_markdown(self, text: str) -> bool:
        """Return whether Markdown may be rendered."""
        return self._takes("markdown", len(text))

    def takes_code(self, text: str) -> bool:
        """Return whether code may be highlighted."""
        return self._takes("code", len(text))

    def colored(self, text: str, render: Callable[[str], str]) -> str:
        """Return a terminal's text as HTML, without its colors if there are too many.

        Args:
            text: the text.
            render: makes HTML from it.
        """
        if "\x1b" not in text or self._takes("colors", text.count("\x1b")):
            return render(text)
        return html.escape(ESCAPE.sub("", text))

    def _takes(self, what: str, cost: int) -> bool:
        left = getattr(self, what)
        if cost > left or not left:
            return False
        setattr(self, what, left - cost)
        return True


def depth(text: str) -> int:
    """Return how deep HTML may be nested, with every unclosed tag counted as one level."""
    steps = (-1 if closing else 1 for closing in TAG.findall(text))
    return max(accumulate(steps, lambda level, step: max(0, level + step)), default=0)


def grid(text: str) -> tuple[int, int]:
    """Return how many slots the tables in sanitized HTML have, and the columns of the widest.

    A cell that spans rows may push the cells of all later rows to the right.
    """
    slots = most = 0
    tables: list[list[int]] = []  # rows, columns of this row, of the widest, and of spanning cells
    for closing, name, attributes in TABLE.findall(text):
        if name == "table" and not closing:
            tables.append([0, 0, 0, 0])
        elif name == "table" and tables:
            rows, _, widest, spanning = tables.pop()
            slots += rows * (widest + spanning)
            most = max(most, widest + spanning)
        elif tables and not closing:
            table = tables[-1]
            if name == "tr":
                table[:2] = table[0] + 1, 0
                continue
            spans = dict(SPANS.findall(attributes))
            width = int(spans.get("col", 1))
            table[1] += width
            table[2] = max(table[2], table[1])
            table[3] += width * ("row" in spans)
    return slots, most


def pixels(content: str) -> int:
    """Return the pixels of a picture in base64; more than any limit for one that is broken.

    A browser goes by the content, whatever the picture is called, and reads more formats.
    """
    if not content:
        return 0
    try:
        content_bytes = base64.b64decode("".join(content.split()), validate=True)
        with Image.open(io.BytesIO(content_bytes), formats=list(PICTURES.values())) as picture:
            return picture.width * picture.height
    except (binascii.Error, ValueError, OSError, SyntaxError, Image.DecompressionBombError):
        return MOST_PIXELS_OF_PAGE + 1


def as_text(text: str) -> str:
    """Return HTML that shows text unchanged, shortened if it is too long."""
    shown = text[:LONGEST_SHOWN] + ("\n..." if len(text) > LONGEST_SHOWN else "")
    return render("grader/nbgrader_plugin/as_text.html.j2", text=NOT_RENDERED + shown)
