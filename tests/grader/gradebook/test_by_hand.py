"""Scores entered by hand, and their later effects: the attempt that counts, the penalty."""

from __future__ import annotations

import datetime
import io
import os
from dataclasses import replace
from types import SimpleNamespace

import nbformat
import pytest
from rich.console import Console

from grader.batch import batch, grading
from grader.course import Course, Submission
from grader.course.received import receipt_time
from grader.course.times import parse_time
from grader.gradebook import byhand, records
from grader.gradebook.late import recalculate_penalty, set_due
from grader.nbgrader_plugin import assign, steps
from grader.report import grades as report
from grader.report.show import show
from grader.run import lab_plan
from tests.grader import small_lab
from tests.grader.batch.test_merge import PART, Desk
from tests.grader.conftest import extend, submit
from tests.grader.small_lab import RIGHT, WRONG, answered

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
BROKEN = {"state": "ungraded", "reason": "died", "notebook": None, "scores": {}}
DAY = datetime.timedelta(days=1)


@pytest.fixture
def desk(course, released) -> Desk:
    return Desk(course, released)


@pytest.fixture
def best(desk) -> Desk:
    with desk.course.config_file.open("a") as file:
        file.write("c.Attempts.counts = 'best'\n")
    return desk


LOW = {"scores": {"batch-check": 0.0, "script-check": 0.0}}


@pytest.mark.parametrize("first", [LOW, PART])
@pytest.mark.parametrize("second", [LOW, BROKEN])
def test_a_persons_score_of_an_earlier_attempt_counts_for_the_best(best, first, second):
    best.merge(best.result("ada", RIGHT, **first))
    best.by_hand("batch-check", 2.5)
    score = best.row()["score"]
    assert float(score) >= 2.5
    best.merge(best.result("ada", WRONG, **second))
    assert best.row()["score"] == score
    best.merge(best.result("ada", "a = 1", **LOW))
    assert best.row()["score"] == score


def test_it_counts_though_the_grader_was_killed_when_it_had_been_set_aside(best, monkeypatch):
    best.merge(best.result("ada", RIGHT, **LOW))
    best.by_hand("batch-check", 2.5)
    result = best.result("ada", WRONG, **LOW)
    with records.gradebook(best.course) as book:
        older = Submission(best.course, NAME, "ada", result.attempt.digest)
        byhand.set_aside_older(older, book)  # and killed
    best.merge(result)
    assert best.row()["score"] == "2.5"


def extension(desk: Desk) -> datetime.timedelta | None:
    with records.gradebook(desk.course) as book:
        return book.find_submission(NAME, "ada").extension


def test_an_extension_that_was_given_back_does_not_undo_a_later_one(desk):
    desk.merge(desk.result("ada", RIGHT))
    desk.by_hand("batch-check", 1)
    extend(desk.course, NAME, "ada", DAY)
    desk.merge(desk.result("ada", RIGHT, **BROKEN))
    desk.merge(desk.result("ada", WRONG))
    assert extension(desk) == DAY
    extend(desk.course, NAME, "ada", 3 * DAY)
    desk.merge(desk.result("ada", WRONG))
    assert extension(desk) == 3 * DAY


def test_nbgraders_own_autograde_gives_the_extension_back(desk, monkeypatch):
    desk.merge(desk.result("ada", RIGHT))
    extend(desk.course, NAME, "ada", DAY)
    desk.merge(desk.result("ada", RIGHT, **BROKEN))
    monkeypatch.setattr(steps, "submission_of", lambda *_: Submission(desk.course, NAME, "ada"))
    steps.Rebuild().preprocess(None, {})
    assert extension(desk) == DAY


def made(desk: Desk, work) -> batch.GradingRun:
    """A batch over `work` that grades nothing and notes which pages it asks for."""
    asked = []
    pool = SimpleNamespace(add=lambda body, *_, **__: asked.append(body["do"]), asked=asked)
    with records.gradebook(desk.course) as book:
        seen = batch.GradingRun(desk.course, SimpleNamespace(digest=lambda: "limits"), desk.config,
                            book, pool, lambda outcome: None)
        seen.rest = seen.triage(work, even_current=False)
    return seen


ADA = [(NAME, "ada")]


def test_the_penalty_follows_the_score_that_a_person_gave_and_the_due_date(desk):
    desk.config.LatePenalty.percent = 10
    set_due(desk.course, NAME, parse_time("2020-01-01 12:00 UTC", "--due"))
    result = desk.result()
    path = desk.course.notebook("submitted", NAME, "ada")
    when = parse_time("2020-01-01 13:00 UTC", "").timestamp()
    os.utime(path, (when, when))
    desk.merge(result)
    assert desk.row()["score"] == "4.5"
    page = Submission(desk.course, NAME, "ada").page
    page.parent.mkdir(parents=True)
    page.touch()
    assert not made(desk, ADA).pool.asked  # nothing changed
    desk.by_hand("batch-check", 1)
    assert made(desk, ADA).pool.asked == ["feedback"] and desk.row()["score"] == "2.7"
    set_due(desk.course, NAME, parse_time("2020-01-01 14:00 UTC", "--due"))
    with records.gradebook(desk.course) as book:
        assert recalculate_penalty(Submission(desk.course, NAME, "ada"), desk.config, book)
    assert desk.row()["score"] == "3.0"


