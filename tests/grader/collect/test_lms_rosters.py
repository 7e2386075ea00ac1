"""Rosters as LMSs write them, students who leave, and what an instructor knows about an archive."""

from __future__ import annotations

import pytest

from grader.course import Submission, receipts
from grader.course.received import received
from grader.course.roster import Person, people, read_file
from grader.gradebook import decisions
from grader.gradebook.records import gradebook
from grader.report.grades import save
from labcore.errors import LabError
from tests.grader.collect.conftest import NAME, PEOPLE, put, zipped

CANVAS = """\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,90_small (4711),Final Score
,,,,,Manual Posting,
    Points Possible,,,,,5,(read only)
"Lovelace, Ada",101,S1,ada@uni.test,Tue,,
"de la Cruz, Ana María",103,S3,ana@uni.test,Tue,,
"Student, Test",999,,0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a,Tue,,
"""
MOODLE = """"First name","Last name","Email address",Groups,Roles
Ada,Lovelace,ada@uni.test,A,Student
सिद्धार्थ,शर्मा,s@uni.test,A,Student
Tea,Cher,t@uni.test,,Teacher
"""


def test_canvas_gradebook_is_a_roster(course, command, tmp_path):
    (tmp_path / "g.csv").write_text(CANVAS)
    found, notes = read_file(tmp_path / "g.csv")
    assert found == [Person("S1", "Ada", "Lovelace", "ada@uni.test", "101"),
                     Person("S3", "Ana María", "de la Cruz", "ana@uni.test", "103")]
    assert "ids are the column SIS User ID" in notes[0]
    done = command("roster", "import", str(tmp_path / "g.csv"))
    assert "2 students: 1 added, 0 changed, 1 as before" in done.stdout  # ada keeps her id
    with gradebook(course) as book:
        assert {person.id for person in people(book)} == {"ada", "grace", "jm1", "jm2", "S3"}
    found, _ = read_file(tmp_path / "g.csv", "SIS Login ID")
    assert [person.id for person in found] == ["ada@uni.test", "ana@uni.test"]


def test_moodles_participants_are_a_roster_without_teachers(command, tmp_path):
    (tmp_path / "p.csv").write_text(MOODLE)
    found, notes = read_file(tmp_path / "p.csv")
    assert found == [Person("ada@uni.test", "Ada", "Lovelace", "ada@uni.test"),
                     Person("s@uni.test", "सिद्धार्थ", "शर्मा", "s@uni.test")]
    assert "columns that are not used" not in " ".join(notes)
    done = command("roster", "import", str(tmp_path / "p.csv"))
    assert "2 students: 1 added" in done.stdout and done.returncode == 0


@pytest.mark.parametrize("text, words, says", [
    (MOODLE, ["--id", "Nick"], "no such column; it has First name"),
    ("id\nada\n", ["--id", "x"], "only for Canvas's and Moodle's files"),
    (MOODLE.replace("Email address", "City").replace("ada@uni.test", ""), [],
     "no column identifies every student"),
    (MOODLE + "Bob,Ross\n", [], "2 cells, but 5 columns"),
    (CANVAS.replace("S3", "S1"), [], "occurs already")])
def test_a_file_that_cannot_be_used_is_named(course, command, tmp_path, text, words, says):
    (tmp_path / "f.csv").write_text(text)
    done = command("roster", "import", str(tmp_path / "f.csv"), *words)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    with gradebook(course) as book:
        assert people(book) == PEOPLE


def test_who_left_is_in_no_table_and_loses_nothing(course, command, take, submitted, tmp_path,
                                                   answer):
    folder = put(tmp_path / "in", {f"{who}/{NAME}.ipynb": answer() for who in ("ada", "grace")})
    take(folder)
    done = command("roster", "remove", "grace", "--why", "left on May 3")
    assert done.returncode == 0 and "lab roster restore grace" in done.stdout
    assert {row.student for row in save(course)} == {"ada", "jm1", "jm2"}
    listed = command("roster", "list").stdout
    assert "3 students" in listed and "left: grace (left on May 3)" in listed
    assert "grace" not in command("roster", "export").stdout
    assert "has left the course" in take(folder)[f"grace/{NAME}.ipynb"].why
    assert submitted("grace") == answer()
    assert command("roster", "restore", "grace").returncode == 0
    assert "grace" in {row.student for row in save(course)}
    assert take(folder)[f"grace/{NAME}.ipynb"].verdict == "same"


def test_a_new_roster_removes_and_restores(course, command, tmp_path):
    (tmp_path / "g.csv").write_text(CANVAS)
    save(course)
    done = command("roster", "import", str(tmp_path / "g.csv"), "--remove-others")
    assert "3 removed: grace, jm1, jm2" in done.stdout
    assert set(decisions.dropped(course)) == {"grace", "jm1", "jm2"}
    assert "grace" not in (course.root / "grades.csv").read_text()
    (tmp_path / "s.csv").write_text("id\ngrace\n")
    assert "1 restored: grace" in command("roster", "import", str(tmp_path / "s.csv")).stdout
    assert "grace" in (course.root / "grades.csv").read_text()


