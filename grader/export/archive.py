"""Feedback pages in one zip archive, with the file names that each LMS expects.

Moodle (assignment > Submissions > Upload multiple feedback files in a zip) takes the participant's
number from `Full name_NUMBER_assignsubmission_file_/`. Canvas (assignment > Upload Submissions)
takes the user's number and that of the submitted file from `name_USER_FILE_anything`, and attaches
the page as a comment only if that file belongs to the student's newest submission.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from grader.course import Course, receipts
from grader.export.layout import Entry, LmsFile

WHEN = (1980, 1, 1, 0, 0, 0)  # one zip for one set of pages
LONGEST_NAME = 60  # characters of a person's name: Windows limits whole paths
CANVAS_SOURCE = re.compile(r"canvas (\d+)")


def names(course: Course, layout: LmsFile, lab: str, entries: Mapping[str, Entry]
          ) -> tuple[dict[str, str], dict[str, str]]:
    """Return the page's name in the zip by student, and by student the reason why there is none.

    Args:
        course: the course.
        layout: the LMS's file.
        lab: the lab's name.
        entries: the LMS's rows by student.
    """
    if layout.lms == "Moodle":
        return _moodle(lab, entries)
    return _canvas(course, lab, entries)


def _moodle(lab: str, entries: Mapping[str, Entry]) -> tuple[dict[str, str], dict[str, str]]:
    names = {student: f"{_letters(entry.name, ' ') or 'Participant'}_{entry.number}"
                      f"_assignsubmission_file_/{lab}.html"
             for student, entry in entries.items() if entry.number}
    return names, {student: "its row has no participant's number"
                   for student in entries if student not in names}


def _canvas(course: Course, lab: str, entries: Mapping[str, Entry]
            ) -> tuple[dict[str, str], dict[str, str]]:
    received, names, without = receipts.read(course), {}, {}
    for student, entry in entries.items():
        numbers = [int(match[1]) for receipt in received.get((student, lab), [])
                   if (match := CANVAS_SOURCE.fullmatch(receipt.source))]
        if not entry.number:
            without[student] = "its row has no user's number in the column ID"
        elif not numbers:
            without[student] = "not collected from Canvas's download of this assignment"
        else:
            name = _letters(entry.name, "").lower()
            name = f"student{name}" if not name.strip("0123456789") or name in (
                "anon", "late") else name
            names[student] = f"{name}_{entry.number}_{max(numbers)}_{lab}.html"
    return names, without


def _letters(name: str, between: str) -> str:
    """Return a person's name without characters that have a meaning in paths or in an LMS.

    Args:
        name: the name.
        between: separates its words.
    """
    words = re.findall(r"[^\W_]+(?:[-'][^\W_]+)*", name)
    return between.join(words)[:LONGEST_NAME].strip()


def zipped(pages: Mapping[str, Path]) -> bytes:
    """Return a zip of these pages, by their names in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(pages.items()):
            info = zipfile.ZipInfo(name, WHEN)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, path.read_bytes())
    return buffer.getvalue()
