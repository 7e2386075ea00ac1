"""Reasons why a submission cannot be graded, in one line for the instructor."""

from __future__ import annotations

from labcore.errors import LabError

LONGEST_REASON = 300
STOPPED = "stopped while it was graded"


class Unusable(Exception):
    """Raised when a submission cannot be graded; its text is the reason for the instructor's
    table."""


class NotANotebook(Unusable):
    """Raised when the submitted file itself is the reason, whatever machine reads it: the student
    is told."""


def explain(error: BaseException) -> str:
    """Return one line for the instructor."""
    if isinstance(error, KeyboardInterrupt):
        return STOPPED
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (Unusable, LabError)):
        text = f"{type(error).__name__}: {text}" if str(error) else text
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "..."
