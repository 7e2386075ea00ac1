"""Do once what every fork would do again: import the commands, and compile SQL and templates."""

from __future__ import annotations

import tempfile
from pathlib import Path

import IPython  # noqa: F401 - what reads cells imports it
import nbformat

from grader.batch import merge
from grader.course import Course, Submission
from grader.course.log import logging_to
from grader.feedback.pages import FeedbackPages
from grader.gradebook import notices, records
from grader.nbgrader_plugin import assign
from grader.report import grades
from grader.run import lab_plan, results
from grader.run.attempt import Attempt
from lab.cli import build_parser
from tests.grader import small_lab
from tests.grader.small_lab import NAME


def grade_once(course: Course) -> None:
    """Release the small lab, and enter a result without running anything."""
    course.make()
    config = course.settings()
    small_lab.put(small_lab.source(), course.notebook("source", NAME))
    with logging_to(course):
        assign.release(course, NAME)
    released = nbformat.read(course.notebook("release", NAME), as_version=4)
    submission = Submission(course, NAME, "ada")
    small_lab.put(small_lab.answered(released), course.notebook("submitted", NAME, "ada"))
    plan = lab_plan.read(course, NAME)
    result = results.write(course, "", Attempt(
        "ada", NAME, submission.digest, plan.digest, "graded", notebook=plan.skeleton,
        scores={"batch-check": 3.0, "script-check": 2.0}))
    with records.gradebook(course) as book:
        merge.merge(course, config, book, result)
        values = merge.feedback_values(submission, book)
        values["notices"] = notices.notices_of(submission, book)
    FeedbackPages(course, config).make(submission, values)
    grades.save(course)


build_parser()
with tempfile.TemporaryDirectory() as folder:
    grade_once(Course(Path(folder)))