def test_a_notebook_without_a_timestamp_came_in_when_it_came_to_this_disk(desk):
    """Otherwise who leaves timestamp.txt out would never be late."""
    path = submit(desk.course, "ada", answered(desk.released))
    os.utime(path, (1e9, 1e9))
    assert receipt_time(Submission(desk.course, NAME, "ada")).timestamp() == 1e9


def test_what_a_person_scored_is_not_called_ungraded(desk):
    desk.merge(desk.result(**PART))
    desk.by_hand("batch-check", 1)
    Submission(desk.course, NAME, "ada").page.parent.mkdir(parents=True)
    Submission(desk.course, NAME, "ada").page.touch()
    outcome = made(desk, ADA).outcomes[0]
    assert (outcome.record.state, outcome.record.reason) == ("graded", "")
    assert Submission(desk.course, NAME, "ada").record.state == "ungraded"  # by the grader


def test_a_lost_nodes_late_word_takes_no_score_away(desk):
    desk.merge(desk.result())
    desk.result(**PART)  # of the same notebook, found in results/ by the next batch
    assert not made(desk, ADA).rest and desk.row()["score"] == "5.0"


def test_who_was_removed_from_the_gradebook_is_graded_again(desk):
    desk.merge(desk.result())
    with records.gradebook(desk.course) as book:
        book.remove_student("ada")
    assert desk.row()["reason"] == "not in the gradebook"
    assert made(desk, ADA).rest == ADA
    assert grading.remake_pages(desk.course, ADA, lambda outcome: None) == []


def test_a_note_on_a_missing_page_goes_when_there_is_one(desk):
    record = desk.merge(desk.result())
    Submission(desk.course, NAME, "ada").save(replace(record, notes=["no feedback: why", "other"]))
    actual = made(desk, ADA)
    actual.keep(Submission(desk.course, NAME, "ada"), page_again=True)  # as `lab feedback` does
    ended = SimpleNamespace(body={"lab": NAME, "student": "ada", "others": {}},
                            answer={}, fault="")
    actual.handle_page(ended)
    assert Submission(desk.course, NAME, "ada").record.notes == ["other"]


def add_a_check(course: Course) -> None:
    path = course.notebook("source", NAME)
    source = nbformat.read(path, as_version=4)
    source.cells.append(small_lab.cell("check.that(True, '')", **small_lab.marks(
        "new-check", grade=True, points=7)))
    small_lab.put(source, path)


def test_a_lab_gets_a_new_check_though_some_were_graded(desk):
    """nbgrader refuses it while there are submissions; what a person entered comes back."""
    desk.merge(desk.result())
    desk.by_hand("batch-check", 1)
    extend(desk.course, NAME, "ada", DAY)
    add_a_check(desk.course)
    assert assign.release(desk.course, NAME)
    row = desk.row()
    assert (row["score"], row["reason"]) == ("", "the lab was changed since it was graded")
    assert made(desk, ADA).rest == ADA
    desk.plan = lab_plan.read(desk.course, NAME)
    desk.merge(desk.result(scores={"batch-check": 3.0, "script-check": 2.0, "new-check": 7.0}))
    assert (desk.row()["score"], desk.row()["max_score"]) == ("10.0", "12.0")
    assert extension(desk) == DAY


def test_the_table_says_how_many_scores_a_person_has_yet_to_complete(desk):
    record = desk.merge(desk.result())
    with records.gradebook(desk.course) as book:
        book.find_grade("batch-check", NAME, NAME, "ada").needs_manual_grade = True
        book.db.commit()
    console = Console(record=True, width=120, file=io.StringIO())
    show(console, [batch.GradingOutcome("ada", NAME, record, 0.0, True)],
         report.save(desk.course), 1.0)
    assert "to grade by hand: 1 graded submission with" in console.export_text()


def test_the_table_does_not_call_an_excused_student_ungraded(desk):
    record = desk.merge(desk.result(**BROKEN))
    assert record.state == "ungraded"
    rows = report.save(desk.course)
    for state in ("ungraded", "excused"):
        console = Console(record=True, width=120, file=io.StringIO())
        show(console, [batch.GradingOutcome("ada", NAME, record, 0.0, True)],
             [replace(row, state=state) for row in rows], 1.0)
        assert ("ungraded: ada" in console.export_text()) == (state == "ungraded")
