"""`lab regrade`, `lab release`, formgrader's button, and nbgrader's own autograde."""

from __future__ import annotations

import os
import subprocess

import pytest

from grader.course import Course, Submission
from grader.gradebook import records
from grader.nbgrader_plugin.steps import ISOLATED_VARIABLE
from lab.cli import main
from tests.grader import small_lab
from tests.grader.conftest import run, submit, table
from tests.grader.small_lab import RIGHT, answered
from tests.warm import warm

NAME = small_lab.NAME


def ids(course: Course) -> dict[str, str]:
    return {student: Submission(course, NAME, student).record.attempt
            for student in course.students(NAME)}


@pytest.mark.slow
def test_what_is_graded_is_left_alone_and_regrade_does_it_anew(course, released):
    submit(course, "ada", answered(released))
    submit(course, "bob", released).write_text("{")
    assert run(course, "grade", NAME).returncode == 0
    first, rows = ids(course), table(course.root / "grades.csv")
    assert (rows["bob"]["state"], rows["bob"]["score"]) == ("ungraded", "")
    done = run(course, "regrade", NAME, "--ungraded")
    assert done.returncode == 0 and "1 submission in" in done.stdout, done.stderr
    second = ids(course)
    assert second["ada"] == first["ada"] and second["bob"] != first["bob"]
    done = run(course, "regrade", NAME, "ada", "--workers", "1")
    assert done.returncode == 0, done.stderr
    assert ids(course)["ada"] != first["ada"] and ids(course)["bob"] == second["bob"]
    assert table(course.root / "grades.csv")["ada"]["score"] == "5.0"


def pressed(course: Course) -> subprocess.CompletedProcess:
    """Formgrader's button for ada."""
    return warm("button", str(course.root), NAME, "ada", cwd=course.root, seconds=240,
                env={**os.environ, ISOLATED_VARIABLE: "1"})


@pytest.mark.slow
def test_formgraders_button_grades_in_the_sandbox(course, released, tmp_path):
    canary = tmp_path / "canary"
    os.chmod(tmp_path, 0o777)
    folder = submit(course, "ada", answered(released, f"open({str(canary)!r}, 'w')\n{RIGHT}")
                    ).parent
    done = pressed(course)
    assert '"success": true' in done.stdout, done.stdout + done.stderr
    assert not canary.exists()
    record = Submission(course, NAME, "ada").record
    assert record.state == "graded" and record.attempt and not record.notes
    assert course.notebook("autograded", NAME, "ada").exists()
    (folder / "more").symlink_to("/etc/passwd")  # a link leads nowhere
    done = pressed(course)
    assert '"success": false' in done.stdout and "link" in done.stdout
    assert not list((course.root / "autograded").rglob("more"))


@pytest.mark.slow
def test_nbgraders_own_autograde_says_that_it_is_not_isolated(course, released):
    submit(course, "ada", answered(released))
    done = run(course, "autograde", NAME, "--student", "ada", "--create", program="nbgrader")
    assert done.returncode == 0 and "without isolation" in done.stderr, done.stderr
    assert Submission(course, NAME, "ada").record.notes == [records.NOT_ISOLATED]
    done = run(course, "export", "--to", "mine.csv", program="nbgrader")
    row = table(course.root / "mine.csv")["ada"]
    assert (row["score"], row["notes"]) == ("5.0", records.NOT_ISOLATED)


@pytest.mark.slow
def test_release_makes_what_students_get(course):
    made = course.notebook("release", NAME)
    made.unlink()
    done = run(course, "release", NAME)
    assert done.returncode == 0 and str(made.parent) in done.stdout, done.stderr
    assert "HIDDEN" not in made.read_text() and "BEGIN SOLUTION" not in made.read_text()
    done = run(course, "release", NAME, "--due", "2026-12-01 18:00 +01:00")
    assert "up to date" in done.stdout and "due 2026-12-01 17:00 UTC" in done.stdout, done.stderr
    with records.gradebook(course) as book:
        assert str(book.find_assignment(NAME).duedate) == "2026-12-01 17:00:00"
    done = run(course, "release", NAME, "--due", "tomorrow")
    assert done.returncode == 1 and "--due 'tomorrow' is not a time" in done.stderr


def test_a_lab_that_was_not_built_again_is_not_released(course, monkeypatch, tmp_path):
    from grader.nbgrader_plugin import assign

    (tmp_path / "solutions").mkdir()
    (tmp_path / "solutions" / f"{NAME}.py").touch()
    monkeypatch.setattr(assign, "CHECKOUT", tmp_path)
    monkeypatch.setattr(assign, "build", lambda *_, **__: [f"notebooks/{NAME}.ipynb"])
    with pytest.raises(assign.LabError, match=f"`lab build {NAME}`, then"):
        assign.require_built(course, NAME)


@pytest.mark.parametrize("command", ["grade", "regrade", "release", "feedback"])
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        main([command, "--help"])
    said = capsys.readouterr().out
    assert "examples:" in said and "$LAB_COURSE" in said


@pytest.mark.slow
def test_without_a_sandbox_nothing_is_graded_and_nothing_is_touched(course, released):
    submit(course, "ada", answered(released))
    before = sorted(course.root.rglob("*"))
    done = run(course, "grade", NAME, program="leak")
    assert done.returncode == 1 and "the network got out" in done.stderr, done.stderr
    assert sorted(course.root.rglob("*")) == before