def test_only_who_is_there_is_removed(course, command):
    assert "nearest: grace" in command("roster", "remove", "grac").stderr
    assert "those who left" in command("roster", "restore", "ada").stderr
    assert not decisions.file_of(course).exists()


def test_an_id_that_is_another_students_in_the_course_renames_nobody(course, command, tmp_path):
    """Ada's user name is the id that Grace has in this course."""
    (tmp_path / "p.csv").write_text("First name,Last name,Username,Email address\n"
                                    "Ada,Lovelace,grace,ada@uni.test\n")
    done = command("roster", "import", str(tmp_path / "p.csv"))
    assert done.returncode == 1 and "email address of ada" in done.stderr
    with gradebook(course) as book:
        assert people(book) == PEOPLE


def test_two_rows_are_not_made_one_student(course, command, tmp_path):
    """One has Ada's number, the other her email address."""
    (tmp_path / "g.csv").write_text(CANVAS.replace("101,S1,ada@uni.test", "555,S1,ada@uni.test")
                                    .replace("103,S3,ana", "101,S3,ana"))
    done = command("roster", "import", str(tmp_path / "g.csv"))
    assert done.returncode == 1 and "2 rows have an LMS id or an email" in done.stderr
    with gradebook(course) as book:
        assert people(book) == PEOPLE


WORKSHEET = """Identifier,Full name,ID number,Email address,Grade
Participant 11,José Müller,jm1,jose@uni.test,
Participant 12,Jose Muller,,muller@uni.test,
Participant 13,Ada Lovelace,grace,ada@uni.test,
"""


def test_the_worksheet_tells_students_of_one_name_apart(take, submitted, tmp_path, answer):
    names = {number: f"{name}_{number}_assignsubmission_file_/{NAME}.ipynb" for number, name in (
        (11, "José Müller"), (12, "Jose Muller"), (13, "Ada Lovelace"), (14, "Jose Muller"))}
    archive = zipped(tmp_path / "m.zip", {name: answer(f"# {number}")
                                          for number, name in names.items()})
    assert "may be jm1 or jm2" in take(archive)[names[11]].why
    (tmp_path / "w.csv").write_text(WORKSHEET)
    lines = take(archive, worksheet=tmp_path / "w.csv")
    assert [lines[names[number]].student for number in (11, 12, 13)] == ["jm1", "jm2", "ada"]
    assert "may be jm1 or jm2" in lines[names[14]].why  # not in the worksheet
    assert (submitted("jm1"), submitted("jm2")) == (answer("# 11"), answer("# 12"))
    assert submitted("grace") is None  # the worksheet contradicts itself, and her name is Ada's


def test_another_assignments_worksheet_is_noticed(take, submitted, tmp_path, answer):
    name = f"Ada Lovelace_11_assignsubmission_file_/{NAME}.ipynb"
    archive = zipped(tmp_path / "m.zip", {name: answer()})
    (tmp_path / "w.csv").write_text(WORKSHEET)
    line = take(archive, worksheet=tmp_path / "w.csv")[name]
    assert "the worksheet calls participant 11 José Müller" in line.why
    assert submitted("ada") is submitted("jm1") is None
    (tmp_path / "w.csv").write_text("a,b\n1,2\n")
    with pytest.raises(LabError, match="no column Identifier"):
        take(archive, worksheet=tmp_path / "w.csv")


TIMES = """Identifier,Full name,ID number,Grade,Last modified (submission),Last modified (grade)
Participant 11,Ada Lovelace,ada,,"Tuesday, 14 January 2025, 12:05 AM",-
Participant 12,Grace Hopper,grace,,"{}",-
Participant 13,Jose Muller,jm2,,-,-
"""
LMS_NAMES = {who: f"{name}_{number}_assignsubmission_file_/{NAME}.ipynb" for who, name, number in (
    ("ada", "Ada Lovelace", 11), ("grace", "Grace Hopper", 12), ("jm2", "Jose Muller", 13))}


def test_moodles_worksheet_says_when_each_student_submitted(take, course, tmp_path, answer):
    (tmp_path / "w.csv").write_text(TIMES.format("Thursday, July 10, 2025, 2:14\u202fPM"))
    archive = zipped(tmp_path / "m.zip", {name: answer(who) for who, name in LMS_NAMES.items()})
    lines = take(archive, worksheet=tmp_path / "w.csv", zone="Europe/Berlin")
    assert [lines[LMS_NAMES[who]].when for who in ("ada", "grace")] == [
        "2025-01-13T23:05:00+00:00", "2025-07-10T12:14:00+00:00"]
    assert "no time in --worksheet: the time of collecting" in lines[LMS_NAMES["jm2"]].why
    (tmp_path / "t.csv").write_text("student,received\ngrace,2025-07-10 13:00 UTC\n")
    lines = take(archive, worksheet=tmp_path / "w.csv", zone="Europe/Berlin", correct=True,
                 times=tmp_path / "t.csv")
    assert lines[LMS_NAMES["grace"]].when == "2025-07-10T13:00:00+00:00"
    folder = put(tmp_path / "in", {f"jm1/{NAME}.ipynb": answer(), f"ada/{NAME}.ipynb": answer("3")})
    line = take(folder, worksheet=tmp_path / "w.csv", zone="+01:00")[f"ada/{NAME}.ipynb"]
    assert line.when[:10] != "2025-01-13"  # not from Moodle, so it says nothing about that file


