"""Late penalties as a plugin of nbgrader: set `c.LatePenalty.percent = 10` in nbgrader_config.py.

Lateness is the difference between two times in UTC, so daylight saving time neither costs nor gains
an hour. It is counted from the due date or from the student's extension.
"""

from __future__ import annotations

import datetime
import math
from typing import Any

from nbformat import NotebookNode
from nbgrader.api import Gradebook
from nbgrader.plugins import LateSubmissionPlugin
from nbgrader.preprocessors import AssignLatePenalties
from traitlets import Enum, Float
from traitlets.config import Config

from grader.course import Course, Submission
from grader.course.received import receipt_time
from grader.gradebook.notices import seconds_late
from grader.gradebook.records import entry_of, gradebook, submission_of

UNITS = {"day": 86_400, "hour": 3_600}  # seconds


class LatePenalty(LateSubmissionPlugin):
    """A penalty per started day or hour, as a percentage of the score.

    There is none unless `percent` or `zero_after_days` is set (or nbgrader's own penalty_method).
    """

    grace_minutes = Float(0, min=0, help="nothing is lost up to here").tag(config=True)
    percent = Float(0, min=0, max=100, help="of the score, for each started `per`"
                    ).tag(config=True)
    per = Enum(tuple(UNITS), "day", help="what is counted").tag(config=True)
    most = Float(100, min=0, max=100, help="percent that can be lost at most, before "
                 "zero_after_days").tag(config=True)
    zero_after_days = Float(None, allow_none=True, min=0, help="later than this, all is lost"
                            ).tag(config=True)

    def share_lost(self, seconds: float) -> float:
        """Return the fraction of the score that is lost at this many seconds after the due date."""
        if seconds <= self.grace_minutes * 60:
            return 0.0
        if self.penalty_method == "zero":
            return 1.0
        if self.zero_after_days is not None and seconds > self.zero_after_days * UNITS["day"]:
            return 1.0
        return min(math.ceil(seconds / UNITS[self.per]) * self.percent, self.most) / 100

    def late_submission_penalty(self, student_id: str, score: float, total_seconds_late: float
                                ) -> float | None:
        """Return the points that are lost; None if there are none."""
        return max(score, 0.0) * self.share_lost(total_seconds_late) or None


class AssignPenalties(AssignLatePenalties):
    """Runs nbgrader's step with the time of receipt, not with the time that timestamp.txt
    claims."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        submission = submission_of(self, resources)
        with gradebook(submission.course) as book:
            entry = entry_of(submission, book, timestamp=receipt_time(submission))
            if entry.assignment.duedate:
                return super().preprocess(nb, resources)
            for notebook in entry.notebooks:  # of a due date that was there before
                notebook.late_submission_penalty = None
            book.db.commit()
        return nb, resources


def penalize(settings: Config, entry: Any, notebook: Any, student: str) -> None:
    """Set the late penalty as nbgrader's AssignLatePenalties does, with the course's plugin.

    Args:
        settings: the course's configuration.
        entry: the submission in the gradebook.
        notebook: its notebook.
        student: the student's id.
    """
    late, penalty = seconds_late(entry), None
    if late > 0:
        step = AssignLatePenalties(config=settings)
        step.init_plugin()
        penalty = step.plugin_inst.late_submission_penalty(student, notebook.score, late)
        if penalty is not None:
            penalty = step._check_late_penalty(notebook, penalty)
    notebook.late_submission_penalty = penalty


def recalculate_penalty(submission: Submission, settings: Config, book: Gradebook) -> bool:
    """Recalculate the penalty of a graded submission; return whether it changed.

    Manual scores, the due date, an extension, the receipt, or the settings may have changed it.

    Args:
        submission: the submission.
        settings: the course's configuration.
        book: the gradebook.
    """
    entry = book.find_submission(*submission.key)
    before, when = entry.late_submission_penalty or 0.0, receipt_time(submission)
    entry.timestamp = when and when.replace(tzinfo=None)  # as the gradebook has it: UTC
    for notebook in entry.notebooks:
        penalize(settings, entry, notebook, submission.student)
    book.db.commit()
    return (entry.late_submission_penalty or 0.0) != before


def set_due(course: Course, lab: str, when: datetime.datetime | None) -> None:
    """Write the due date into the gradebook.

    Args:
        course: the course.
        lab: the lab's name.
        when: the due date; None removes it.
    """
    with gradebook(course) as book:
        book.update_or_create_assignment(lab, duedate=when)
