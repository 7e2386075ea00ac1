"""Notices about lateness and decisions, for feedback pages and grades.csv."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Unicode
from traitlets.config import Configurable

from grader.course import Course, Submission
from grader.gradebook import decisions
from grader.gradebook.records import gradebook, submission_of
from labcore.errors import LabError
from labcore.html import render

HEADING = re.compile(r"<h4>[^<]*\(Score: [-\d.]+ / [-\d.]+\)</h4>")
BELOW = '<div id="toc">'


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, such as "2 h 5 min"."""
    left, words = int(seconds), []
    for name, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {name}")
    return " ".join(words[:2]) or "less than 1 s"


def seconds_late(submission: Any) -> float:
    """Return how late a submission is, in seconds. nbgrader's own property fails on an extension
    without a due date."""
    return submission.total_seconds_late if submission.assignment.duedate else 0.0


def lateness(submission: Any, decided: bool = False) -> str:
    """Describe how late a submission is and what that costs; empty if it is on time.

    Args:
        submission: nbgrader's, from the gradebook.
        decided: whether a person set the lab's score, from which nothing is deducted.
    """
    if (seconds := seconds_late(submission)) <= 0:
        return ""
    lost, score = submission.late_submission_penalty or 0.0, submission.score
    late = f"late by {duration(seconds)}"
    if decided or not lost:
        return f"{late}: nothing deducted"
    return f"{late}: {round(100 * lost / score, 1):g}% of {points(score)} deducted"


def points(number: float) -> str:
    return f"{round(number, 2):g} point" + "s" * (number != 1)


def notices_of(submission: Submission, book: Gradebook, member: str = "") -> dict[str, Any]:
    """Return the `lines` to show on a page, and the `score` that a person decided, or None.

    Args:
        submission: the submission.
        book: the gradebook.
        member: another member of its group, whose decision counts instead of the owner's.
    """
    entry = book.find_submission(*submission.key)
    decision = decisions.current(submission.course, decisions.SCORE).get(
        (submission.lab, member or submission.student))
    lines = []
    if text := lateness(entry, decided=decision is not None):
        zone = zone_of(submission.course)
        precise = entry.duedate.replace(second=0) == entry.timestamp.replace(second=0,
                                                                             microsecond=0)
        due, came = (shown(time, zone, precise) for time in (entry.duedate, entry.timestamp))
        lines.append(f"Due {due}, received {came}: {text}.")
    if decision is None:
        return {"lines": lines, "score": None}
    why = f" Reason: {decision.why}" if decision.why else ""
    if decision.value == decisions.EXCUSED:
        lines = [f"You are excused from this lab, which has no score.{why}"]
    else:
        lines.append("Your instructor set the score of this lab to "
                     f"{points(float(decision.value))}.{why}")
    return {"lines": lines, "score": decision.value}


class Feedback(Configurable):
    """What feedback pages show."""

    time_zone = Unicode("", help="shown beside UTC, such as Europe/Berlin").tag(config=True)


def zone_of(course: Course) -> zoneinfo.ZoneInfo | None:
    """Return the course's time zone. Raises LabError when it is unknown."""
    name = Feedback(config=course.settings()).time_zone
    try:
        return zoneinfo.ZoneInfo(name) if name else None
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise LabError(f"nbgrader_config.py: c.Feedback.time_zone: unknown time zone {name!r}; "
                       "give one such as Europe/Berlin") from None


def shown(time: datetime.datetime, zone: zoneinfo.ZoneInfo | None, precise: bool) -> str:
    """Return a time of the gradebook, in UTC and in the course's time zone.

    Args:
        time: naive UTC.
        zone: the course's time zone, if it has one.
        precise: whether to show seconds.
    """
    clock = "%H:%M:%S" if precise else "%H:%M"
    text = f"{time:%Y-%m-%d {clock}} UTC"
    if zone is None:
        return text
    local = time.replace(tzinfo=datetime.UTC).astimezone(zone)
    day = "" if local.date() == time.date() else "%Y-%m-%d "
    return f"{text} ({local:{day}{clock}} {zone.key})"


class Notices(NbGraderPreprocessor):
    """Collects the notices for `insert_notices`, from the parent process or from the gradebook."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        notices = resources["nbgrader"].get("given", {}).get("notices")
        if notices is None:
            submission = submission_of(self, resources)
            with gradebook(submission.course) as book:
                notices = notices_of(submission, book)
        resources["nbgrader"]["notices"] = notices
        if notices["score"] is not None:
            resources["nbgrader"]["late_penalty"] = 0.0  # nbgrader lists it beside the exercises
        return nb, resources


def insert_notices(text: str, resources: dict[str, Any]) -> str:
    """Return the page with its notices below the heading, which shows the score that counts.

    Args:
        text: the page.
        resources: nbgrader's, with the notices.
    """
    notices = resources["nbgrader"].get("notices") or {"lines": [], "score": None}
    if notices["score"] is not None:
        most = resources["nbgrader"]["max_score"]
        score = ("excused" if notices["score"] == decisions.EXCUSED
                 else f"Score: {float(notices['score'])} / {float(most)}")
        heading = render("grader/gradebook/heading.html.j2",
                         lab=resources["nbgrader"]["assignment"], score=score)
        text, count = HEADING.subn(lambda _: heading, text, count=1)
        if not count:
            raise LabError("nbgrader's template for feedback has no score in its heading")
    if notices["lines"] and BELOW not in text:
        raise LabError(f"nbgrader's template for feedback has no {BELOW}")
    block = render("grader/gradebook/notices.html.j2", lines=notices["lines"])
    return text.replace(BELOW, block, 1)  # the block ends with the same tag
