"""`lab review`, and scores by hand for answers that are the same in another version."""

from __future__ import annotations

import datetime
from dataclasses import replace

import nbformat
import pytest

from grader.course import Submission
from grader.gradebook import byhand, records
from grader.gradebook.late import set_due
from grader.nbgrader_plugin.exporter import Sanitized
from lab.cli import main
from tests.grader.conftest import run, submit
from tests.grader.small_lab import NAME, find
from tests.grader.written.test_written import (  # noqa: F401
    ANSWER,
    STUB,
    enter,
    row,
    template_written,
    written,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def course(written, monkeypatch):  # noqa: F811
    """Ada's answer got 1.5 points and a comment by hand; her batch size got 1 point instead of 3.

    Pages are another test's."""
    course, _ = written
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("grader.batch.grading.remake_pages", lambda course, work, done: work)
    enter(course, "ada", ANSWER)
    with records.gradebook(course) as book:
        for cell, score in (("why", 1.5), ("batch-check", 1.0)):
            grade = book.find_grade(cell, NAME, NAME, "ada")
            grade.manual_score, grade.needs_manual_grade = score, False
        book.find_comment("why", NAME, NAME, "ada").manual_comment = "*Nearly*"
        book.db.commit()
    return course


def by_hand(course, student: str = "ada") -> dict[str, tuple]:
    with records.gradebook(course) as book:
        return {grade.name: (grade.manual_score, grade.needs_manual_grade) for grade
                in book.find_submission(NAME, student).notebooks[0].grades}


def again(course, text: str, batch: str | None = None) -> None:
    """Ada submits another version, with that written answer."""
    enter(course, "ada", text, batch)


def test_the_same_answer_keeps_its_score_and_comment(course):
    again(course, ANSWER, "a = 1")
    assert by_hand(course) == {"why": (1.5, False), "batch-check": (None, False),
                               "script-check": (None, False)}
    with records.gradebook(course) as book:
        assert book.find_comment("why", NAME, NAME, "ada").manual_comment == "*Nearly*"
    assert "manual scores kept for unchanged answers: why" in row(course, "ada").notes
    assert Submission(course, NAME, "ada").record.set_aside == {"batch-check": [1.0, None]}
    assert "to decide: scores or comments for an earlier version of batch-check" in row(
        course, "ada").reason


def test_the_late_penalty_is_of_the_score_with_what_was_kept(course):
    with course.config_file.open("a") as file:
        file.write("c.LatePenalty.percent = 10\n")
    set_due(course, NAME, datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2))
    again(course, ANSWER, "a = 1")
    assert (row(course, "ada").raw_score, row(course, "ada").late_penalty) == (6.5, 0.65)
    assert Submission(course, NAME, "ada").record.history[-1]["score"] == pytest.approx(5.85)


def test_so_it_is_after_nbgraders_own_autograde(course):
    with course.config_file.open("a") as file:
        file.write("c.LatePenalty.percent = 10\n")
    set_due(course, NAME, datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2))
    again(course, "Another answer.")
    answered = nbformat.read(course.notebook("release", NAME), as_version=4)
    find(answered, "why").source = ANSWER  # the first version again
    submit(course, "ada", answered)
    done = run(course, "autograde", NAME, "--student", "ada", "--force", program="nbgrader")
    assert done.returncode == 0, done.stderr
    assert (row(course, "ada").raw_score, row(course, "ada").late_penalty) == (2.5, 0.25)
    record = Submission(course, NAME, "ada").record
    assert {one["digest"]: one["score"] for one in record.history}[record.digest] == 2.25


def test_another_answer_waits_for_a_decision_that_everybody_sees(course, capsys):
    again(course, "Another answer.")
    assert by_hand(course)["why"] == (None, True) and by_hand(course)["batch-check"] == (1.0, False)
    assert "earlier version of why" in row(course, "ada").reason
    assert main(["review", NAME]) == 0
    assert "earlier version" in (out := capsys.readouterr().out) and "1.5" in out
    path = course.notebook("autograded", NAME, "ada")
    page = Sanitized(config=course.settings()).from_filename(str(path), resources={
        "submission_id": "x", "assignment_id": NAME, "metadata": {"path": str(path.parent)}})[0]
    assert "To decide: an earlier version" in page and "1.5 points" in page
    assert main(["review", NAME, "ada", "--accept"]) == 0
    assert by_hand(course)["why"] == (1.5, False)
    assert not Submission(course, NAME, "ada").record.set_aside
    assert (row(course, "ada").score, row(course, "ada").reason) == (4.5, "")
    assert main(["review", NAME]) == 0 and "0 to decide" in capsys.readouterr().out


def test_an_earlier_version_that_comes_back_has_its_scores(course):
    again(course, "Another answer.")
    with records.gradebook(course) as book:
        book.find_grade("why", NAME, NAME, "ada").manual_score = 0.5
        book.db.commit()
    again(course, "A third one.")
    again(course, ANSWER)
    assert by_hand(course)["why"][0] == 1.5 and by_hand(course)["batch-check"][0] == 1.0
    again(course, "Another answer.")
    assert by_hand(course)["why"][0] == 0.5


def test_what_is_discarded_waits_no_more_and_a_newer_score_stands(course, capsys):
    again(course, "Another answer.")
    with records.gradebook(course) as book:
        grade = book.find_grade("why", NAME, NAME, "ada")
        grade.manual_score, grade.needs_manual_grade = 0.5, False
        book.db.commit()
    assert main(["review", NAME, "--accept", "--cell", "why"]) == 0
    assert "left: ada, why: scored again since" in capsys.readouterr().out
    assert by_hand(course)["why"] == (0.5, False)
    assert main(["review", NAME, "--discard"]) == 0
    assert by_hand(course)["why"] == (0.5, False) and not Submission(
        course, NAME, "ada").record.set_aside


