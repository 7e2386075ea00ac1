"""A disk without room: the error names the file, nothing is half written, and the rest waits."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from grader.batch import batch
from grader.course import Submission, receipts
from grader.course.receipts import Receipt
from grader.gradebook import records
from labcore.atomic import write_atomic
from tests.grader import small_lab
from tests.grader.batch.test_merge import desk_settings
from tests.grader.conftest import run

NAME = small_lab.NAME
REASONS = [(errno.ENOSPC, "does not fit on the disk"), (errno.EDQUOT, "exceeds your disk quota"),
           (errno.EROFS, "is on a read-only file system")]


@pytest.fixture
def full(monkeypatch):
    """Writes of files that `wanted` likes stop after a few bytes."""
    def fill(wanted, number: int = errno.ENOSPC) -> None:
        write = Path.write_bytes

        def short(path: Path, content: bytes) -> int:
            if not wanted(path):
                return write(path, content)
            write(path, content[:7])
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "write_bytes", short)

    return fill


def test_a_file_that_does_not_fit_leaves_the_one_that_was_there(tmp_path, full):
    path = tmp_path / "grades.csv"
    write_atomic(path, b"before")
    full(lambda _: True)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomic(path, b"a longer content")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"before" and list(tmp_path.iterdir()) == [path]


def test_a_receipt_that_does_not_fit_is_not_there(tmp_path, monkeypatch):
    from grader.course import Course

    course, receipt = Course(tmp_path), Receipt("ada", "a", "0", "2026-01-01T00:00:00+00:00", "x")
    receipts.add(course, receipt)
    before, write = receipts.file_of(course).read_bytes(), os.write
    monkeypatch.setattr(receipts.os, "write", lambda file, line: write(file, line[:9]))
    with pytest.raises(OSError, match=r"receipts\.jsonl"):
        receipts.add(course, receipt)
    assert receipts.file_of(course).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("number, said", REASONS)
def test_a_record_that_does_not_fit_stops_the_batch_and_its_result_waits(office, full, monkeypatch,
                                                                         number, said):
    result = office.result("mary")
    with monkeypatch.context():
        full(lambda path: path.parent.parent.name == "attempts", number)
        with records.gradebook(office.course) as book, pytest.raises(
                batch.StorageFault, match=f"attempts/mary/{NAME}.json {said}"):
            office.enter(result, book)
    monkeypatch.undo()
    assert Submission(office.course, NAME, "mary").record is None
    assert not list((office.course.root / "attempts").rglob(".*"))
    waiting = batch.pending_result(Submission(office.course, NAME, "mary"), desk_settings("limits"))
    office.merge(waiting)
    assert (office.row("mary")["score"], office.row()["score"]) == ("5.0", "3.0")


@pytest.mark.slow
def test_a_backup_that_does_not_fit_stops_the_command_before_it_writes(office):
    """In a process of its own, whose files may have 10 kB: the gradebook is larger."""
    office.by_hand("script-check", 1)
    students, before = office.course.root / "students.csv", office.book.read_bytes()
    students.write_text("id\nzoe\n")
    done = run(office.course, "roster", "import", str(students), program="no-room")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"{office.book.with_name('backups')}/gradebook-" in done.stderr, done.stderr
    assert "cannot be written" in done.stderr
    assert office.book.read_bytes() == before and office.roster() == ["ada", "mary"]
    assert not list(office.book.with_name("backups").glob(".*"))
