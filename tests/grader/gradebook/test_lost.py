"""A gradebook that is lost is never replaced by an empty one without a word."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from nbgrader import api
from nbgrader.api import Gradebook

from grader.course import Submission
from grader.gradebook import guard, mark, records
from grader.gradebook.guard import LostGradebook
from labcore.errors import LabError
from tests.grader import small_lab
from tests.grader.conftest import run
from tests.grader.small_lab import WRONG

pytestmark = pytest.mark.slow
NAME = small_lab.NAME


def older_copy(office) -> None:
    kept = office.book.with_name("kept.db")
    shutil.copyfile(office.book, kept)
    office.by_hand("script-check", 0)
    kept.replace(office.book)


def empty_one(office) -> None:
    office.book.unlink()
    with sqlite3.connect(office.book) as connection:
        connection.execute("CREATE TABLE student (id TEXT)")


def another_courses(office) -> None:
    office.book.unlink()
    other = office.course.root.with_name("other.db")
    Gradebook(f"sqlite:///{other}").close()
    shutil.copyfile(other, office.book)


def page_of_zeros(office) -> None:
    content = bytearray(office.book.read_bytes())
    size = int.from_bytes(content[16:18], "big")
    content[2 * size:4 * size] = bytes(2 * size)
    office.book.write_bytes(content)


def cut_in_half(office) -> None:
    content = office.book.read_bytes()
    office.book.write_bytes(content[:len(content) // 2])


def a_folder(office) -> None:
    office.book.unlink()
    office.book.mkdir()


LOSSES = {
    "deleted": lambda office: office.book.unlink(), "zero bytes": lambda office: office.book.
    write_bytes(b""), "half": cut_in_half, "zeros": page_of_zeros, "a folder": a_folder,
    "text": lambda office: office.book.write_text("no database at all" * 100),
    "empty": empty_one, "another course's": another_courses, "older": older_copy,
    "a dead link": lambda office: (office.book.unlink(), office.book.symlink_to("gone")),
}


def test_without_the_guard_a_deleted_gradebook_is_empty_and_nothing_says_so(office, monkeypatch):
    """The control: what nbgrader does by itself."""
    office.book.unlink()
    monkeypatch.setattr(guard, "require_sound", lambda path: None)
    assert office.roster() == []


@pytest.mark.parametrize("loss", LOSSES)
def test_a_lost_gradebook_stops_what_would_write_and_says_how_to_restore_it(office, loss, capsys):
    LOSSES[loss](office)
    before = office.book.read_bytes() if office.book.is_file() else None
    with pytest.raises(LostGradebook, match="lab gradebook restore"):
        office.roster()
    students = office.course.root / "students.csv"
    students.write_text("id\nzoe\n")
    assert office.lab("release", NAME) == 1
    assert office.lab("roster", "import", str(students)) == 1
    said = capsys.readouterr().err
    assert said.count("lab: error: ") == 2 and said.count("lab gradebook restore") == 2
    assert str(office.book) in said and "Traceback" not in said
    assert before == (office.book.read_bytes() if office.book.is_file() else None)
    assert office.lab("gradebook", "restore") == 0
    assert "2 students, 1 grades, 1 scores entered by hand" in capsys.readouterr().out
    assert office.roster() == ["ada", "mary"]
    assert office.row()["score"] == "3.0"  # with what the person entered
    kept = [path for path in office.course.root.glob("gradebook.db.before-*")]
    assert len(kept) == (loss not in ("deleted",)), kept


@pytest.mark.parametrize("words", [["export"], ["db", "student", "list"],
                                   ["generate_feedback", NAME, "--force"]])
def test_nbgraders_own_commands_stop_too(office, words):
    office.book.unlink()
    done = run(office.course, *words, program="nbgrader")
    assert done.returncode != 0 and "lab gradebook restore" in done.stderr, done.stderr
    assert not office.book.exists()


def test_without_a_mark_the_contents_are_compared(office):
    older = office.book.read_bytes()
    office.merge(office.result("mary", WRONG, scores={"batch-check": 0.0, "script-check": 2.0}))
    office.book.write_bytes(older)
    mark.file_of(office.book).unlink()
    with pytest.raises(LostGradebook, match=r"lacks 1 grade \(the first: mary, 90_small\)"):
        office.roster()


def test_without_mark_and_backups_the_grades_in_attempts_still_say_it(office):
    shutil.rmtree(office.book.with_name("backups"))
    mark.file_of(office.book).unlink()
    office.book.unlink()
    with pytest.raises(LostGradebook, match="attempts/ has 1 grade"):
        office.roster()


def test_a_course_of_before_gets_its_mark_at_the_first_opening(office):
    mark.file_of(office.book).unlink()
    with sqlite3.connect(office.book) as connection:
        mark.write_header_mark(connection, mark.Mark(0, 0))
        connection.execute("DROP TABLE lab_entered")
    assert office.roster() == ["ada", "mary"]
    assert mark.saved_mark(office.book).name
    assert office.row()["score"] == "3.0"


def test_a_new_gradebook_has_the_version_that_nbgrader_itself_finds(office, monkeypatch):
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    with sqlite3.connect(office.book) as connection:
        (found,) = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    assert found == api.get_alembic_version() == api.get_alembic_version.__wrapped__()


def test_a_gradebook_that_goes_while_it_is_open_is_missed_at_once(office):
    """formgrader keeps it open, so the scores would go into a deleted file."""
    with records.gradebook(office.course) as book:
        assert book.students
        book.db.commit()
        office.book.unlink()
        with pytest.raises(LostGradebook, match="while it was open"):
            assert book.students


LOCK = """import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locked(office):
    with subprocess.Popen([sys.executable, "-c", LOCK, office.book], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_a_locked_gradebook_is_said_to_be_locked_and_by_whom(office, locked, monkeypatch, capsys):
    for module in ("faults", "mark", "watch"):
        monkeypatch.setattr(f"grader.gradebook.{module}.SECONDS_TO_WAIT", 0.2)
    assert office.lab("release", NAME) == 1
    assert office.lab("gradebook", "restore") == 1
    said = capsys.readouterr().err
    assert f"{office.book} is locked, and still was after 0 s" in said, said
    assert said.count(f"process {locked.pid} (") == 2 and "Traceback" not in said
    assert f"{office.book} is in use by" in said


def test_a_lock_in_the_middle_of_a_batch_blames_no_submission(office, monkeypatch):
    for module in ("faults", "mark", "watch"):
        monkeypatch.setattr(f"grader.gradebook.{module}.SECONDS_TO_WAIT", 0.2)
    result = office.result("mary")
    with records.gradebook(office.course) as book:
        assert book.students
        book.db.commit()
        with subprocess.Popen([sys.executable, "-c", LOCK, office.book], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "held\n"
            with pytest.raises(LabError, match="is locked"):
                office.enter(result, book)
            process.stdin.close()
    assert Submission(office.course, NAME, "mary").record is None  # its result waits
