"""Grade many submissions: workers grade them, and this process alone enters the results, one by
one.

If this process is killed, the next batch continues where it stopped: it enters an existing result
for the same submission without grading again, and leaves entered results alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nbgrader.api import Gradebook
from traitlets.config import Config
from traitlets.log import get_logger

from grader.batch.interrupts import deferred_interrupts
from grader.batch.merge import feedback_values, merge
from grader.batch.pool import FinishedTask, WorkerPool
from grader.batch.regrades import Regrade
from grader.course import Course, Submission, groups, reasons
from grader.course.log import log_file
from grader.course.record import GradingRecord
from grader.gradebook import notices, records
from grader.gradebook.decisions import set_aside
from grader.gradebook.faults import StorageFault, fault_of
from grader.gradebook.late import recalculate_penalty
from grader.gradebook.ungraded import leave_ungraded, remove_page
from grader.run import results
from grader.run.attempt import Attempt
from grader.run.results import Result
from grader.run.settings import Grading

GRACE_SECONDS = 60.0  # beyond a notebook's budget, before a worker counts as hung
SECONDS_PER_PAGE = 120.0
NO_PAGE = "no feedback"
NO_BACKEND = "-"  # for workers that make pages only
GRADER_FAILED = "the grader itself failed: "
GRADING_FAILED = "grading it failed: "  # with this submission, while others are graded


@dataclass(frozen=True)
class GradingOutcome:
    """The outcome of one submission in a batch."""

    student: str
    lab: str
    record: GradingRecord
    seconds: float
    again: bool  # whether it was graded or entered this time, or was current already


class Stopped(KeyboardInterrupt):
    """Raised on Ctrl-C; `outcomes` has the submissions that were complete by then."""

    def __init__(self, outcomes: list[GradingOutcome]) -> None:
        super().__init__()
        self.outcomes = outcomes


WorkList = list[tuple[str, str]]  # (lab, student)
ClusterGrader = Callable[["GradingRun", WorkList], WorkList]


class GradingRun:
    """One run of the grader. `done` is called with each outcome once its feedback page exists."""

    def __init__(self, course: Course, settings: Grading, config: Config, book: Gradebook,
                 pool: WorkerPool, done: Callable[[GradingOutcome], None],
                 backend: str = NO_BACKEND) -> None:
        self.course, self.settings, self.config, self.book = course, settings, config, book
        self.pool, self.done, self.backend = pool, done, backend
        self.outcomes: list[GradingOutcome] = []
        self.awaiting_page: dict[tuple[str, str], GradingOutcome] = {}

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Hold off `lab extend` and other commands that do not wait for a batch, and see what they
        have written."""
        with self.course.entering():
            self.book.db.rollback()  # forgets what was read
            yield

    def triage(self, work: WorkList, even_current: bool, regrade: Regrade | None = None
               ) -> WorkList:
        """Enter pending results, leave current ones alone, and return the submissions that need
        grading.

        Args:
            work: (lab, student) pairs.
            even_current: whether to grade current submissions again.
            regrade: the regrade to continue: submissions that it has graded are current.
        """
        rest = []
        for lab, student in work:
            submission = Submission(self.course, lab, student)
            is_regraded = even_current and (regrade is None or regrade.is_to_do(submission))
            if reason := set_aside(submission):
                self.end(GradingOutcome(student, lab, GradingRecord(
                    "ungraded", submission.digest, reason), 0.0, False))
                continue
            result = None if is_regraded else pending_result(submission, self.settings)
            is_current = not is_regraded and current(submission, self.book)
            # A node that was given up may say later that it ran out of time: no news by then.
            if result and (result.attempt.state == "graded" or not is_current):
                self.enter(result)
            elif is_current or (not is_regraded and self.is_final(submission)):
                self.keep(submission)
            else:
                rest.append((lab, student))
        return rest

    def is_final(self, submission: Submission) -> bool:
        """Return whether this version of the submission failed for its own reasons, and often
        enough."""
        result, record = results.read(submission), submission.record
        return (result is not None and record is not None and result.is_final
                and record.state == "ungraded" and record.attempt == result.id
                and result.settings == self.settings.digest()
                and is_of_current_versions(submission, result.attempt))

    @deferred_interrupts()
    def keep(self, submission: Submission, *, page_again: bool = False) -> None:
        """Leave a submission as it is, graded or finally ungraded.

        Its late penalty is recalculated, and its page is made if it is missing and did not fail
        before.

        Args:
            submission: the submission.
            page_again: whether to make its page in any case.
        """
        with self.writing():
            outcome = self._kept(submission, page_again)
        if submission.key not in self.awaiting_page:
            self.end(outcome)

    def _kept(self, submission: Submission, page_again: bool) -> GradingOutcome:
        record, is_other = submission.record, False
        if current(submission, self.book):
            record = replace(record, state="graded", reason="")  # by a person's scores, maybe
            with contextlib.suppress(reasons.Unusable):  # timestamp.txt: then as it was
                is_other = recalculate_penalty(submission, self.config, self.book)
        outcome = GradingOutcome(submission.student, submission.lab, record, 0.0, False)
        pages = [submission.page, *(Submission(self.course, submission.lab, one).page
                                    for one in groups.others_of(self.course, *submission.key))]
        needs_page = page_again or not (all(page.exists() for page in pages) or any(
            note.startswith(NO_PAGE) for note in record.notes))
        if submission.notebook("autograded").exists() and (needs_page or is_other):
            self.make_page(outcome)
        return outcome

    def grade(self, work: WorkList) -> None:
        """Grade submissions in the pool, and wait until all of them and their pages are done."""
        for lab, student in work:
            self.pool.add({"do": "grade", "lab": lab, "student": student},
                          self.settings.seconds_per_notebook + GRACE_SECONDS)
        while finished := self.pool.next():
            self.handle(finished)

    @deferred_interrupts()
    def handle(self, finished: FinishedTask) -> None:
        """Handle a finished task. Raises LabError when the worker's disk is full."""
        if finished.answer and (problem := finished.answer.get("no room")):
            raise StorageFault(problem)
        (self.handle_graded if finished.body["do"] == "grade" else self.handle_page)(finished)

    def handle_graded(self, finished: FinishedTask) -> None:
        """Enter the result that a worker wrote."""
        submission = self.submission_of(finished)
        result = results.read(submission)
        if finished.answer is None or result is None or result.id != finished.answer.get("id"):
            result = self.failed_result(submission, finished)
        self.enter(result)

    def failed_result(self, submission: Submission, finished: FinishedTask) -> Result:
        """Return an ungraded result: the submission broke a worker, or the grader is at fault.

        Args:
            submission: the submission.
            finished: the task that failed.
        """
        what = (f"a worker process {finished.fault}" if finished.answer is None
                else finished.answer.get("failed", "its result is damaged"))
        grader_fault = finished.answer is not None and finished.answer.get("ours", True)
        return results.write(self.course, self.settings.digest(), Attempt(
            submission.student, submission.lab, submission.digest,
            self.course.digest_of_lab(submission.lab), "ungraded",
            (GRADER_FAILED if grader_fault else GRADING_FAILED) + self.with_log_name(what),
            own_doing=not grader_fault))

    def with_log_name(self, what: str) -> str:
        return f"{what}; see {log_file(self.course).name}"

    @deferred_interrupts()
    def enter(self, result: Result) -> None:
        """Enter a result into the gradebook; then make its page if there is anything to show."""
        attempt, start = result.attempt, time.monotonic()
        with self.writing():
            record = self.merged(result)
            outcome = GradingOutcome(attempt.student, attempt.lab, record,
                                     attempt.seconds + time.monotonic() - start, True)
            if has_content := self.notebook_of(outcome).exists():
                self.make_page(outcome)
        if not has_content:
            self.end(outcome)

    def merged(self, result: Result) -> GradingRecord:
        """Enter a result and return its record: ungraded if it cannot be entered, or if all
        versions were withdrawn since."""
        attempt = result.attempt
        before = Submission(self.course, attempt.lab, attempt.student)
        was_withdrawn = is_withdrawn(before)
        try:
            record = merge(self.course, self.config, self.book, result)
        except Exception as error:
            if fault := fault_of(error, self.course.root):
                raise fault from error  # it says nothing about the submission, whose result waits
            get_logger().error("%r of %r cannot be entered", attempt.lab, attempt.student,
                               exc_info=True)
            reason = reasons.explain(error)
            if not isinstance(error, reasons.Unusable):
                blame = GRADER_FAILED if records.is_grader_fault(error) else GRADING_FAILED
                reason = blame + self.with_log_name(reason)
            attempt = replace(attempt, state="ungraded", notebook=None, scores={}, unscored=(),
                              reason=reason)
            record = merge(self.course, self.config, self.book, replace(result, attempt=attempt))
        if was_withdrawn:  # the history has the score now
            record = leave_ungraded(Submission(self.course, attempt.lab, attempt.student),
                                    before.record.reason, self.book)
        return record

    def notebook_of(self, outcome: GradingOutcome) -> Path:
        """Return the graded notebook, which exists if there is anything to show on a page."""
        return self.course.notebook("autograded", outcome.lab, outcome.student)

    def make_page(self, outcome: GradingOutcome) -> None:
        """Have a worker make the pages of a submission. Call it in `writing`."""
        submission = Submission(self.course, outcome.lab, outcome.student)
        self.awaiting_page[submission.key] = outcome
        values = feedback_values(submission, self.book)
        values["notices"] = notices.notices_of(submission, self.book)
        others = {one: notices.notices_of(submission, self.book, one)
                  for one in groups.others_of(self.course, outcome.lab, outcome.student)}
        self.pool.add({"do": "feedback", "lab": outcome.lab, "student": outcome.student,
                       "given": values, "others": others}, SECONDS_PER_PAGE, first=True)

    def handle_page(self, finished: FinishedTask) -> None:
        submission = self.submission_of(finished)
        outcome = self.awaiting_page.pop(submission.key)
        fault = finished.fault if finished.answer is None else finished.answer.get("failed", "")
        with self.writing():
            record = submission.record or outcome.record
            has_content = self.notebook_of(outcome).exists()
            notes = [note for note in record.notes if not note.startswith(NO_PAGE)]
            notes += [f"{NO_PAGE}: {self.with_log_name(fault)}"] * bool(fault and has_content)
            if notes != record.notes:
                submission.save(replace(record, notes=notes))
            # `lab attempt` or `lab groups` may have taken pages away while they were made.
            members = {outcome.student, *groups.others_of(self.course, *submission.key)}
            made = {outcome.student, *finished.body["others"]}
            for student in made - members if has_content else made:
                remove_page(Submission(self.course, outcome.lab, student))
        self.end(replace(outcome, record=replace(outcome.record, notes=notes)))

    def submission_of(self, finished: FinishedTask) -> Submission:
        """Return the current version of the submission that a task was about."""
        return Submission(self.course, finished.body["lab"], finished.body["student"])

    def end(self, outcome: GradingOutcome) -> None:
        self.outcomes.append(outcome)
        self.done(outcome)

    @deferred_interrupts()
    def stopped(self) -> None:
        """Clean up after Ctrl-C.

        A submission that was being graded loses the score of its older version. Entered results
        count, with or without a page.
        """
        with self.writing():  # a query may have been interrupted
            for lab, student in self.pool.under_way("grade"):
                submission = Submission(self.course, lab, student)
                if not (is_withdrawn(submission) or current(submission, self.book)):
                    leave_ungraded(submission, reasons.STOPPED, self.book)
        self.outcomes += self.awaiting_page.values()


