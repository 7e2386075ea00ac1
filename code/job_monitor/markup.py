"""HTML and SVG that cannot be anything else: every text is escaped where an element is made."""

from __future__ import annotations

import html
from collections.abc import Iterable

from labcore.terminal import visible


class Markup(str):
    """A text that is markup already. Only `element` and `join` make one."""


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """`<name key="...">children</name>`; a None is left out, `class_` is class, `x_y` is x-y."""
    words = [name]
    for key, value in attributes.items():
        if value is not None:
            words.append(f'{key.rstrip("_").replace("_", "-")}="{escape(str(value))}"')
    return Markup(f"<{' '.join(words)}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    return Markup("".join(child if isinstance(child, Markup) else escape(str(child))
                          for child in children if child is not None))


def escape(text: str) -> str:
    """For an element's text or a quoted attribute; without control characters, which HTML has not.
    """
    return html.escape(visible(text, instead="\N{REPLACEMENT CHARACTER}", keep="\n\t"))


def void(name: str, /, **attributes: object) -> Markup:
    """An element without content, such as img."""
    return Markup(element(name, **attributes).removesuffix(f"</{name}>"))


def table(head: Iterable[object], rows: Iterable[Iterable[object]], **attributes: object) -> Markup:
    """In a box of its own, which scrolls where the page is narrow."""
    cells = element("tr", *(element("th", one, scope="col") for one in head))
    body = [element("tr", *(element("td", one) for one in row)) for row in rows]
    return element("div", element("table", element("thead", cells), element("tbody", *body),
                                  **attributes), class_="wide")


def pairs(rows: Iterable[tuple[object, object]]) -> Markup:
    """Names and values, one under another."""
    return element("table", element("tbody", *(
        element("tr", element("th", name, scope="row"), element("td", value))
        for name, value in rows)), class_="pairs")


def grid(rows: Iterable[tuple[object, object]]) -> Markup:
    """Short names and values, side by side."""
    return element("dl", *(element("div", element("dt", name), element("dd", value))
                           for name, value in rows), class_="grid")
