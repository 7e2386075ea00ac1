"""Escape cells of CSV files, so that a spreadsheet treats them as text.

A spreadsheet runs a cell that begins with =, +, -, or @ as a formula, and in East Asian settings
in their full-width forms. Spaces and invisible characters before the sign may be dropped when the
file is read: a tab, a no-break space, a byte order mark. Where the separator is a semicolon, a cell
that contains one becomes two cells.
"""

from __future__ import annotations

import re
from typing import overload

SIGNS = r"=+\-@\uff1d\uff0b\uff0d\uff20"
# Every space of Unicode (\s), and what is invisible: controls, soft hyphens, zero widths, marks;
# but no separator.
BLANK = (r"(?![;\t\r\n])[\s\x00-\x1f\x7f-\xa0\xad\u061c\u180e\u200b-\u200f\u2028-\u202f"
         r"\u2060-\u206f\ufeff\ufff9-\ufffb]")
PLACE = (rf"^('*)(?=(?:{BLANK})*[{SIGNS}]|[\t\r\n])"
         rf"|(?<=[;\t\r\n])((?:\"|{BLANK})*'*)(?=[{SIGNS}])")
QUOTABLE = re.compile(PLACE)
QUOTED = re.compile(PLACE.replace("'*", "'*?'"))


@overload
def harmless(value: str) -> str: ...
@overload
def harmless(value: object) -> object: ...
def harmless(value: object) -> object:
    """Return a cell's value: text with an apostrophe before anything that could start a formula,
    numbers unchanged, and an empty cell for None."""
    if isinstance(value, str):
        return QUOTABLE.sub(lambda match: f"{match[0]}'", value)
    return "" if value is None else value


def original(cell: str) -> str:
    """Return the text from which `harmless` made this cell."""
    return QUOTED.sub(lambda match: match[0][:-1], cell)
