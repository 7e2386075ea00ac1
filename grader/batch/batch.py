"""Many submissions: workers grade them, this process alone enters the results, one by one.

Killed at any moment, the next batch goes on where this one was: a result that is there and of this
very submission is entered without grading again, and what was entered is left alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from nbgrader.api import Gradebook
from traitlets.config import Config
from traitlets.log import get_logger

from grader.batch.interrupts import held_back
from grader.batch.merge import given, merge
from grader.batch.pool import Done, Pool
from grader.course import Course, Submission, reasons
from grader.course.log import log_file
from grader.course.record import Record
from grader.gradebook import notices, records
from grader.gradebook.decisions import set_aside
from grader.gradebook.faults import StorageFault, fault_of
from grader.gradebook.late import penalise_again
from grader.gradebook.ungraded import leave_ungraded
from grader.run import results
from grader.run.attempt import Attempt
from grader.run.results import Result
from grader.run.settings import Grading

SECONDS_OF_GRACE = 60.0  # beyond a notebook's budget, before a worker counts as hung
SECONDS_PER_PAGE = 120.0
NO_PAGE = "no feedback"
NO_BACKEND = "-"  # for workers that make pages only
OURS = "the grader itself failed: "
THEIRS = "grading it failed: "  # with this submission, while others are graded


@dataclass(frozen=True)
class Outcome:
    """One submission of a batch."""

    student: str
    lab: str
    record: Record
    seconds: float
    again: bool  # whether it was graded or entered this time, or was current already


class Stopped(KeyboardInterrupt):
    """Ctrl-C; `outcomes` are of what was done by then."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


Work = list[tuple[str, str]]  # (lab, student)
Elsewhere = Callable[["Batch", Work], Work]


