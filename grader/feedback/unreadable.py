"""Pages for students whose submission is a file that cannot be read: `lab collect` refused it, or
it was collected and is not the lab's notebook."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from pathlib import Path

from grader.course import Course, Submission, groups, unreadable
from grader.course.reasons import NotANotebook, Unusable, explain
from grader.course.receipts import receipt_for
from grader.course.received import received
from grader.course.submitted import parse, read
from grader.course.unreadable import UnreadableFile
from grader.gradebook.notices import shown, zone_of
from grader.run.lab_plan import read_notebook
from grader.run.rebuild import rebuild
from grader.run.timing import TimeLimitReached, limited
from labcore.atomic import write_atomic
from labcore.html import render

SECONDS_TO_READ = 10.0  # as when it was graded


def make_pages(course: Course, labs: Collection[str]) -> list[tuple[Path, str]]:
    """Make the pages, and return (page, student) pairs.

    Args:
        course: the course.
        labs: the labs.
    """
    pages = []
    for one in [*_refused(course, labs), *_damaged(course, labs)]:
        lab, owner = one.lab, one.student
        time = datetime.datetime.fromisoformat(one.when).astimezone(datetime.UTC)
        text = render("grader/feedback/unreadable.html.j2", lab=lab, file=one.name, why=one.why,
                      when=shown(time.replace(tzinfo=None), zone_of(course), precise=False))
        for student in (owner, *groups.others_of(course, lab, owner)):
            page = Submission(course, lab, student).page
            page.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(page, text.encode())
            pages.append((page, student))
    return pages


def _refused(course: Course, labs: Collection[str]) -> Iterator[UnreadableFile]:
    for (lab, owner), one in sorted(unreadable.newest(course).items()):
        # After another version, the note in grades.csv is for the instructor: that one counts.
        if lab in labs and not course.submitted(lab, owner):
            yield one


def _damaged(course: Course, labs: Collection[str]) -> Iterator[UnreadableFile]:
    """Yield the submitted files that grading could not read because of what is in them."""
    for lab in labs:
        for student in course.students(lab):
            submission = Submission(course, lab, student)
            record = submission.record
            if (record is None or record.state != "ungraded" or record.digest != submission.digest
                    or submission.notebook("autograded").exists()):
                continue
            if why := _why_not_read(submission):
                receipt = receipt_for(submission)
                name = receipt.file if receipt else ""
                yield UnreadableFile(student, lab, name or submission.notebook().name,
                                     received(submission), why)


def _why_not_read(submission: Submission) -> str:
    """Return why the submitted file is not the lab's notebook; empty if it is, or if a machine may
    be at fault."""
    path = submission.notebook()
    release = read_notebook(submission.course.notebook("release", submission.lab))
    try:
        with limited(SECONDS_TO_READ):
            rebuild(release, parse(read(path), path.name))
    except NotANotebook as error:
        return explain(error)
    except (Unusable, TimeLimitReached, MemoryError):
        return ""
    return ""
