"""A whole class in one batch: honest students, unlucky ones, and some that try things."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.course import Course, digest_of_folder
from tests.grader import class_room, small_lab
from tests.grader.class_room import GRADED, UNGRADED
from tests.grader.conftest import new_course, run, table

pytestmark = pytest.mark.slow


@dataclass
class Graded:
    course: Course
    rows: dict[str, dict[str, str]]
    before: str  # digest of submitted/
    output: str

    def feedback(self, student: str) -> str:
        return (self.course.root / "feedback" / student / small_lab.NAME
                / f"{small_lab.NAME}.html").read_text()


@pytest.fixture(scope="module")
def graded(tmp_path_factory, released) -> Graded:
    course = new_course(tmp_path_factory.mktemp("class"))
    class_room.fill(course, released)
    before = digest_of_folder(course.root / "submitted")
    done = run(course, "grade", "--all")
    assert done.returncode == 0, done.stderr
    return Graded(course, table(course.root / "grades.csv"), before, done.stdout)


@pytest.mark.parametrize("student", GRADED)
def test_every_submission_that_can_be_graded_gets_its_score(graded, student):
    row = graded.rows[student]
    assert (row["state"], row["reason"], float(row["score"]), float(row["max_score"])) == (
        "graded", "", GRADED[student][1], small_lab.MOST)


@pytest.mark.parametrize("student", UNGRADED)
def test_what_cannot_be_graded_is_ungraded_with_the_reason_and_no_score(graded, student):
    row = graded.rows[student]
    assert (row["state"], row["score"]) == ("ungraded", "")
    assert UNGRADED[student][1] in row["reason"]
    assert f"ungraded: {student}, {small_lab.NAME}: " in graded.output


def test_the_table_counts_everybody(graded):
    assert set(graded.rows) == {*GRADED, *UNGRADED}
    line = next(line for line in graded.output.splitlines() if small_lab.NAME in line)
    assert [int(word) for word in line.split() if word.isdigit()][:2] == [len(GRADED),
                                                                         len(UNGRADED)]


def test_no_submitted_file_is_changed(graded):
    assert digest_of_folder(graded.course.root / "submitted") == graded.before


def test_duplicates_are_reported(graded):
    assert graded.rows["copied"]["notes"] == "batch-check occurs 2 times"
    assert "batch occurs 2 times" in graded.rows["draft"]["notes"]


def test_feedback_shows_the_score_and_no_hidden_test(graded):
    text = graded.feedback("constant")
    assert "Score: 2.0 / 5.0" in text
    for secret in ("HIDDEN", "check.draw", "range(1"):
        assert secret not in text
    stored = graded.course.notebook("autograded", small_lab.NAME, "constant").read_text()
    assert "check.draw" in stored  # it was there to be hidden


def test_no_script_of_a_student_is_in_the_feedback(graded):
    text = graded.feedback("mischief")
    page = text[text.index('id="notebook"'):]
    assert "<b>bold</b>" in page
    assert "<script" not in page and "onerror=" not in page.replace("onerror=alert(2)&gt;", "")
    stored = graded.course.notebook("autograded", small_lab.NAME, "mischief").read_text()
    assert "onerror" in stored  # it was there to be cleaned


def test_explore_cells_do_not_run(graded):
    notebook = json.loads(
        graded.course.notebook("autograded", small_lab.NAME, "ada").read_text())
    explore = next(cell for cell in notebook["cells"]
                   if cell["metadata"].get("tags") == ["explore"])
    assert explore["outputs"] == []
    assert not list(Path(graded.course.root).rglob("explored"))


def test_typed_by_hand_nbgrader_grades_and_exports_the_same(graded):
    done = run(graded.course, "autograde", small_lab.NAME, "--force", "--student", "copied",
               program="nbgrader")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("without isolation") == 1
    done = run(graded.course, "export", "--to", "mine.csv", program="nbgrader")
    assert done.returncode == 0, done.stderr
    mine = table(graded.course.root / "mine.csv")
    assert {name: row["score"] for name, row in mine.items()} == {
        name: row["score"] for name, row in graded.rows.items()}