def comments(course) -> list[str | None]:
    with records.gradebook(course) as book:
        return [one.manual_comment
                for one in book.find_submission(NAME, "ada").notebooks[0].comments]


def test_what_was_discarded_does_not_return_with_its_version(course):
    again(course, "Another answer.")
    assert main(["review", NAME, "--discard", "--cell", "why"]) == 0
    again(course, ANSWER)
    assert by_hand(course)["why"] == (None, True) and not any(comments(course))
    assert by_hand(course)["batch-check"] == (1.0, False)  # nobody has discarded that one


def test_what_was_cleared_in_formgrader_does_not_return_with_its_version(course):
    again(course, "Another answer.")
    again(course, ANSWER)
    assert by_hand(course)["why"] == (1.5, False) and any(comments(course))
    with records.gradebook(course) as book:
        grade = book.find_grade("why", NAME, NAME, "ada")
        grade.manual_score, grade.needs_manual_grade = None, True
        book.find_comment("why", NAME, NAME, "ada").manual_comment = None
        book.db.commit()
    again(course, "Another answer.")
    again(course, ANSWER)
    assert by_hand(course)["why"] == (None, True) and not any(comments(course))
    assert by_hand(course)["batch-check"] == (1.0, False)


def test_what_is_on_hold_when_the_grader_is_killed_was_not_cleared(course):
    """Then the gradebook has lost it, and only the record has it."""
    submission = Submission(course, NAME, "ada", "another version")
    for _ in range(2):  # killed after the first, each time
        byhand.set_aside_older(Submission(course, NAME, "ada", submission.digest))
    again(course, "Another answer.")
    again(course, ANSWER)
    assert by_hand(course)["why"] == (1.5, False) and by_hand(course)["batch-check"][0] == 1.0


def test_scores_that_were_graded_again_are_accepted_at_once(course, capsys):
    enter(course, "ada", ANSWER)  # a regrade: nbgrader wants each one looked at
    assert by_hand(course)["why"] == (1.5, True)
    assert row(course, "ada").reason == "needs review in formgrader"
    assert main(["review", NAME, "--accept"]) == 0 and "2 of 2" in capsys.readouterr().out
    assert by_hand(course)["why"] == (1.5, False) and row(course, "ada").reason == ""


def test_a_score_above_the_new_points_is_left_to_a_person(course, capsys):
    again(course, "Another answer.")
    with records.gradebook(course) as book:
        book.find_grade("why", NAME, NAME, "ada").cell.max_score = 1.0
        book.db.commit()
    assert main(["review", NAME, "--accept", "--cell", "why"]) == 0
    assert "more than the 1 points there are now" in capsys.readouterr().out
    assert by_hand(course)["why"] == (None, True)


def test_changed_points_are_a_decision_even_for_the_same_answer(course):
    again(course, "Another answer.")
    with records.gradebook(course) as book:
        book.find_grade("why", NAME, NAME, "ada").cell.max_score = 4.0
        book.db.commit()
    again(course, ANSWER, "a = 1")
    assert by_hand(course)["why"] == (None, True)


def test_blank_written_answers_get_0_on_request_only(course, capsys):
    for student, text in (("grace", "\n"), ("jane", STUB + " "), ("mary", "An answer.")):
        enter(course, student, text)
    assert {by_hand(course, one)["why"] for one in ("grace", "mary")} == {(None, True)}
    assert main(["review", NAME, "--blank-zero"]) == 0
    assert by_hand(course, "grace")["why"] == (0.0, False)
    assert by_hand(course, "mary")["why"] == (None, True)
    assert row(course, "grace").reason == "" and "incomplete" in row(course, "mary").reason


@pytest.mark.parametrize("step", ["save", "commit"])
def test_it_may_be_killed_between_the_gradebook_and_the_records(course, monkeypatch, step):
    again(course, "Another answer.")

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if step == "save":
            patched.setattr(byhand, "without", killed)
        else:
            patched.setattr("grader.gradebook.byhand.set_values", killed)
        assert main(["review", NAME, "--accept"]) == 130
    assert main(["review", NAME, "--accept"]) == 0
    assert by_hand(course)["why"] == (1.5, False)
    assert not Submission(course, NAME, "ada").record.set_aside


def test_a_name_that_is_not_there_is_named(course, capsys):
    assert main(["review", NAME, "aad"]) == 1 and "nearest: ada" in capsys.readouterr().err
    again(course, "Another answer.")
    assert main(["review", NAME, "--cell", "whi", "--accept"]) == 1
    assert "what waits: " in capsys.readouterr().err


def test_pages_of_students_do_not_show_what_is_to_be_decided(course):
    again(course, "Another answer.")
    assert "To decide" not in Submission(course, NAME, "ada").page.read_text()


def test_accepting_drops_no_score_of_a_cell_that_the_lab_has_no_longer(course, capsys):
    submission, held = Submission(course, NAME, "ada"), {"removed": [2.0, None],
                                                         "comment on removed": "Well said"}
    submission.save(replace(submission.record, set_aside=held))
    assert main(["review", NAME, "--accept"]) == 0
    out = capsys.readouterr().out
    assert "left: ada, removed: the lab has no such cell now" in out and "0 of 2 settled" in out
    assert Submission(course, NAME, "ada").record.set_aside == held
    assert main(["review", NAME, "--discard"]) == 0
    assert not Submission(course, NAME, "ada").record.set_aside
