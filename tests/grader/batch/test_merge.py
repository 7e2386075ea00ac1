"""Results into the gradebook: nbgrader's rules, whole or not at all, as often as one likes."""

from __future__ import annotations

import datetime
import json
import os
from dataclasses import replace

import nbformat
import pytest
import sqlalchemy
from nbgrader.api import MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import SaveAutoGrades

from grader.batch import batch, merge
from grader.course import Course, Submission
from grader.course.record import GradingRecord
from grader.gradebook import byhand, records
from grader.report import grades as report
from grader.run import lab_plan, results
from grader.run.attempt import Attempt
from tests.grader import small_lab
from tests.grader.conftest import submit, table
from tests.grader.small_lab import RIGHT, WRONG, answered

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
FULL = {"batch-check": 3.0, "script-check": 2.0}


class Desk:
    """A course, its gradebook, and results made by hand."""

    def __init__(self, course: Course, released: nbformat.NotebookNode,
                 plan: lab_plan.GradingPlan | None = None) -> None:
        self.course, self.released = course, released
        self.plan, self.config = plan or lab_plan.read(course, NAME), course.settings()

    def result(self, student: str = "ada", answer: str = RIGHT, **more) -> results.Result:
        submit(self.course, student, answered(self.released, answer))
        notebook = answered(self.plan.skeleton, answer)
        fields = {"state": "graded", "notebook": json.loads(json.dumps(notebook)), "scores": FULL}
        return results.write(self.course, "limits", Attempt(
            student, NAME, self.course.digest(NAME, student), self.plan.digest, **fields | more))

    def merge(self, result: results.Result) -> GradingRecord:
        with records.gradebook(self.course) as book:
            return merge.merge(self.course, self.config, book, result)

    def row(self, student: str = "ada") -> dict[str, str]:
        report.save(self.course)
        return table(self.course.root / "grades.csv")[student]

    def grades(self, student: str = "ada") -> dict[str, tuple]:
        with records.gradebook(self.course) as book:
            return {grade.name: (grade.auto_score, grade.manual_score, grade.needs_manual_grade)
                    for grade in book.find_submission(NAME, student).notebooks[0].grades}

    def by_hand(self, cell: str, score: float) -> None:
        """Enter it as formgrader does."""
        with records.gradebook(self.course) as book:
            grade = book.find_grade(cell, NAME, NAME, "ada")
            grade.manual_score, grade.needs_manual_grade = score, False
            book.db.commit()


@pytest.fixture
def desk(course, released) -> Desk:
    return Desk(course, released)


PART = {"state": "ungraded", "reason": "out of time at cell batch-check (60 s)",
        "scores": {"script-check": 2.0}, "unscored": ("batch-check",)}


def test_a_result_entered_again_is_one_transaction(desk):
    """Its time of receipt is never there without its scores; and each commit waits for the disk."""
    desk.merge(desk.result())
    commits = []
    with records.gradebook(desk.course) as book:
        sqlalchemy.event.listen(book.engine, "commit", commits.append)
        merge.merge(desk.course, desk.config, book, desk.result())
    assert len(commits) == 1


def test_the_same_result_twice_gives_the_same_rows(desk):
    result = desk.result()
    desk.merge(result)
    first, grades = desk.row(), desk.grades()
    desk.merge(result)
    again = desk.row()
    assert {**first, "graded_at": ""} == {**again, "graded_at": ""} and grades == desk.grades()
    assert (first["state"], first["score"], first["attempt"]) == ("graded", "5.0", "1")
    with records.gradebook(desk.course) as book:
        assert len(book.find_assignment(NAME).submissions) == 1


