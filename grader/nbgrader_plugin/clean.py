"""Sanitize a student's HTML: only text, tables, and pictures may reach a reader's browser.

nh3 does the work, on HTML that is already rendered: what Markdown makes of a source is not known
before. A class, an id, or a `data-` attribute is as dangerous as a script, because formgrader's
own scripts act on them: a click on an element of class `full-credit` gives full credit.
"""

from __future__ import annotations

import re

import nh3
from pygments.token import STANDARD_TYPES

TAGS = {"a", "b", "blockquote", "br", "caption", "code", "dd", "del", "details", "div", "dl", "dt",
        "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "ol", "p", "pre",
        "s", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th",
        "thead", "tr", "u", "ul"}
ATTRIBUTES = {"a": {"href", "title"}, "img": {"src", "alt", "title", "width", "height"},
              "ol": {"start"}, "td": {"colspan", "rowspan", "style"},
              "th": {"colspan", "rowspan", "style"}}
SIZE = re.compile(r"[0-9]{1,4}(?:px|%)?")
SPAN = re.compile(r"[1-9][0-9]{0,3}")
MOST_SPAN = 1000  # columns or rows of one cell, the most that a browser takes for columns
LINK = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
PICTURE = re.compile(r"data:image/(?:png|jpeg|gif);base64,[A-Za-z0-9+/=\s]*")


def _address(tag: str, attribute: str, value: str) -> str | None:
    """Return the value if it may stay: a link to another site, a picture inside the page, or a size
    that a page can have.

    A relative link leads into the server that shows the page. A picture from another site tells its
    owner who reads the page, and when.
    """
    if attribute == "href":
        return value if LINK.match(value) else None
    if attribute == "src":
        return value if PICTURE.fullmatch(value) else None
    if attribute in ("width", "height"):
        return value if SIZE.fullmatch(value) else None
    if attribute in ("colspan", "rowspan"):
        return value if SPAN.fullmatch(value) and int(value) <= MOST_SPAN else None
    return value


_cleaner = nh3.Cleaner(
    tags=TAGS,
    attributes=ATTRIBUTES,
    attribute_filter=_address,
    url_schemes={"http", "https", "mailto", "data"},
    url_relative="deny",
    # A page of another site in formgrader's frame could send commands to JupyterLab around it.
    set_tag_attribute_values={"a": {"target": "_blank"}},
    link_rel="noopener noreferrer",
    filter_style_properties={"text-align"},
    allowed_classes={"div": {"highlight"}, "span": {name for name in STANDARD_TYPES.values()
                                                    if name}},
)


def student_html(text: object) -> str:
    """Return the harmless part of a student's HTML. Raises nothing: any text is HTML."""
    return _cleaner.clean(str(text))
