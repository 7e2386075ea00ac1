"""Our steps in nbgrader's autograde, on the command line or from formgrader's button."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.apps.api import NbGraderAPI
from nbgrader.converters import base
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.course import Course, Submission
from grader.course.reasons import Unusable
from grader.course.received import receipt_time, received
from grader.course.record import GradingRecord, now, updated_history
from grader.gradebook import byhand, entered
from grader.gradebook.late import recalculate_penalty
from grader.gradebook.records import (
    NOT_ISOLATED,
    enroll,
    gradebook,
    net_score,
    state,
    submission_of,
)
from grader.gradebook.ungraded import ungraded_on_error
from grader.run.lab_plan import with_course_cells
from grader.run.rebuild import read_submitted, rebuild
from labcore.errors import LabError

# Set by `lab formgrader` alone: its Autograde button then does what `lab regrade` does.
ISOLATED_VARIABLE = "LAB_AUTOGRADE_ISOLATED"
NO_PARTS = "{} gives partial credit, but only `lab grade` scores its parts: 0 here"


class Rebuild(NbGraderPreprocessor):
    """The first of nbgrader's steps for a submission: replaces the notebook that was read."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        submission = submission_of(self, resources)
        with ungraded_on_error(submission):
            byhand.reinstate_extension(submission)
            byhand.set_aside_older(submission)
            release, source = (nbformat.read(submission.course.notebook(step, submission.lab),
                                             as_version=4) for step in ("release", "source"))
            submitted = read_submitted(submission.notebook())
            return rebuild(with_course_cells(release, source), submitted)[0], resources


class SaveRecord(NbGraderPreprocessor):
    """The last of nbgrader's steps for a submission that ran without isolation."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        submission = submission_of(self, resources)
        notes = [*nb.metadata.get("grader", {}).get("notes", []), NOT_ISOLATED,
                 *without_parts(nb)]
        with gradebook(submission.course) as book:
            enroll(book, submission.student)
            entry = book.find_submission(*submission.key)
            aside, of, kept = byhand.reinstate(submission, entry, nb)
            entered.write(submission, book)
            recalculate_penalty(submission, self.config, book)  # and commit
            history = updated_history(
                submission.record, submission.digest, at=now(), state="graded",
                received=received(submission), score=net_score(entry))
        notes += byhand.set_aside_notes(aside, kept)
        before = submission.record
        submission.save(GradingRecord("graded", submission.digest, "", notes, now(), aside, of,
                                      submission.course.digest_of_lab(submission.lab),
                                      history=history,
                                      entered=before.entered if before else {}))
        return nb, resources


def without_parts(nb: NotebookNode) -> list[str]:
    """Return a note for each check with partial credit that failed: nbgrader gave it 0."""
    return [NO_PARTS.format(cell.metadata.nbgrader["grade_id"]) for cell in nb.cells
            if utils.is_grade(cell) and "check.parts(" in cell.source and utils.has_failed(cell)]


class GradeIsolated(NbGraderPreprocessor):
    """Replaces all of nbgrader's steps: runs `lab regrade` and returns its notebook."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        submission = submission_of(self, resources)
        regrade(submission)  # before anything of it is read here
        graded = submission.notebook("autograded")
        if not graded.exists():
            raise LabError(f"{submission.lab} of {submission.student} is ungraded: "
                           f"{state(submission)[1]}")
        notebook = nbformat.read(graded, as_version=4)
        graded.unlink()  # read-only; nbgrader writes it again at once
        return notebook, resources


def copy_plain_files_only() -> None:
    """Make nbgrader copy plain files only.

    It copies the files beside a notebook and follows links, so a link to another file would end up
    in autograded/, and from there in the student's feedback.
    """
    if base.find_all_files is utils.find_all_files:
        base.find_all_files = plain_files


def plain_files(folder: str, exclude: list[str] | None = None) -> list[str]:
    paths = utils.find_all_files(folder, exclude)
    return [path for path in paths if os.path.isfile(path) and not os.path.islink(path)]


def show_receipts() -> None:
    """Make formgrader use the time of receipt.

    It treats a submission as graded when its time in the gradebook equals that of timestamp.txt,
    which may not exist.
    """
    NbGraderAPI.get_submitted_timestamp = submitted_timestamp


def submitted_timestamp(api: NbGraderAPI, lab: str, student: str) -> datetime.datetime | None:
    """Return the time of receipt as the gradebook stores it: UTC, without a time zone.

    Args:
        api: nbgrader's API.
        lab: the lab's name.
        student: the student's id.
    """
    try:
        when = receipt_time(Submission(Course(Path(api.coursedir.root)), lab, student))
    except Unusable:  # such a submission is ungraded
        return None
    return when and when.astimezone(datetime.UTC).replace(tzinfo=None)


def regrade(submission: Submission) -> None:
    """Run `lab regrade` in a process of its own. Raises LabError with its message when it fails."""
    words = [str(Path(sys.executable).with_name("lab")), "regrade", submission.lab, "--",
             submission.student]
    environment = {**os.environ, "LAB_COURSE": str(submission.course.root)}
    done = subprocess.run(words, env=environment, text=True, capture_output=True,
                          stdin=subprocess.DEVNULL)
    if done.returncode:
        raise LabError(done.stderr.strip()[-2000:] or f"lab regrade: exit code {done.returncode}")
