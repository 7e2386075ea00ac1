"""Canvas's gradebook: Gradebook > Export, and Gradebook > Import.

The columns are those of Canvas's own importer and exporter (instructure/canvas-lms,
lib/gradebook_importer.rb and lib/gradebook_exporter.rb): Student or LastName and FirstName, ID, SIS
User ID, SIS Login ID, Integration ID, Root Account, Section, columns of the teacher's, `Title (id)`
for each assignment, and totals that are read only. A row on posting policies may come before the
one of the points possible. EX is an excused student, N/A one who does not have the assignment.
"""

from __future__ import annotations

import re

from grader.export.layout import Column, Entry, Identity, LmsFile, number_in
from grader.export.sheet import Sheet
from labcore.errors import LabError

REQUIRED = ("Student", "LastName")
ASSIGNMENT = re.compile(r"(?P<title>.*) \((?P<number>\d+)\)", re.DOTALL)
POSTING = re.compile(r"\s*(Muted|Manual Posting.*)?\s*", re.IGNORECASE)
READ_ONLY = "(read only)"
TEST_STUDENT = "Student, Test"  # what Canvas calls the student view of a course
IDENTITIES = {"ID": ("lms_user_id",), "SIS User ID": ("id",), "SIS Login ID": ("id", "email")}


def layout(sheet: Sheet) -> LmsFile:
    """Return what Canvas's gradebook holds. Raises LabError."""
    header = [cell.strip() for cell in sheet.rows[0]]
    if "ID" not in header or "Section" not in header:
        raise LabError(f"{sheet.path}: no column ID or no column Section, which Canvas's gradebook "
                       "has: take the file that Gradebook > Export downloads")
    points = next((row for row in range(1, min(4, len(sheet.rows)))
                   if "Points Possible" in sheet.cell(row, 0)), None)
    if points is None:
        raise LabError(f"{sheet.path}: no row \"Points Possible\" below the headings: take the "
                       "file that Gradebook > Export downloads")
    columns = []
    for index in range(header.index("Section") + 1, len(header)):
        match = ASSIGNMENT.fullmatch(header[index])
        below = sheet.cell(points, index).strip()
        if match and below != READ_ONLY:
            columns.append(Column(index, header[index], match["title"], match["number"],
                                  number_in(below)))
    entries = tuple(_entry(sheet, header, row) for row in range(points + 1, len(sheet.rows))
                    if not _without_student(sheet, header, row))
    return LmsFile("Canvas", sheet, entries, tuple(columns), excused="EX", not_assigned="N/A")


def _without_student(sheet: Sheet, header: list[str], row: int) -> bool:
    cells = sheet.rows[row]
    if all(POSTING.fullmatch(cell) for cell in cells):
        return True
    ids = [sheet.cell(row, header.index(name)) for name in ("SIS User ID", "SIS Login ID")
           if name in header]
    login = re.fullmatch(r"[0-9a-f]{40}", ids[-1]) if ids else True
    return _name(sheet, header, row) == TEST_STUDENT and (not any(ids) or bool(login))


def _entry(sheet: Sheet, header: list[str], row: int) -> Entry:
    identities = tuple(Identity(heading, kind, value) for heading, kinds in IDENTITIES.items()
                       if heading in header
                       and (value := sheet.cell(row, header.index(heading)).strip())
                       for kind in kinds)
    number = sheet.cell(row, header.index("ID")).strip()
    return Entry(row, identities, _name(sheet, header, row), number if number.isdecimal() else "")


def _name(sheet: Sheet, header: list[str], row: int) -> str:
    if "Student" in header:
        return sheet.cell(row, header.index("Student")).strip()
    return ", ".join(sheet.cell(row, header.index(name)).strip()
                     for name in ("LastName", "FirstName") if name in header)
