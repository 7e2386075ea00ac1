"""Bound the cost of IPython's magics before a cell runs."""

from __future__ import annotations

import re

# A line that may be a magic, a shell command, a request for help, or an automatic call.
MAGIC = re.compile(r"^[ \t]*(?:>>> ?)?[%!?/,;]|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)


def transform_work(source: str) -> int:
    """Return an upper bound on the characters that IPython tokenizes to transform a cell.

    It rewrites one magic at a time and tokenizes the whole cell again after each, so a cell of
    n lines with a magic on each costs n passes.
    """
    return len(source) * (1 + len(MAGIC.findall(source)))