def is_withdrawn(submission: Submission) -> bool:
    """Return whether `lab attempt` has left no version of the submission, and said why in its
    record."""
    return not submission.exists and submission.record is not None and not submission.record.digest


def current(submission: Submission, book: Gradebook) -> bool:
    """Return whether the gradebook has this version of the submission, graded with the current lab.

    Args:
        submission: the submission.
        book: the gradebook.
    """
    return (records.state(submission, book)[0] == "graded"
            and records.is_entered(submission, book))


def pending_result(submission: Submission, settings: Grading) -> Result | None:
    """Return a result that is not entered yet, for the current submission, lab, and limits; else
    None.

    Args:
        submission: the submission.
        settings: the current limits.
    """
    result = results.read(submission)
    if result is None or result.settings != settings.digest():
        return None
    record, attempt = submission.record, result.attempt
    is_new = record is None or record.attempt != result.id
    return result if is_new and is_of_current_versions(submission, attempt) else None


def is_of_current_versions(submission: Submission, attempt: Attempt) -> bool:
    """Return whether an attempt graded the current versions of the submission and the lab.

    Args:
        submission: the submission.
        attempt: the attempt.
    """
    return (attempt.digest == submission.digest
            and attempt.lab_digest == submission.course.digest_of_lab(submission.lab))
