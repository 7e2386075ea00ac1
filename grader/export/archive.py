"""Feedback pages as one zip, named the way each LMS reads them back.

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
from grader.export.layout import Entry, Layout

WHEN = (1980, 1, 1, 0, 0, 0)  # one zip for one set of pages
LONGEST_NAME = 60  # characters of a person's name: Windows limits whole paths
CANVAS_SOURCE = re.compile(r"canvas (\d+)")


def names(course: Course, layout: Layout, lab: str, entries: Mapping[str, Entry]
          ) -> tuple[dict[str, str], dict[str, str]]:
    """Return the page's name in the zip by student, and for the others why they have none."""
    if layout.lms == "Moodle":
        return _moodle(lab, entries)
    return _canvas(course, lab, entries)


def _moodle(lab: str, entries: Mapping[str, Entry]) -> tuple[dict[str, str], dict[str, str]]:
    found = {student: f"{_letters(entry.name, ' ') or 'Participant'}_{entry.number}"
                      f"_assignsubmission_file_/{lab}.html"
             for student, entry in entries.items() if entry.number}
    return found, {student: "its row has no participant's number"
                   for student in entries if student not in found}


def _canvas(course: Course, lab: str, entries: Mapping[str, Entry]
            ) -> tuple[dict[str, str], dict[str, str]]:
    received, found, without = receipts.read(course), {}, {}
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
            found[student] = f"{name}_{entry.number}_{max(numbers)}_{lab}.html"
    return found, without


def _letters(name: str, between: str) -> str:
    """A person's name with nothing in it that a path or an LMS gives a meaning to."""
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
