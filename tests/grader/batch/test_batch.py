"""`lab grade` over time: resubmissions, bad input, seeds."""

from __future__ import annotations

import stat

import pytest
from nbgrader.api import MissingEntry

from grader.course import Course, Submission
from grader.gradebook import records
from grader.run import results
from lab.cli import main
from labcore.errors import LabError
from tests.grader import small_lab
from tests.grader.batch.test_merge import Desk
from tests.grader.conftest import run, submit, table
from tests.grader.small_lab import RIGHT, WRONG, answered

NAME = small_lab.NAME


@pytest.fixture
def desk(course, released) -> Desk:
    return Desk(course, released)


@pytest.mark.slow
def test_a_crash_does_not_keep_last_weeks_score(course, grade, released):
    submit(course, "ada", answered(released))
    assert grade()["ada"]["score"] == "5.0"
    page = course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    assert page.exists()
    with records.gradebook(course) as book:  # what a person entered is kept for him
        book.find_grade("batch-check", NAME, NAME, "ada").manual_score = 1
        book.db.commit()
    course.notebook("submitted", NAME, "ada").write_text("{")
    row = grade()["ada"]
    assert (row["state"], row["score"]) == ("ungraded", "")
    assert "to decide" in row["notes"]
    assert not page.exists() and not course.notebook("autograded", NAME, "ada").exists()
    with records.gradebook(course) as book, pytest.raises(MissingEntry):
        book.find_submission(NAME, "ada")
    assert Submission(course, NAME, "ada").record.set_aside == {"batch-check": [1.0, None]}
    submit(course, "ada", answered(released, WRONG))
    assert grade()["ada"]["score"] == "2.0"


@pytest.mark.slow
def test_a_new_submission_takes_the_old_score_out_of_the_table_at_once(desk):
    desk.merge(desk.result("ada"))
    desk.merge(desk.result("bob"))
    submit(desk.course, "ada", answered(desk.released, WRONG))
    assert (desk.row()["score"], desk.row()["reason"]) == (
        "", "submitted again since it was graded")
    assert desk.row("bob")["score"] == "5.0"


@pytest.mark.slow
def test_code_that_ended_its_sandbox_twice_is_remembered_until_something_changes(course, released):
    submit(course, "ada", answered(released, RIGHT + "\nimport os; os._exit(3)"))
    said = [run(course, "grade", NAME).stdout for _ in range(3)]
    assert results.read(Submission(course, NAME, "ada")).tries == 2
    assert ["not tried again" in one for one in said] == [False, False, True]
    assert "exit code 3" in table(course.root / "grades.csv")["ada"]["reason"]


@pytest.mark.slow
def test_students_of_the_roster_who_submitted_nothing_are_in_the_table(desk):
    with records.gradebook(desk.course) as book:
        book.update_or_create_student("=1+1")
    desk.merge(desk.result())
    row = desk.row("'=1+1")  # no formula for a spreadsheet
    assert (row["state"], row["reason"], row["score"]) == ("ungraded", "nothing submitted", "")


@pytest.mark.slow
def test_an_edited_check_takes_effect(course, grade, released):
    submit(course, "ada", answered(released, WRONG))
    assert grade()["ada"]["score"] == "2.0"
    source = small_lab.source()
    small_lab.find(source, "batch-check").source = "check.that(True, '')"
    small_lab.put(source, course.notebook("source", NAME))
    assert grade()["ada"]["score"] == "5.0"


@pytest.mark.parametrize("words, message", [
    (["grade", "90_smal"], "nearest: 90_small"),
    (["grade"], "name a LAB, or --all"),
    (["grade", "--all", NAME], "name a LAB, or --all"),
    (["grade", "--all"], "submitted/STUDENT/LAB/LAB.ipynb"),
    (["grade", NAME], f"submitted/STUDENT/{NAME}/{NAME}.ipynb"),
    (["grade", NAME, "nobody"], "no student nobody"),
])
def test_bad_input_is_refused_in_words(course, words, message, monkeypatch, capsys):
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    assert main(words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_broken_source_is_refused_by_name(course, released):
    source = small_lab.source()
    source.cells.append(small_lab.pasted(small_lab.find(source, "batch")))  # two with one grade_id
    small_lab.put(source, course.notebook("source", NAME))
    submit(course, "ada", released)
    done = run(course, "grade", NAME)
    assert done.returncode == 1
    assert f"{NAME}.ipynb: nbgrader cannot generate the assignment" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_configuration_without_ours_is_refused(course, released):
    course.config_file.write_text("c = get_config()\n")
    submit(course, "ada", released)
    done = run(course, "grade", NAME)
    assert done.returncode == 1 and "from grader.config import configure" in done.stderr


def test_an_edited_source_is_not_overwritten(tmp_path):
    ours = tmp_path / "ours"
    small_lab.put(small_lab.source(), ours / NAME / f"{NAME}.ipynb")
    course = Course(tmp_path / "course", ours)
    course.make()
    assert course.copy_source(NAME) and not course.copy_source(NAME)
    small_lab.put(small_lab.source("a = 1"), ours / NAME / f"{NAME}.ipynb")
    assert course.copy_source(NAME)
    small_lab.put(small_lab.source("a = 2"), course.notebook("source", NAME))
    with pytest.raises(LabError, match="was edited"):
        course.copy_source(NAME)


def test_two_batches_at_once_are_refused(course):
    with (course.locked("lab grade"),
          pytest.raises(LabError, match=r"`lab grade` has been running.*run `lab regrade` again"),
          course.locked("lab regrade")):
        pass


def test_seeds_are_repeatable_and_every_submission_has_its_own(tmp_path, released):
    course = Course(tmp_path)
    course.make()
    assert stat.S_IMODE(course.secret_file.stat().st_mode) == 0o600
    submit(course, "ada", released)
    submit(course, "bob", released)
    ada = course.seed(NAME, "ada")
    course.make()  # keeps the secret
    assert course.seed(NAME, "ada") == ada != course.seed(NAME, "bob")
    submit(course, "ada", answered(released, RIGHT))
    assert course.seed(NAME, "ada") != ada
