"""Make untrusted text safe to print: file names, job names, log lines, and messages."""

from __future__ import annotations

import os
import sys
import unicodedata

SPACES = "Zs"  # such as the no-break space, which occurs in people's names


def visible(text: str, instead: str | None = None, keep: str = "") -> str:
    """Return text without escape sequences, C1 controls, or bidi marks, safe for a terminal.

    Args:
        text: untrusted text.
        instead: what replaces each character that is not printable; by default its Python escape,
            such as `\\x1b`.
        keep: characters to keep, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in keep or unicodedata.category(one) == SPACES
        else one.encode("unicode_escape").decode() if instead is None else instead
        for one in text)


def quiet_stdout() -> None:
    """Discard what standard output still holds, because nobody reads it any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
