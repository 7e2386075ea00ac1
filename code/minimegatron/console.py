"""Printing from many ranks into one log."""

from __future__ import annotations

import sys
from typing import TextIO


def emit(text: str, stream: TextIO | None = None) -> None:
    """Print lines with one write, so that another rank cannot print in between.

    Under `python -u`, `print` writes a line and its line break separately.

    Args:
        text: one or more lines.
        stream: standard output by default.
    """
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()