def test_a_check_without_a_score_leaves_ungraded_until_a_person_gives_one(desk):
    desk.merge(desk.result(**PART))
    row = desk.row()
    assert (row["state"], row["score"], row["reason"]) == ("ungraded", "", PART["reason"])
    assert desk.grades() == {"batch-check": (None, None, True), "script-check": (2.0, None, False)}
    assert desk.course.notebook("autograded", NAME, "ada").exists()  # for formgrader
    desk.by_hand("script-check", 1)
    assert desk.row()["state"] == "ungraded"
    desk.by_hand("batch-check", 2)
    row = desk.row()
    assert (row["state"], row["score"], row["reason"]) == ("graded", "3.0", "")
    submit(desk.course, "ada", answered(desk.released, WRONG))
    assert desk.row()["state"] == "ungraded"  # the person's score is not the new version's
    desk.merge(desk.result("ada", WRONG))
    assert desk.row()["score"] == "5.0"
    assert Submission(desk.course, NAME, "ada").record.set_aside == {
        "batch-check": [2.0, None], "script-check": [1.0, None]}


def test_what_cannot_be_graded_takes_the_older_score_and_page_away(desk):
    desk.merge(desk.result())
    page = desk.course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    page.parent.mkdir(parents=True)
    page.write_text("old")
    desk.merge(desk.result("ada", WRONG, state="ungraded", reason="broken", notebook=None,
                           scores={}))
    row = desk.row()
    assert (row["state"], row["score"], row["reason"], row["attempt"]) == (
        "ungraded", "", "broken", "2")
    assert not page.exists()
    with records.gradebook(desk.course) as book, pytest.raises(MissingEntry):
        book.find_submission(NAME, "ada")


def test_attempts_are_counted_by_what_was_submitted(desk):
    for answer, number in [(RIGHT, "1"), (WRONG, "2"), (WRONG, "2"), (RIGHT, "1"), ("", "3")]:
        desk.merge(desk.result("ada", answer))
        assert desk.row()["attempt"] == number
    history = Submission(desk.course, NAME, "ada").record.history
    assert [one["state"] for one in history] == ["graded"] * 3
    assert all(one["score"] == 5.0 and one["received"] and one["at"] for one in history)


@pytest.mark.parametrize("moment", ["_write_notebook", "now", "enroll", "penalize"])
def test_a_merge_that_is_cut_off_is_repeated_whole(desk, monkeypatch, moment):
    """A kill cannot be caught; an error at the same place leaves the same files and rows."""
    class Killed(BaseException):
        pass

    def cut(*_, **__):
        raise Killed

    desk.merge(desk.result("ada", WRONG, scores={"batch-check": 0.0, "script-check": 2.0}))
    desk.by_hand("batch-check", 3)
    result = desk.result("ada", RIGHT)
    with monkeypatch.context() as patch:
        patch.setattr(merge, moment, cut)
        with pytest.raises(Killed):
            desk.merge(result)
    assert desk.row()["state"] == "ungraded" and desk.row()["score"] == ""
    limits = desk_settings("limits")
    assert batch.pending_result(Submission(desk.course, NAME, "ada"), limits) == result
    desk.merge(result)
    assert (desk.row()["state"], desk.row()["score"], desk.row()["attempt"]) == (
        "graded", "5.0", "2")
    assert Submission(desk.course, NAME, "ada").record.set_aside == {"batch-check": [3.0, None]}
    assert batch.pending_result(Submission(desk.course, NAME, "ada"), limits) is None


def desk_settings(digest: str):
    class Settings:
        @staticmethod
        def digest() -> str:
            return digest

    return Settings


def test_a_result_of_other_limits_another_lab_or_another_notebook_is_not_used(desk):
    result = desk.result()
    course = desk.course
    assert batch.pending_result(Submission(course, NAME, "ada"), desk_settings("limits")) == result
    assert batch.pending_result(Submission(course, NAME, "ada"), desk_settings("others")) is None
    submit(course, "ada", answered(desk.released, WRONG))
    assert batch.pending_result(Submission(course, NAME, "ada"), desk_settings("limits")) is None
    submit(course, "ada", answered(desk.released, RIGHT))
    course.notebook("source", NAME).write_text("{}")
    assert batch.pending_result(Submission(course, NAME, "ada"), desk_settings("limits")) is None


@pytest.mark.parametrize("spoil", [
    lambda path: path.write_bytes(path.read_bytes()[:-9]),
    lambda path: path.write_bytes(b"[" * 100_000),
    lambda path: path.write_bytes(path.read_bytes().replace(b'"ada"', b'"bob"')),
    lambda path: path.write_bytes(b""), lambda path: (path.unlink(), path.mkdir()),
])
def test_a_damaged_result_is_none(desk, spoil):
    desk.result()
    spoil(results.path(Submission(desk.course, NAME, "ada")))
    assert results.read(Submission(desk.course, NAME, "ada")) is None


