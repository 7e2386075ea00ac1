"""Highlight parts of the cells' output: bold text in one of three colors, the same in every lab.

Notebooks, nbgrader's feedback, and terminals render these codes. Only the user of a terminal can
turn them off, in the usual way: https://no-color.org.
"""

from __future__ import annotations

import re
import sys

from termcolor import colored

from labcore.errors import LabError

# A notebook's theme is light or dark, and feedback pages are light. Jupyter turns a bold color of
# the usual sixteen into its darkest shade, which a dark theme makes unreadable; these have a
# contrast of at least 4 with a background of either theme.
IN_NOTEBOOKS = {"blue": (32, 120, 216), "green": (10, 138, 63), "red": (224, 58, 62)}


def result(value: object) -> str:
    """Highlight a cell's main figure: `print(f"{result(f'{factor:.1f}')} x faster")`."""
    return _bold(value, "blue")


def good(value: object) -> str:
    """Highlight what worked, or what fits."""
    return _bold(value, "green")


def bad(value: object) -> str:
    """Highlight what went wrong, or what does not fit."""
    return _bold(value, "red")


def strong(value: object) -> str:
    """Make a name stand out without a color."""
    return _bold(value, None)


def mark(text: str, *patterns: str) -> str:
    """Return `text`, such as a line of a log, with every match highlighted as a result.

    Args:
        text: the line.
        patterns: regular expressions; each must match somewhere.

    Raises:
        LabError: a pattern matches nothing.
    """
    for pattern in patterns:
        if not re.search(pattern, text):
            raise LabError(f"the line {text!r} has no match for {pattern!r}")
    return re.sub("|".join(patterns), lambda match: result(match[0]), text)


def _bold(value: object, color: str | tuple[int, int, int] | None) -> str:
    # On a terminal, termcolor decides (NO_COLOR, TERM=dumb). The stdout of a notebook or of the
    # grader is not a terminal, so termcolor would omit the codes, although both render them.
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    if not on_terminal and color is not None:
        color = IN_NOTEBOOKS[color]
    return colored(value, color, attrs=["bold"], force_color=None if on_terminal else True)
