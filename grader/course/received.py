"""A submission's time of receipt, from its receipt or from the time of its file on this disk."""

from __future__ import annotations

import contextlib
import datetime
import os
from pathlib import Path

from nbgrader.utils import parse_utc

from grader.course.reasons import Unusable
from grader.course.receipts import receipt_for
from grader.course.submission import Submission


def receipt_time(submission: Submission) -> datetime.datetime | None:
    """Return the time of receipt for the gradebook and its late penalties; None without a notebook.

    It comes from the receipt of `lab collect`. For a notebook that was put there by hand, it is the
    file's time on this disk, or nbgrader's timestamp.txt beside it if that is later. Students can
    write both, but not a time after you copied the file, so forging or omitting an early time does
    not help. Raises Unusable when timestamp.txt is not a time.
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
        raise Unusable(f"timestamp.txt says {text!r}, which is not a time: remove it, or write "
                       "one as 2026-01-31 12:00:00 UTC") from error
    return max(when, _on_disk(path)) if when else _on_disk(path)


def received(submission: Submission) -> str:
    """Return the time of receipt in UTC for people, even if only the disk's time is known."""
    path = submission.notebook()
    if not os.path.isfile(path):  # also where nobody may look
        return ""
    when = None
    with contextlib.suppress(Unusable):  # which its reason says
        when = receipt_time(submission)
    return (when or _on_disk(path)).isoformat(timespec="seconds")


def _on_disk(path: Path) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