class Batch:
    """One run. `done` is called with each Outcome, once its page is there."""

    def __init__(self, course: Course, settings: Grading, config: Config, book: Gradebook,
                 pool: Pool, done: Callable[[Outcome], None], backend: str = NO_BACKEND) -> None:
        self.course, self.settings, self.config, self.book = course, settings, config, book
        self.pool, self.done, self.backend = pool, done, backend
        self.outcomes: list[Outcome] = []
        self.without_page: dict[tuple[str, str], Outcome] = {}

    def sort_out(self, work: Work, anew: bool) -> Work:
        """Enter results that wait, leave alone what is current (unless `anew`); the rest."""
        rest = []
        for lab, student in work:
            submission = Submission(self.course, lab, student)
            if why := set_aside(submission):
                self.end(Outcome(student, lab, Record(
                    "ungraded", submission.digest, why), 0.0, False))
                continue
            result = None if anew else waiting(submission, self.settings)
            is_current = not anew and current(submission, self.book)
            # A node that was given up may say later that it ran out of time: no news by then.
            if result and (result.attempt.state == "graded" or not is_current):
                self.enter(result)
            elif is_current or (not anew and self.is_final(submission)):
                self.keep(submission)
            else:
                rest.append((lab, student))
        return rest

    def is_final(self, submission: Submission) -> bool:
        """Whether this very submission is ungraded by its own doing, tried often enough."""
        result, record = results.read(submission), submission.record
        return (result is not None and record is not None and result.is_final
                and record.state == "ungraded" and record.attempt == result.id
                and result.settings == self.settings.digest()
                and of_now(submission, result.attempt))

    @held_back()
    def keep(self, submission: Submission, *, page_again: bool = False) -> None:
        """Leave it as it is: graded, or ungraded for good. What it loses for being late is
        recalculated, and a page that is missing is made, unless that failed before."""
        record, is_other = submission.record, False
        if current(submission, self.book):
            record = replace(record, state="graded", reason="")  # by a person's scores, maybe
            with contextlib.suppress(reasons.Unusable):  # timestamp.txt: then as it was
                is_other = penalise_again(submission, self.config, self.book)
        outcome = Outcome(submission.student, submission.lab, record, 0.0, False)
        wanted = page_again or not (submission.page.exists() or any(
            note.startswith(NO_PAGE) for note in record.notes))
        has_content = submission.notebook("autograded").exists()
        if not has_content or not (wanted or is_other):
            self.end(outcome)
        else:
            self.make_page(outcome)

    def grade(self, work: Work) -> None:
        """Have it graded by the pool, and wait until all is done, pages too."""
        for lab, student in work:
            self.pool.add({"do": "grade", "lab": lab, "student": student},
                          self.settings.seconds_per_notebook + SECONDS_OF_GRACE)
        while ended := self.pool.next():
            self.take(ended)

    @held_back()
    def take(self, ended: Done) -> None:
        """Raises LabError when the worker's disk is full: that is no submission's fault."""
        if ended.answer and (problem := ended.answer.get("no room")):
            raise StorageFault(problem)
        (self.graded if ended.body["do"] == "grade" else self.paged)(ended)

    def graded(self, ended: Done) -> None:
        """A worker is through with a submission: enter what it left."""
        submission = self.submission_of(ended)
        result = results.read(submission)
        if ended.answer is None or result is None or result.id != ended.answer.get("id"):
            result = self.failed(submission, ended)
        self.enter(result)

    def failed(self, submission: Submission, ended: Done) -> Result:
        """A grading without a result: the submission broke a worker, or the grader is at fault."""
        what = (f"a worker process {ended.fault}" if ended.answer is None
                else ended.answer.get("failed", "its result is damaged"))
        ours = ended.answer is not None and ended.answer.get("ours", True)
        return results.write(self.course, self.settings.digest(), Attempt(
            submission.student, submission.lab, submission.digest,
            self.course.digest_of_lab(submission.lab), "ungraded",
            (OURS if ours else THEIRS) + self.see(what), own_doing=not ours))

    def see(self, what: str) -> str:
        return f"{what}; see {log_file(self.course).name}"

    @held_back()
    def enter(self, result: Result) -> None:
        """Into the gradebook; then its page, if there is anything to show."""
        attempt, start = result.attempt, time.monotonic()
        try:
            record = merge(self.course, self.config, self.book, result)
        except Exception as error:
            if fault := fault_of(error, self.course.root):
                raise fault from error  # it says nothing about the submission, whose result waits
            get_logger().error("%r of %r cannot be entered", attempt.lab, attempt.student,
                               exc_info=True)
            reason = reasons.explain(error)
            if not isinstance(error, reasons.Unusable):
                reason = (OURS if records.is_ours(error) else THEIRS) + self.see(reason)
            attempt = replace(attempt, state="ungraded", notebook=None, scores={}, unscored=(),
                              reason=reason)
            record = merge(self.course, self.config, self.book, replace(result, attempt=attempt))
        outcome = Outcome(attempt.student, attempt.lab, record,
                          attempt.seconds + time.monotonic() - start, True)
        if attempt.notebook is None:
            self.end(outcome)
        else:
            self.make_page(outcome)

    def make_page(self, outcome: Outcome) -> None:
        submission = Submission(self.course, outcome.lab, outcome.student)
        self.without_page[submission.key] = outcome
        shown = given(submission, self.book) | {"notices": notices.of(submission, self.book)}
        self.pool.add({"do": "feedback", "lab": outcome.lab, "student": outcome.student,
                       "given": shown}, SECONDS_PER_PAGE, first=True)

    def paged(self, ended: Done) -> None:
        submission = self.submission_of(ended)
        outcome = self.without_page.pop(submission.key)
        fault = ended.fault if ended.answer is None else ended.answer.get("failed", "")
        notes = [note for note in outcome.record.notes if not note.startswith(NO_PAGE)]
        notes += [f"{NO_PAGE}: {self.see(fault)}"] * bool(fault)
        if notes != outcome.record.notes:
            submission.save(replace(submission.record, notes=notes))
        self.end(replace(outcome, record=replace(outcome.record, notes=notes)))

    def submission_of(self, ended: Done) -> Submission:
        """The submission that a task was about, as it is now."""
        return Submission(self.course, ended.body["lab"], ended.body["student"])

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.done(outcome)

    @held_back()
    def stopped(self) -> None:
        """After Ctrl-C: who was being graded has no score of an older version; what was entered
        counts, with or without its page."""
        self.book.db.rollback()  # a query may have been interrupted
        for lab, student in self.pool.under_way("grade"):
            submission = Submission(self.course, lab, student)
            if not current(submission, self.book):
                leave_ungraded(submission, reasons.STOPPED, self.book)
        self.outcomes += self.without_page.values()


def current(submission: Submission, book: Gradebook) -> bool:
    """Whether the gradebook has this very submission, graded with the lab as it is now."""
    return (records.state(submission, book)[0] == "graded"
            and records.is_entered(submission, book))


def waiting(submission: Submission, settings: Grading) -> Result | None:
    """A result that nobody entered yet, of this submission, this lab and these limits."""
    result = results.read(submission)
    if result is None or result.settings != settings.digest():
        return None
    record, attempt = submission.record, result.attempt
    is_new = record is None or record.attempt != result.id
    return result if is_new and of_now(submission, attempt) else None


def of_now(submission: Submission, attempt: Attempt) -> bool:
    """Whether it graded this version of the submission, and the lab that is there now."""
    return (attempt.digest == submission.digest
            and attempt.lab_digest == submission.course.digest_of_lab(submission.lab))
