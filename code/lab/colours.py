"""What matters in a cell's output stands out, in the same way in every lab: bold and in colour.

JupyterLab, nbgrader's feedback and terminals draw these codes. (The termcolor package leaves them
out where stdout is no terminal, and a notebook's is none.)
"""

from __future__ import annotations

import re

from lab.errors import LabError

GREEN, RED, BLUE, BOLD, PLAIN = "\033[1;32m", "\033[1;31m", "\033[1;34m", "\033[1m", "\033[0m"


def result(value: object) -> str:
    """A figure that the lab is about: `print(f"{result(f'{factor:.1f}')} times as fast")`."""
    return f"{BLUE}{value}{PLAIN}"


def good(value: object) -> str:
    return f"{GREEN}{value}{PLAIN}"


def bad(value: object) -> str:
    """What went wrong, or does not fit."""
    return f"{RED}{value}{PLAIN}"


def mark(text: str, *patterns: str) -> str:
    """`text`, a line of a log for example, with what these regular expressions match as results.

    Raises LabError for a pattern that matches nothing.
    """
    for pattern in patterns:
        if not re.search(pattern, text):
            raise LabError(f"there is no {pattern!r} in the line {text!r}")
    return re.sub("|".join(patterns), lambda match: result(match[0]), text)