def test_results_are_the_owners_and_half_written_ones_are_removed(desk):
    desk.result()
    path = results.path(Submission(desk.course, NAME, "ada"))
    assert path.stat().st_mode & 0o777 == 0o600
    half = path.with_name(f".{path.name}.123")
    half.write_text("{")
    results.tidy(desk.course)
    assert not half.exists() and path.exists()


def test_scores_are_those_that_nbgraders_own_step_enters(desk):
    """For written answers and comments, and for checks by their outputs."""
    result = desk.result()
    desk.merge(result)
    with records.gradebook(desk.course) as book:
        ours = {comment.name: comment.auto_comment for comment in
                book.find_submission(NAME, "ada").notebooks[0].comments}
    grades = desk.grades()
    resources = {"nbgrader": {"notebook": NAME, "assignment": NAME, "student": "ada",
                              "db_url": records.database_url(desk.config, desk.course)}}
    SaveAutoGrades().preprocess(nbformat.from_dict(result.attempt.notebook), resources)
    with records.gradebook(desk.course) as book:
        theirs = {comment.name: comment.auto_comment for comment in
                  book.find_submission(NAME, "ada").notebooks[0].comments}
    assert grades == desk.grades() and ours == theirs


def test_a_late_one_is_penalised_by_the_courses_plugin(desk):
    desk.config.LateSubmissionPlugin.penalty_method = "zero"
    with records.gradebook(desk.course) as book:
        book.update_or_create_assignment(NAME, duedate="2020-01-01")
    result = desk.result()
    notebook = desk.course.notebook("submitted", NAME, "ada")
    in_time = datetime.datetime(2019, 12, 31, tzinfo=datetime.UTC).timestamp()
    os.utime(notebook, (in_time, in_time))
    stamp = notebook.with_name("timestamp.txt")
    stamp.write_text("2020-01-02 00:00:00 UTC")
    desk.merge(result)
    assert desk.row()["score"] == "0.0"
    with records.gradebook(desk.course) as book:
        submission = book.find_submission(NAME, "ada")
        assert (submission.score, submission.late_submission_penalty) == (5.0, 5.0)
    stamp.write_text("2019-12-31 00:00:00 UTC")
    desk.merge(result)
    assert desk.row()["score"] == "5.0"
    os.utime(notebook)  # a student's early stamp on a notebook that came now
    desk.merge(result)
    assert desk.row()["score"] == "0.0"


def test_formgrader_takes_it_for_graded_until_another_one_is_there(desk):
    def listed() -> set[str]:
        config = desk.course.settings()
        return NbGraderAPI(CourseDirectory(config=config), config=config).get_autograded_students(
            NAME)

    desk.merge(desk.result())
    assert listed() == {"ada"}  # without a timestamp.txt beside the notebook
    os.utime(desk.course.notebook("submitted", NAME, "ada"))
    assert listed() == set()


def test_a_score_above_the_points_is_none(desk):
    desk.merge(desk.result(scores={"batch-check": 300.0, "script-check": 2.0}))
    assert desk.row()["score"] == "5.0"


def test_what_a_person_entered_survives_a_kill_between_record_and_gradebook(desk, monkeypatch):
    desk.merge(desk.result())
    desk.by_hand("batch-check", 1.5)
    failed = desk.result("ada", RIGHT, state="ungraded", reason="died", notebook=None, scores={})
    with records.gradebook(desk.course) as book:
        monkeypatch.setattr(book, "remove_submission", lambda *_: os.abort)  # never happens
        merge.merge(desk.course, desk.config, book, failed)
    desk.merge(replace(failed, id="next"))
    desk.merge(desk.result())
    assert desk.grades()["batch-check"][1] == 1.5 and desk.row()["score"] == "3.5"
    assert not byhand.set_aside_notes(Submission(desk.course, NAME, "ada").record.set_aside)
