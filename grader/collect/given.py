"""What an instructor knows about an archive: whose a participant's number is, and when each student
submitted."""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.course.names import normalized
from grader.course.roster import Roster, read_table
from grader.course.times import parse_time
from labcore.errors import LabError
from labcore.terminal import visible

NUMBER = re.compile(r"(\d+)\s*$")
IDENTITIES = ("id number", "username", "email address")


@dataclass(frozen=True)
class Participant:
    """One row of Moodle's grading worksheet: whose a participant's number is.

    Attributes:
        student: the student's id; empty if the row refers to nobody on the roster, or to several.
        name: the full name, as Moodle begins the names of files with it.
    """

    student: str
    name: str


def participants(path: Path, roster: Roster) -> dict[str, Participant]:
    """Return the rows of Moodle's grading worksheet by the participant's number. Raises LabError.

    Args:
        path: the worksheet.
        roster: the class.
    """
    header, rows = read_table(path)
    if "identifier" not in header or not set(IDENTITIES) & set(header):
        raise LabError(f"--worksheet {path}: it has no column Identifier, or none of ID number, "
                       "Username, and Email address: download the grading worksheet from the "
                       "assignment's submissions")
    result = {}
    for _, cells in rows:
        if match := NUMBER.search(cells["identifier"]):
            result[match[1]] = Participant(_student_of(cells, roster), cells.get("full name", ""))
    return result


def _student_of(cells: Mapping[str, str], roster: Roster) -> str:
    found = set()
    for column in IDENTITIES:
        if value := cells.get(column):
            found |= roster.identified(normalized(value))
    return found.pop() if len(found) == 1 else ""


def times(path: Path, roster: Roster) -> dict[str, datetime.datetime]:
    """Return the times of receipt in a file with the columns student and received, by student.

    Args:
        path: the file.
        roster: the class.

    Raises LabError that names the line.
    """
    header, rows = read_table(path)
    if not {"student", "received"} <= set(header):
        raise LabError(f"--times {path}: its columns are {', '.join(map(visible, header))}; it "
                       "needs student and received")
    result: dict[str, datetime.datetime] = {}
    for line, cells in rows:
        try:
            student = roster.by_id(cells["student"])
        except LookupError as error:
            raise LabError(f"--times {path}, line {line}: {error}") from None
        time = parse_time(cells["received"], f"--times {path}, line {line}:")
        if result.setdefault(student, time) != time:
            raise LabError(f"--times {path}, line {line}: a second time for {student}")
    return result
