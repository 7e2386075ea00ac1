"""Parse the arguments of `lab extend` and `lab score`: students, one lab, and the rest."""

from __future__ import annotations

from collections.abc import Sequence

from nbgrader.api import Gradebook

from grader.course import Course, groups, require_known
from labcore.errors import LabError


def split(course: Course, book: Gradebook, words: Sequence[str], usage: str,
          whole_group: bool = True) -> tuple[list[str], str, str]:
    """Return (students, lab, the rest as one text). Raises LabError that names the nearest known
    one.

    Args:
        course: the course folder.
        book: the open gradebook, with the roster.
        words: students, then the lab, then the date or score.
        usage: the command's usage, for messages.
        whole_group: whether a member stands for the group, and so for whoever has its submission.
    """
    labs = course.labs()
    places = [index for index, word in enumerate(words) if word in labs]
    if not places:
        likely = words[1] if len(words) > 1 else words[0]
        require_known("lab", likely, labs, f"{course.sources} or {course.root / 'source'}")
    place = places[0]
    known = sorted({*(student.id for student in book.students), *course.students()})
    for student in words[:place]:
        require_known("student", student, known, "the roster")
    students = list(dict.fromkeys(groups.owner_of(course, words[place], student)
                                  if whole_group else student for student in words[:place]))
    rest = " ".join(words[place + 1:])
    if rest and not students:
        raise LabError(f"no student before {words[place]}: {usage}")
    return students, words[place], rest
