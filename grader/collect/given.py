"""What an instructor knows about an archive: whose a participant's number is, and when each student
submitted."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader.course.names import normalized
from grader.course.roster import Roster, read_table
from grader.course.times import in_zone, now, parse_time
from labcore.errors import LabError
from labcore.terminal import visible

NUMBER = re.compile(r"(\d+)\s*$")
IDENTITIES = ("id number", "username", "email address")
SUBMITTED = "last modified (submission)"
MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september",
          "october", "november", "december")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
# Moodle's format strftimedaydatetime in its languages en and en_us: "Wednesday, 10 June 2026,
# 2:14 PM" and "Wednesday, June 10, 2026, 2:14 PM", in the time zone of the reader's profile.
SHOWN = re.compile(r"(?P<day_name>[a-z]+), (?:(?P<day>\d{1,2}) (?P<month>[a-z]+)|"
                   r"(?P<us_month>[a-z]+) (?P<us_day>\d{1,2}),) (?P<year>\d{4}), "
                   r"(?P<hour>\d{1,2}):(?P<minute>\d\d) (?P<half>[ap])m", re.ASCII)


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
    _, rows = _worksheet(path)
    result = {}
    for _, cells in rows:
        if match := NUMBER.search(cells["identifier"]):
            result[match[1]] = Participant(_student_of(cells, roster), cells.get("full name", ""))
    return result


def _worksheet(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    header, rows = read_table(path)
    if "identifier" not in header or not set(IDENTITIES) & set(header):
        raise LabError(f"--worksheet {path}: it has no column Identifier, or none of ID number, "
                       "Username, and Email address: download the grading worksheet from the "
                       "assignment's submissions")
    return header, rows


def submission_times(path: Path, roster: Roster, zone: str, known: Collection[str]
                     ) -> dict[str, datetime.datetime]:
    """Return when each student submitted, from Moodle's grading worksheet.

    Args:
        path: the worksheet.
        roster: the class.
        zone: the time zone of its times.
        known: students whose times are not needed.

    Raises LabError that shows the cell, rather than guess.
    """
    in_zone(datetime.datetime(2026, 1, 15, 12), zone, "--zone")
    header, rows = _worksheet(path)
    if SUBMITTED not in header:
        raise LabError(f"--zone: {path} has no column Last modified (submission); --times FILE "
                       "gives the times of submission, too")
    result: dict[str, datetime.datetime] = {}
    for line, cells in rows:
        student, cell = _student_of(cells, roster), cells[SUBMITTED]
        if not student or student in known or cell in ("", "-"):
            continue
        where = f"--worksheet {path}, line {line}: {visible(cell)!r}"
        instead = f"; --times FILE takes a time for {student} that you are sure of"
        try:
            time = in_zone(moodle_time(cell), zone, where)
        except ValueError as error:
            raise LabError(f"{where} is not a time as Moodle writes it in English, such as "
                           f"'Wednesday, 10 June 2026, 2:14 PM'{error}: download the worksheet "
                           f"again, with Moodle in English{instead}") from None
        except LabError as error:
            raise LabError(f"{error}{instead}") from None
        if time > now() + datetime.timedelta(minutes=5):
            raise LabError(f"{where} is in the future: is --zone {zone} the time zone of your "
                           "profile in Moodle?")
        if result.setdefault(student, time) != time:
            raise LabError(f"{where} is a second time for {student}{instead}")
    return result


def moodle_time(cell: str) -> datetime.datetime:
    """Return a time as Moodle shows it in English, without a zone.

    Raises ValueError for any other, and if its day of the week is another one: then it was
    misread, or edited.
    """
    match = SHOWN.fullmatch(" ".join(cell.lower().split()))
    if match is None:
        raise ValueError
    month, day = match["month"] or match["us_month"], int(match["day"] or match["us_day"])
    hour = int(match["hour"])
    if month not in MONTHS or match["day_name"] not in DAYS or not 1 <= hour <= 12:
        raise ValueError
    try:
        time = datetime.datetime(int(match["year"]), 1 + MONTHS.index(month), day,
                                 hour % 12 + 12 * (match["half"] == "p"), int(match["minute"]))
    except ValueError:
        raise ValueError from None
    if DAYS[time.weekday()] != match["day_name"]:
        raise ValueError(f" (that day was a {DAYS[time.weekday()].capitalize()})")
    return time


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
