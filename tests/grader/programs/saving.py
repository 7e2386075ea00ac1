"""Two instructors who save at the same time."""

from __future__ import annotations

import os
from pathlib import Path


def save(root: str) -> None:
    """Add eight students, named after this rank, to a course's gradebook, one transaction each."""
    from grader.course import Course
    from grader.gradebook import records
    from grader.gradebook.guard import protected

    course = Course(Path(root))
    with protected(records.gradebook_file(course)):
        for turn in range(8):
            with records.gradebook(course) as book:
                book.update_or_create_student(f"{os.environ['RANK']}-{turn}", first_name="A")
