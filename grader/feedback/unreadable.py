"""Pages for students of whom nothing but an unreadable file came in."""

from __future__ import annotations

import datetime
from collections.abc import Collection
from pathlib import Path

from grader.course import Course, Submission, groups, unreadable
from grader.gradebook.notices import shown, zone_of
from labcore.atomic import write_atomic
from labcore.html import render


def make_pages(course: Course, labs: Collection[str]) -> list[tuple[Path, str]]:
    """Make the pages, and return (page, student) pairs.

    Args:
        course: the course.
        labs: the labs.
    """
    pages = []
    for (lab, owner), one in sorted(unreadable.newest(course).items()):
        if lab not in labs or course.submitted(lab, owner):
            continue  # the note in grades.csv is for the instructor: another version counts
        time = datetime.datetime.fromisoformat(one.when).astimezone(datetime.UTC)
        text = render("grader/feedback/unreadable.html.j2", lab=lab, file=one.name, why=one.why,
                      when=shown(time.replace(tzinfo=None), zone_of(course), precise=False))
        for student in (owner, *groups.others_of(course, lab, owner)):
            page = Submission(course, lab, student).page
            page.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(page, text.encode())
            pages.append((page, student))
    return pages
