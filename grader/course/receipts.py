"""Times of receipt: course/received/receipts.jsonl, to which lines are only appended.

A student can write any submitted file and its times, so none of them count. A line has the server's
time from when the submission was collected.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grader.course.folder import Course, until_changed
from grader.course.names import RECEIPTS
from grader.course.submission import Submission
from labcore.errors import LabError


@dataclass(frozen=True)
class Receipt:
    """The receipt of one version of one student's lab.

    Attributes:
        digest: SHA-256 of the notebook, in hex.
        when: ISO 8601, UTC.
        said_by: the source of the time.
        source: distinguishes submissions of equal bytes, where the source can.
        file: the file's original name.
        serial: larger is newer among those of one time.
    """

    student: str
    lab: str
    digest: str
    when: str
    said_by: str
    source: str = ""
    file: str = ""
    serial: int = 0
    lms_late: bool = False

    @property
    def time(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.when)

    @property
    def order(self) -> tuple[datetime.datetime, int]:
        return self.time, self.serial


def file_of(course: Course) -> Path:
    return course.root / "received" / RECEIPTS


def read(course: Course) -> dict[tuple[str, str], list[Receipt]]:
    """Return receipts by (student, lab), oldest version first; a later line corrects an earlier
    one.

    Raises LabError when a line is damaged.
    """
    return _read(file_of(course))


@until_changed(dict)
def _read(path: Path) -> dict[tuple[str, str], list[Receipt]]:
    versions: dict[tuple[str, str, str, str], Receipt] = {}
    # What follows the last newline was being written when the machine stopped: it was not kept.
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        if not line:
            continue
        receipt = _parsed(line)
        if receipt is None:
            raise LabError(f"{path}, line {number} is damaged: restore it from a backup, or remove "
                           "the line and collect that submission again")
        versions[receipt.student, receipt.lab, receipt.digest, receipt.source] = receipt
    result: dict[tuple[str, str], list[Receipt]] = {}
    for receipt in sorted(versions.values(), key=lambda receipt: receipt.order):
        result.setdefault((receipt.student, receipt.lab), []).append(receipt)
    return result


def _parsed(line: bytes) -> Receipt | None:
    try:
        receipt = Receipt(**json.loads(line))
        kinds = asdict(Receipt("", "", "", "", ""))
        sound = all(type(value) is type(kinds[name]) for name, value in asdict(receipt).items())
        return receipt if sound and receipt.time.tzinfo else None
    except (ValueError, TypeError, RecursionError):
        return None


def add(course: Course, receipt: Receipt) -> None:
    """Append one line, and wait until it is on the disk.

    Args:
        course: the course.
        receipt: the receipt.
    """
    append_line(file_of(course), asdict(receipt))


def append_line(path: Path, values: dict[str, Any]) -> None:
    """Append one line of JSON to a file, completely or not at all. Raises OSError.

    Args:
        path: the file.
        values: the line's fields.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps(values).encode() + b"\n"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            size -= _unfinished(file, size)
            os.ftruncate(file, size)
        if os.write(file, line) != len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(file)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(file)


def _unfinished(file: int, size: int) -> int:
    """Return the number of bytes after the last newline."""
    tail = os.pread(file, min(size, 100_000), max(0, size - 100_000))
    return len(tail) - tail.rfind(b"\n") - 1


def receipt_for(submission: Submission) -> Receipt | None:
    """Return the first receipt of the submission's version since another version came in.

    A student who submits the same file again does not become late, and one who returns to an older
    version is as late as the last time it was submitted.
    """
    received = read(submission.course).get((submission.student, submission.lab), [])
    result = None
    for receipt in reversed(received):
        if receipt.digest == submission.digest:
            result = receipt
        elif result:
            break
    return result
