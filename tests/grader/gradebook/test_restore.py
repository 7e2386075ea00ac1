"""Restoring loses nothing that is known, and leaves no score that is another version's."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3

import pytest

from grader.batch import batch
from grader.course import Submission
from grader.gradebook import backups, records
from grader.gradebook.restore import REASON
from tests.grader import small_lab
from tests.grader.batch.test_merge import desk_settings
from tests.grader.conftest import extend
from tests.grader.gradebook.test_by_hand import ADA, DAY, extension, made
from tests.grader.small_lab import WRONG

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
HALF = {"scores": {"batch-check": 0.0, "script-check": 2.0}}


def test_what_was_graded_after_the_backup_is_entered_again(office, capsys):
    office.merge(office.result("mary", WRONG, **HALF))
    office.book.unlink()
    assert office.row_or_fault() == "lost"
    assert office.lab("gradebook", "restore") == 0
    said = capsys.readouterr().out
    assert "lacks 1 of the grades in attempts/" in said and f"  mary, {NAME}" in said, said
    assert (office.row("mary")["state"], office.row("mary")["reason"]) == ("ungraded", REASON)
    waiting = batch.pending_result(Submission(office.course, NAME, "mary"), desk_settings("limits"))
    office.merge(waiting)
    assert (office.row("mary")["score"], office.row()["score"]) == ("2.0", "3.0")


def test_a_new_version_does_not_get_the_scores_of_the_one_in_the_backup(office, capsys):
    """Nor what a person entered for it: that waits, as it does at every new version."""
    extend(office.course, NAME, "ada", DAY)
    office.back_up()
    office.merge(office.result("ada", WRONG, **HALF))
    office.book.unlink()
    assert office.lab("gradebook", "restore") == 0
    assert (office.row()["state"], office.row()["score"]) == ("ungraded", "")
    actual = made(office, ADA)
    assert not actual.rest  # entered from results/
    assert office.row()["score"] == "2.0" and extension(office) == DAY
    assert Submission(office.course, NAME, "ada").record.set_aside == {"batch-check": [1.0, None]}


def test_the_same_version_graded_again_keeps_what_a_person_entered(office):
    office.merge(office.result())
    office.book.unlink()
    assert office.lab("gradebook", "restore") == 0
    assert office.row()["reason"] == REASON
    made(office, ADA)
    assert office.row()["score"] == "3.0"


def test_what_has_become_ungraded_does_not_come_back_with_a_score(office):
    office.merge(office.result("ada", "a = 1", state="ungraded", reason="died", notebook=None,
                               scores={}))
    shutil.copy(backups.backups_of(office.book)[-1].path, office.course.root / "mine.db")
    assert office.lab("gradebook", "restore", "--from", str(office.course.root / "mine.db")) == 0
    assert (office.row()["state"], office.row()["reason"]) == ("ungraded", "died")
    with records.gradebook(office.course) as book, pytest.raises(records.MissingEntry):
        book.find_submission(NAME, "ada")
    assert Submission(office.course, NAME, "ada").record.set_aside == {"batch-check": [1.0, None]}


def test_restore_takes_the_newest_sound_backup_and_names_the_damaged(office, capsys):
    office.by_hand("script-check", 0)
    newest = office.back_up()
    newest.write_bytes(newest.read_bytes()[:9000])
    office.book.unlink()
    assert office.lab("gradebook", "backups") == 0
    assert f"damaged, cannot be restored: {newest}" in capsys.readouterr().out
    assert office.lab("gradebook", "restore") == 0
    assert f"damaged, skipped: {newest}" in capsys.readouterr().out
    assert office.row()["score"] == "3.0"


@pytest.mark.parametrize("content, said", [
    (None, "there is no such file"), (b"", "is not a gradebook"), (b"text" * 500, "not a database"),
    (b"\0", "not a gradebook")])
def test_a_file_that_is_no_gradebook_is_not_restored(office, capsys, content, said):
    source, before = office.course.root / "mine.db", office.book.read_bytes()
    if content:
        source.write_bytes(content)
    elif content is not None:
        sqlite3.connect(source).execute("CREATE TABLE other (id)")
    assert office.lab("gradebook", "restore", "--from", str(source)) == 1
    assert said in capsys.readouterr().err
    assert office.book.read_bytes() == before


def test_restore_waits_for_nobody_who_uses_the_gradebook(office, capsys):
    lock = office.course.root / ".cluster" / "start.lock"
    lock.parent.mkdir()
    with open(lock, "a+") as file:
        file.write("http://127.0.0.1:8888/")
        file.flush()
        fcntl.flock(file, fcntl.LOCK_EX)
        assert office.lab("gradebook", "restore") == 1
    assert "formgrader is running (http://127.0.0.1:8888/)" in capsys.readouterr().err
    with office.course.locked("lab grade"):
        assert office.lab("gradebook", "restore") == 1
    assert "`lab grade` has been running since" in (error := capsys.readouterr().err)
    assert "run `lab gradebook restore` again when it has ended" in error
    assert not list(office.course.root.glob("gradebook.db.*"))


def test_a_stale_journal_is_not_applied_to_the_restored_file(office):
    journal = office.book.with_name("gradebook.db-journal")
    office.book.write_bytes(b"damaged" * 1000)
    journal.write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(1000))
    assert office.lab("gradebook", "restore") == 0
    assert not journal.exists() and office.row()["score"] == "3.0"


def test_a_gradebook_that_is_meant_to_be_is_accepted(office, capsys):
    office.book.unlink()
    assert office.lab("gradebook", "accept") == 0
    assert "no gradebook" in capsys.readouterr().out and office.roster() == []
    assert office.lab("release", NAME) == 0
    assert office.row()["reason"] == REASON
    made(office, ADA)
    assert office.row()["score"] == "5.0"


def test_an_older_copy_can_be_accepted_and_a_damaged_file_cannot(office, capsys):
    older = office.book.read_bytes()
    office.by_hand("script-check", 0)
    office.book.write_bytes(older)
    assert office.lab("gradebook", "accept") == 0
    assert "attempts/ has no grade that it lacks" in capsys.readouterr().out
    assert office.row()["score"] == "3.0"
    office.book.write_bytes(older[:9000])
    assert office.lab("gradebook", "accept") == 1
    assert "is damaged" in capsys.readouterr().err


def test_backups_are_few_the_owners_and_made_when_something_changed(office, monkeypatch):
    assert office.back_up() is None  # nothing changed
    for number in range(backups.NEWEST + 3):
        office.by_hand("batch-check", number / 10)
        made = office.back_up()
    result = backups.backups_of(office.book)
    assert len(result) == backups.NEWEST and result[0].path == made
    assert made.stat().st_mode & 0o777 == 0o600 and not made.parent.stat().st_mode & 0o007
    for day in range(1, 10):
        shutil.copy(made, made.with_name(f"gradebook-202601{day:02d}T120000.000000Z.db"))
    backups.rotate(made.parent)
    kept = [backup.path.name[10:18] for backup in backups.backups_of(office.book)]
    assert len(kept) == backups.NEWEST + backups.DAYS - 1 and kept[-1] == "20260104"


def test_a_command_that_writes_leaves_a_backup_of_before_and_after(office):
    before = len(backups.backups_of(office.book))
    office.by_hand("script-check", 1)
    students = office.course.root / "students.csv"
    students.write_text("id\nzoe\n")
    assert office.lab("roster", "import", str(students)) == 0
    result = backups.backups_of(office.book)[:-before]
    assert [backup.counts.students for backup in result] == [3, 2]
    assert [backup.counts.by_hand for backup in result] == [2, 2]
    assert not list(office.book.with_name("backups").glob(".*"))


def test_a_backup_that_was_cut_off_is_not_there(office, monkeypatch):
    office.by_hand("script-check", 1)
    before = sorted(office.book.with_name("backups").iterdir())
    monkeypatch.setattr(backups.os, "fsync", lambda file: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        office.back_up()
    assert sorted(office.book.with_name("backups").iterdir()) == before
