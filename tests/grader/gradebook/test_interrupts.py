"""Ctrl-C inside a database statement: a grade is entered completely, and the command reports."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest
from nbgrader.api import MissingEntry

from grader.batch.batch import GradingRun
from grader.batch.interrupts import deferred_interrupts
from grader.course import Submission, reasons
from grader.gradebook import records
from tests.grader import small_lab
from tests.grader.conftest import run, submit, table
from tests.grader.small_lab import answered

NAME = small_lab.NAME


@pytest.fixture(autouse=True)
def raising():
    """Let Ctrl-C raise KeyboardInterrupt, as in a program that was started from a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(book, monkeypatch) -> None:
    """From now on, send SIGINT to this process inside every database statement."""
    execute = book.engine.dialect.do_execute

    def interrupted(*arguments) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        execute(*arguments)

    monkeypatch.setattr(book.engine.dialect, "do_execute", interrupted)


def batch_of(office, book, *under_way: str) -> GradingRun:
    """Return a batch whose pool makes no pages.

    Args:
        office: the course.
        book: its gradebook.
        *under_way: the students whose submissions workers are grading.
    """
    pool = SimpleNamespace(add=lambda *_, **__: None,
                           under_way=lambda _: [(NAME, student) for student in under_way])
    limits = SimpleNamespace(digest=lambda: "limits")
    return GradingRun(office.course, limits, office.config, book, pool, lambda _: None)


@pytest.mark.slow
def test_a_grade_that_is_being_entered_is_entered_completely(office, monkeypatch):
    result = office.result("mary")
    with records.gradebook(office.course) as book:
        batch = batch_of(office, book)
        with monkeypatch.context() as patch:
            interrupt(book, patch)
            with pytest.raises(KeyboardInterrupt):
                batch.enter(result)
        batch.stopped()
        assert [(one.student, one.record.state) for one in batch.outcomes] == [("mary", "graded")]
        assert book.find_submission(NAME, "mary").score == 5
    assert Submission(office.course, NAME, "mary").record.attempt == result.id
    assert (office.row("mary")["state"], office.row("mary")["score"]) == ("graded", "5.0")


@pytest.mark.slow
def test_after_an_interrupted_query_the_rest_is_left_ungraded_and_nothing_else_is_raised(
        office, monkeypatch):
    office.result("mary")
    with pytest.raises(KeyboardInterrupt, match="the first"), \
            records.gradebook(office.course) as book:
        batch = batch_of(office, book, "mary")
        with monkeypatch.context() as patch:
            interrupt(book, patch)
            with pytest.raises(KeyboardInterrupt):
                book.find_submission(NAME, "ada")
        batch.stopped()
        with pytest.raises(MissingEntry):
            book.find_submission(NAME, "mary")
        book.db.commit()
        with monkeypatch.context() as patch:
            interrupt(book, patch)
            with pytest.raises(KeyboardInterrupt):
                book.find_submission(NAME, "ada")
        raise KeyboardInterrupt("the first")
    assert Submission(office.course, NAME, "mary").record.reason == reasons.STOPPED


@pytest.mark.slow
def test_lab_grade_reports_what_was_entered_and_exits_with_130(course, released):
    submit(course, "ada", answered(released))
    done = run(course, "grade", NAME, program="interrupted")
    assert done.returncode == 130 and not done.stderr, done.stderr
    assert "stopped: 0 of 1 were not graded" in done.stdout
    row = table(course.root / "grades.csv")["ada"]
    assert (row["state"], row["score"]) == ("graded", "5.0")


def test_a_block_that_fails_raises_its_own_error():
    with pytest.raises(ValueError), deferred_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
