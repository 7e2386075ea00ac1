"""When a submission came in: by its receipt, or by the time of its file on this disk."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

from nbgrader.utils import parse_utc

from grader.course.reasons import Unusable
from grader.course.receipts import receipt_for
from grader.course.submission import Submission


def stamped(submission: Submission) -> datetime.datetime | None:
    """When it came in, for the gradebook, which late penalties go by: what the receipt of
    `lab collect` says. For a notebook that was put there by hand: its time on this disk, or
    nbgrader's timestamp.txt beside it if that is later. None without a notebook.

    Students can write both, but not a time after you copied the file; so a forged early stamp does
    not help, and none at all neither. Raises Unusable when timestamp.txt is no time.
    """
    path = submission.notebook()
    if receipt := receipt_for(submission):
        return receipt.time
    stamp = path.with_name("timestamp.txt")
    if not os.path.isfile(path):
        return None
    if not os.path.isfile(stamp) or stamp.is_symlink():
        return _on_disk(path)
    try:
        with stamp.open("rb") as file:
            text = file.read(100).decode(errors="replace").strip()
    except OSError as error:
        raise Unusable(f"timestamp.txt cannot be read: {error.strerror}") from error
    try:
        when = parse_utc(text).replace(tzinfo=datetime.UTC) if text else None
    except Exception as error:  # dateutil lets all kinds of them out
        raise Unusable(f"timestamp.txt says {text!r}, which is no time: remove it, or write one as "
                       "2026-01-31 12:00:00 UTC") from error
    return max(when, _on_disk(path)) if when else _on_disk(path)


def received(submission: Submission) -> str:
    """When it came in, UTC, for people: also where nothing but the disk's time is known."""
    path = submission.notebook()
    if not os.path.isfile(path):  # also where nobody may look
        return ""
    when = None
    with contextlib.suppress(Unusable):  # which its reason says
        when = stamped(submission)
    return (when or _on_disk(path)).isoformat(timespec="seconds")


def _on_disk(path: Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
