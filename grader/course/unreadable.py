"""What students submitted that is no notebook: course/received/unreadable.jsonl, appended to only.

Such a file is not kept, but that it came is: its student did not submit nothing.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.course.folder import Course, until_changed
from grader.course.names import UNREADABLE
from grader.course.receipts import append_line
from labcore.errors import LabError
from labcore.terminal import visible


@dataclass(frozen=True)
class UnreadableFile:
    """One file that could not be taken.

    Attributes:
        file: its path in the source, as the LMS or the student named it.
        when: time of receipt, ISO 8601, UTC.
        why: the reason, for the instructor and the student.
    """

    student: str
    lab: str
    file: str
    when: str
    why: str

    @property
    def name(self) -> str:
        """The file's name without its folders, safe to print."""
        return visible(self.file.rpartition("/")[2])

    def __str__(self) -> str:
        return f"received, but unreadable: {self.name}: {self.why}"


def file_of(course: Course) -> Path:
    return course.root / "received" / UNREADABLE


def newest(course: Course) -> dict[tuple[str, str], UnreadableFile]:
    """Return the newest unreadable file by (lab, student). Raises LabError when a line is
    damaged."""
    result: dict[tuple[str, str], UnreadableFile] = {}
    for one in sorted(_all(course), key=lambda one: datetime.datetime.fromisoformat(one.when)):
        result[one.lab, one.student] = one
    return result


def _all(course: Course) -> list[UnreadableFile]:
    return _read(file_of(course))


@until_changed(list)
def _read(path: Path) -> list[UnreadableFile]:
    result = []
    # What follows the last newline was being written when the machine stopped.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            one = UnreadableFile(**json.loads(line))
            if not all(isinstance(text, str) for text in asdict(one).values()) or (
                    datetime.datetime.fromisoformat(one.when).tzinfo is None):
                raise ValueError
        except (ValueError, TypeError, RecursionError):
            raise LabError(f"{path}, line {number} is damaged: remove the line, and collect that "
                           "submission again") from None
        result.append(one)
    return result


def add(course: Course, one: UnreadableFile) -> UnreadableFile:
    """Append one line, unless this file was there before; return the line that counts.

    Args:
        course: the course.
        one: the file.
    """
    def identity(entry: UnreadableFile) -> tuple[str, str, str, str]:
        return entry.student, entry.lab, entry.file, entry.why

    known = next((entry for entry in _all(course) if identity(entry) == identity(one)), None)
    if known is None:
        append_line(file_of(course), asdict(one))
    return known or one
