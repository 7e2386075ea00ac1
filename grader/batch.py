"""Grade many submissions, one after the other, so that none can stop another."""

from __future__ import annotations

import contextlib
import glob
import json
import logging
import shutil
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.converters.base import BaseConverter
from nbgrader.coursedir import CourseDirectory
from traitlets.log import get_logger

from grader import records
from grader.course import Course, read_stamps
from grader.rebuild import read_submitted, require_notebook
from grader.records import explain
from grader.report import stamped
from lab.errors import LabError
from lab.workspace import put_whole


@dataclass(frozen=True)
class Outcome:
    """One submission of a batch."""

    student: str
    lab: str
    record: records.Record
    seconds: float


class _Tells:
    """nbgrader logs what went wrong and raises something else; this keeps the cause."""

    cause: Exception | None = None

    def init_assignment(self, *arguments: Any) -> None:
        with self._keeping():
            super().init_assignment(*arguments)

    def convert_single_notebook(self, *arguments: Any) -> None:
        with self._keeping():
            super().convert_single_notebook(*arguments)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.cause = error
            raise


class _Generate(_Tells, GenerateAssignment):
    pass


class _Autograde(_Tells, Autograde):
    pass


class _Feedback(_Tells, GenerateFeedback):
    pass


def convert(kind: type[BaseConverter], course: Course, lab: str, student: str = "*") -> None:
    """Run one of nbgrader's converters. Raises the error that stopped it."""
    settings = course.settings()
    settings.CourseDirectory.assignment_id = lab
    settings.CourseDirectory.student_id = glob.escape(student) if student != "*" else student
    converter = kind(coursedir=CourseDirectory(config=settings), config=settings)
    converter.force = True
    try:
        converter.start()
    except Exception as error:
        raise converter.cause or error from error


def release(course: Course, lab: str) -> None:
    """Bring source/ up to date and generate the assignment from it. Raises LabError."""
    changed = course.bring_source(lab)
    made, source = course.notebook("release", lab), course.notebook("source", lab)
    stamps = course.root / "release" / ".made.json"
    digest, before = records.digest_of_lab(course, lab), read_stamps(stamps)
    fresh = made.exists() and before.get(lab) == digest
    if fresh and not changed and _in_gradebook(course, lab):
        return
    try:
        convert(_Generate, course, lab)
    except LabError:
        raise
    except Exception as error:
        raise LabError(f"{source}: nbgrader makes no assignment of it: {explain(error)} (the rest "
                       f"is in {log_file(course)})") from error
    put_whole(stamps, json.dumps(before | {lab: digest}, indent=1).encode())


def _in_gradebook(course: Course, lab: str) -> bool:
    with records.gradebook(course) as book:
        return any(found.name == lab and found.notebooks for found in book.assignments)


def grade(course: Course, lab: str, student: str) -> Outcome:
    """Grade one submission and write its feedback. Always leaves a record; raises nothing of it,
    but lets Ctrl-C pass."""
    start = time.monotonic()
    try:
        require_notebook(read_submitted(course.notebook("submitted", lab, student)))
        stamped(course, lab, student)  # nbgrader breaks on one that is no time
        records.give_back_extension(course, lab, student)
        convert(_Autograde, course, lab, student)
    except KeyboardInterrupt as error:
        records.leave_ungraded(course, lab, student, explain(error))
        raise
    except (Exception, SystemExit) as error:  # some of nbgrader's errors end the program
        get_logger().error("%s of %s is ungraded", lab, student, exc_info=True)
        record = records.leave_ungraded(course, lab, student, explain(error))
    else:
        record = feedback(course, lab, student)
    return Outcome(student, lab, record, time.monotonic() - start)


def feedback(course: Course, lab: str, student: str) -> records.Record:
    record = records.last(course, lab, student)
    assert record and record.state == "graded"  # SaveRecord came last
    shutil.rmtree(course.root / "feedback" / student / lab, ignore_errors=True)
    try:
        convert(_Feedback, course, lab, student)
    except Exception as error:
        get_logger().error("no feedback on %s for %s", lab, student, exc_info=True)
        record.notes.append(f"no feedback: {explain(error)}")
        records.write(course, lab, student, record)
    return record


def log_file(course: Course) -> str:
    return str(course.root / "grading.log")


@contextlib.contextmanager
def logging_to(course: Course) -> Iterator[None]:
    """What nbgrader says goes into a file of the course folder, not between our lines."""
    logger = get_logger()
    handler = logging.FileHandler(log_file(course))
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    with warnings.catch_warnings():
        warnings.showwarning = lambda text, kind, *place: logger.info("%s: %s", kind.__name__, text)
        try:
            yield
        finally:
            logger.handlers[:], logger.level, logger.propagate = before
            handler.close()


def grade_all(course: Course, work: list[tuple[str, str]], done: Callable[[Outcome], None]
              ) -> list[Outcome]:
    """Grade each (lab, student) of `work`; `done` is called after each. Raises LabError."""
    with course.held(), logging_to(course):
        for lab in sorted({lab for lab, _ in work}):
            release(course, lab)
        outcomes = []
        for lab, student in work:
            outcomes.append(grade(course, lab, student))
            done(outcomes[-1])
    return outcomes
