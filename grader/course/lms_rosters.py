"""Rosters as LMSs write them: Canvas's gradebook (Gradebook > Export) and Moodle's list of
participants (Participants > select all > Download table data as CSV), both in English.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from labcore.errors import LabError
from labcore.terminal import visible

Rows = list[list[str]]
# The column whose values become ids: the first one that every student has.
CANVAS_IDS = ("sis user id", "sis login id", "id")
MOODLE_IDS = ("id number", "username", "email address")
POSTING = re.compile(r"\s*(Muted|Manual Posting.*)?\s*", re.IGNORECASE)
TEST_STUDENT = "Student, Test"  # the student view of a Canvas course
STUDENT = re.compile(r"\bstudent\b", re.IGNORECASE)


def lms_of(header: Sequence[str]) -> str:
    """Return Canvas, Moodle, or nothing, by a file's headings."""
    names = {name.strip().lower() for name in header}
    if {"id", "section"} <= names and names & {"student", "lastname"}:
        return "Canvas"
    if "first name" in names and names & {"last name", "surname"}:
        return "Moodle"
    return ""


def as_roster(rows: Rows, where: list[int], path: Path, id_column: str | None
              ) -> tuple[Rows, list[int], list[str]]:
    """Return the rows of an LMS's file as those of a roster file, their lines, and notes.

    Args:
        rows: the file's rows, headings first.
        where: their lines.
        path: the file, for messages.
        id_column: the heading of the ids; by default the first good one.

    Raises LabError.
    """
    header = [name.strip().lower() for name in rows[0]]
    lms = lms_of(header)
    students = []
    for row, line in zip(rows[1:], where[1:], strict=True):
        if len(row) != len(header) and any(cell.strip() for cell in row):
            raise LabError(f"{path}, line {line}: {len(row)} cells, but {len(header)} columns")
        cells = dict(zip(header, (cell.strip() for cell in row), strict=False))
        if any(cells.values()) and not _is_nobody(lms, cells):
            students.append((line, cells))
    column = _id_column(path, rows[0], [cells for _, cells in students], lms, id_column)
    names = _canvas_person if lms == "Canvas" else _moodle_person
    table = [["id", "first_name", "last_name", "email", "lms_user_id"],
             *([cells[column], *names(cells)] for _, cells in students)]
    heading = rows[0][header.index(column)].strip()
    return table, [where[0], *(line for line, _ in students)], [
        f"{lms}'s file: ids are the column {visible(heading)} (--id names another)"]


def may_be_student(cells: Mapping[str, str]) -> bool:
    """Return whether a row of Moodle's participants is a student's; without roles, it may be."""
    return not cells.get("roles") or bool(STUDENT.search(cells["roles"]))


def _is_nobody(lms: str, cells: Mapping[str, str]) -> bool:
    """Return whether a row is no student's: points, posting rules, a teacher, a test."""
    if lms == "Moodle":
        return not may_be_student(cells)
    name = cells.get("student") or cells.get("lastname", "")
    return ("Points Possible" in name or name == TEST_STUDENT
            or all(POSTING.fullmatch(cell) for cell in cells.values()))


def _id_column(path: Path, headings: Sequence[str], students: Sequence[Mapping[str, str]],
               lms: str, wanted: str | None) -> str:
    names = [heading.strip().lower() for heading in headings]
    if wanted is not None:
        if wanted.strip().lower() not in names:
            raise LabError(f"--id {wanted}: {path} has no such column; it has "
                           + ", ".join(visible(heading) for heading in headings[:12]))
        return wanted.strip().lower()
    for name in CANVAS_IDS if lms == "Canvas" else MOODLE_IDS:
        if name in names and all(cells.get(name) for cells in students):
            return name
    raise LabError(f"{path}: no column identifies every student; {lms} has "
                   + ", ".join(CANVAS_IDS if lms == "Canvas" else MOODLE_IDS)
                   + ": show one of them there, or name another with --id")


def _canvas_person(cells: Mapping[str, str]) -> list[str]:
    """Return the first and last name, the email address, and the LMS's number."""
    if "student" in cells:
        last, comma, first = cells["student"].partition(",")
        if not comma:
            first, _, last = cells["student"].rpartition(" ")
    else:
        last, first = cells["lastname"], cells.get("firstname", "")
    login = cells.get("sis login id", "")
    return [first.strip(), last.strip(), login if "@" in login else "", cells["id"]]


def _moodle_person(cells: Mapping[str, str]) -> list[str]:
    return [cells["first name"], cells.get("last name") or cells.get("surname", ""),
            cells.get("email address", ""), ""]