@pytest.mark.parametrize("cell, zone, says", [
    ("Dienstag, 14. Januar 2025, 14:14", "UTC", "as Moodle writes it in English"),
    ("14/01/26, 14:14", "UTC", "'14/01/26, 14:14' is not a time as Moodle"),
    ("1/2/2026 14:14", "UTC", "as Moodle writes it in English"),
    ("Tuesday, 14 January 2025, 14:14", "UTC", "as Moodle writes it in English"),
    ("Tuesday, 14 January 2025, 0:14 AM", "UTC", "as Moodle writes it in English"),
    ("Thursday, 14 January 2025, 2:14 PM", "UTC", "(that day was a Tuesday): download"),
    ("Monday, 31 February 2025, 2:14 PM", "UTC", "as Moodle writes it in English"),
    ("Sunday, 26 October 2025, 2:30 AM", "Europe/Berlin", "exist or occurs twice; write the "),
    ("Friday, 14 January 2124, 2:14 PM", "UTC", "is in the future: is --zone UTC the time zone"),
    ("Tuesday, 14 January 2025, 2:14 PM", "Berlin", "--zone: unknown time zone Berlin"),
    ("Tuesday, 14 January 2025, 2:14 PM", "", "--zone: unknown time zone ")])
def test_a_time_that_is_in_doubt_is_refused_with_its_cell(course, command, tmp_path, answer, cell,
                                                          zone, says):
    (tmp_path / "w.csv").write_text(TIMES.format(cell))
    archive = zipped(tmp_path / "m.zip", {LMS_NAMES["grace"]: answer()})
    done = command("collect", str(archive), "--worksheet", str(tmp_path / "w.csv"), "--zone", zone)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert zone in ("", "Berlin") or f"line 3: {cell!r}" in done.stderr
    assert receipts.read(course) == {} and "Traceback" not in done.stderr


@pytest.mark.parametrize("words, says", [
    (["--zone", "UTC"], "--zone UTC: it is the time zone of --worksheet FILE"),
    (["--zone", "UTC", "--worksheet", "w.csv"], "has no column Last modified (submission)"),
    (["--zone", "UTC", "--worksheet", "w.csv", "--every", "5"], "--times, or --zone says")])
def test_a_zone_needs_a_worksheet_with_times(command, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.csv").write_text(WORKSHEET)
    done = command("collect", str(tmp_path), *words)
    assert done.returncode == 1 and says in done.stderr


def test_whoever_passes_a_worksheet_is_told_of_its_times(command, tmp_path, answer):
    (tmp_path / "w.csv").write_text(TIMES.format("-"))
    words = ["collect", str(zipped(tmp_path / "m.zip", {LMS_NAMES["ada"]: answer()})),
             "--worksheet", str(tmp_path / "w.csv")]
    assert "note: these are the times of collecting; --zone" in command(*words).stderr
    assert "note" not in command(*words, "--zone", "UTC").stderr


def test_each_student_may_have_a_time(take, course, tmp_path, answer):
    (tmp_path / "t.csv").write_text("student,received\nada@uni.test,2026-01-30 12:00 +01:00\n")
    folder = put(tmp_path / "in", {f"{who}/{NAME}.ipynb": answer() for who in ("ada", "grace")})
    lines = take(folder, times=tmp_path / "t.csv")
    assert received(Submission(course, NAME, "ada")) == "2026-01-30T11:00:00+00:00"
    assert "no time in --times" in lines[f"grace/{NAME}.ipynb"].why
    assert received(Submission(course, NAME, "grace")) > "2026-02"


@pytest.mark.parametrize("text, says", [
    ("student,when\nada,x\n", "needs student and received"),
    ("student,received\n\neve,2026-01-30 12:00 UTC\n", "line 3: 'eve' is not on the roster"),
    ("student,received\nada,2026-01-30 12:00\n", "names no time zone"),
    ("student,received\nada,2026-01-30 12:00 UTC\n101,2026-01-31 12:00 UTC\n", "a second time")])
def test_a_file_of_times_with_a_mistake_collects_nothing(take, submitted, tmp_path, answer, text,
                                                         says):
    (tmp_path / "t.csv").write_text(text)
    folder = put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer()})
    with pytest.raises(LabError, match=says):
        take(folder, times=tmp_path / "t.csv")
    assert submitted("ada") is None
