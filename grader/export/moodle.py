"""Moodle's two files: the grading worksheet of one assignment, and the gradebook of a course.

The worksheet (assignment > Submissions > Download grading worksheet; the feedback type "Offline
grading worksheet" has to be on) has Identifier, Full name, the site's identity columns, Status,
Grade, Maximum grade, Grade can be changed, Last modified (grade), and feedback comments. Moodle
skips a grade above the maximum and one that was changed in Moodle after the download
(moodle/moodle, mod/assign/feedback/offline). The gradebook (Grades > Export > Plain text file) has
names, identity columns, and `Assignment: Title (Real)` for each grade (grade/export/txt). Neither
has a word for an excused student.
"""

from __future__ import annotations

import re

from grader.export.layout import Column, Entry, Identity, LmsFile, number_in
from grader.export.sheet import Sheet
from labcore.errors import LabError

IDENTIFIER, FIRST_NAME = "Identifier", "First name"
REQUIRED = (IDENTIFIER, FIRST_NAME)
IDENTITIES = {"id number": ("id", "lms_user_id"), "username": ("id", "lms_user_id"),
              "email address": ("email",)}
GRADE = re.compile(r"(?:(?P<kind>[^:]+): )?(?P<title>.+?)(?: \((?P<shown>[^()]*)\))?", re.DOTALL)
NOT_GRADES = ("course total", "category total")
SHOWN_AS_POINTS = "Real"
LOCKED = "Moodle says that its grade cannot be changed"


def layout(sheet: Sheet) -> LmsFile:
    """Return what Moodle's worksheet or gradebook holds. Raises LabError."""
    header = [cell.strip() for cell in sheet.rows[0]]
    small = [heading.lower() for heading in header]
    if IDENTIFIER in header:
        return _worksheet(sheet, header, small)
    return _gradebook(sheet, header, small)


def _worksheet(sheet: Sheet, header: list[str], small: list[str]) -> LmsFile:
    missing = [name for name in ("grade", "maximum grade", "last modified (grade)")
               if name not in small]
    if missing:
        raise LabError(f"{sheet.path}: no column {' or '.join(missing)!s}, which Moodle needs to "
                       "read a grading worksheet back: download it again")
    most = {cell for row in range(1, len(sheet.rows))
            if (cell := sheet.cell(row, small.index("maximum grade")).strip())}
    numbers = {number_in(cell) for cell in most}
    if len(numbers) > 1 or None in numbers:
        shown = ", ".join(sorted(most)[:3])
        raise LabError(f"{sheet.path}: its maximum grade is {shown}: only an assignment that is "
                       "graded in points, with one maximum for all, can be filled in")
    entries = []
    for row in range(1, len(sheet.rows)):
        number = re.search(r"(\d+)\s*$", sheet.cell(row, small.index("identifier")))
        changeable = sheet.cell(row, small.index("grade can be changed")).strip().lower() \
            if "grade can be changed" in small else ""
        name = sheet.cell(row, small.index("full name")).strip() if "full name" in small else ""
        entries.append(Entry(row, _identities(sheet, header, small, row), name,
                             number[1] if number else "", LOCKED * (changeable == "no")))
    index = small.index("grade")
    column = Column(index, header[index], "", most=numbers.pop() if numbers else None)
    return LmsFile("Moodle", sheet, tuple(entries), (column,), excused="", one_assignment=True)


def _gradebook(sheet: Sheet, header: list[str], small: list[str]) -> LmsFile:
    last = next((name for name in ("last name", "surname") if name in small), None)
    if last is None or not set(IDENTITIES) & set(small):
        raise LabError(f"{sheet.path}: the headings of Moodle's gradebook are First name, Last "
                       "name, and ID number or Email address; here they are "
                       + ", ".join(header[:8]))
    columns, profile = [], {*IDENTITIES, "first name", last, "institution", "department"}
    for index, heading in enumerate(header):
        match = GRADE.fullmatch(heading)
        if (heading.lower() not in profile and match and match["shown"] == SHOWN_AS_POINTS
                and match["title"].lower() not in NOT_GRADES):
            columns.append(Column(index, heading, match["title"]))
    entries = tuple(Entry(row, _identities(sheet, header, small, row), " ".join(
        sheet.cell(row, small.index(name)).strip() for name in ("first name", last)).strip())
        for row in range(1, len(sheet.rows)))
    return LmsFile("Moodle", sheet, entries, tuple(columns), excused="")


def _identities(sheet: Sheet, header: list[str], small: list[str], row: int
                ) -> tuple[Identity, ...]:
    return tuple(Identity(header[index], kind, value) for index, name in enumerate(small)
                 if (value := sheet.cell(row, index).strip())
                 for kind in IDENTITIES.get(name, ()))
