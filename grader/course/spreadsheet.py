"""Cells of CSV files that a spreadsheet takes for text, whatever somebody wrote into them.

A spreadsheet runs a cell that begins with =, +, -, or @ as a formula, also behind a tab or a line
break, and in East Asian settings in their full-width forms. A comma is not the separator
everywhere: where it is a semicolon, a cell with one in it becomes two.
"""

from __future__ import annotations

import re
from typing import overload

SIGNS = r"=+\-@\uff1d\uff0b\uff0d\uff20"
PLACE = rf"^('*)(?=[{SIGNS}\t\r\n])|(?<=[;\t\r\n])([ \"]*'*)(?=[{SIGNS}])"
QUOTABLE = re.compile(PLACE)
QUOTED = re.compile(PLACE.replace("'*", "'*?'"))


@overload
def harmless(value: str) -> str: ...
@overload
def harmless(value: object) -> object: ...
def harmless(value: object) -> object:
    """Return what to write into a cell: text with an apostrophe before what begins like a formula;
    a number as it is; an empty cell for None."""
    if isinstance(value, str):
        return QUOTABLE.sub(lambda found: f"{found[0]}'", value)
    return "" if value is None else value


def original(cell: str) -> str:
    """Return the text of which `harmless` made this cell."""
    return QUOTED.sub(lambda found: found[0][:-1], cell)
