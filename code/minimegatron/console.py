"""Printing from many ranks into one log."""

from __future__ import annotations

import sys
from typing import TextIO


def emit(text: str, stream: TextIO | None = None) -> None:
    """Write lines whole: `print` under `python -u` writes a line and its end apart, and another
    rank's line may come between."""
    stream = stream or sys.stdout
    stream.write(text + "\n")
    stream.flush()
