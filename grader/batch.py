"""Many submissions: workers grade them, this process alone enters the results, one by one.

Killed at any moment, the next batch goes on where this one was: a result that is there and of this
very submission is entered without grading again, and what was entered is left alone.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from nbgrader.api import Gradebook
from traitlets.config import Config
from traitlets.log import get_logger

from grader import assign, lab_plan, records, results
from grader.attempt import Attempt
from grader.course import Course
from grader.gradebook import notices
from grader.gradebook.decisions import set_aside
from grader.gradebook.faults import StorageFault, explained, fault_of
from grader.gradebook.guard import protected
from grader.late import penalise_again
from grader.log import log_file, logging_to
from grader.merge import given, merge
from grader.pages import page
from grader.pool import Done, Pool
from grader.records import Record
from grader.results import Result
from grader.settings import Grading, settings_of
from grader.ungraded import leave_ungraded

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
            if why := set_aside(self.course, lab, student):
                self.end(Outcome(student, lab, Record(
                    "ungraded", self.course.digest(lab, student), why), 0.0, False))
                continue
            result = None if anew else waiting(self.course, self.settings, lab, student)
            is_current = not anew and current(self.course, lab, student, self.book)
            # A node that was given up may say later that it ran out of time: no news by then.
            if result and (result.attempt.state == "graded" or not is_current):
                self.enter(result)
            elif is_current or (not anew and self.is_final(lab, student)):
                self.keep(lab, student)
            else:
                rest.append((lab, student))
        return rest

    def is_final(self, lab: str, student: str) -> bool:
        """Whether this very submission is ungraded by its own doing, tried often enough."""
        result, record = results.read(self.course, lab, student), records.last(
            self.course, lab, student)
        return (result is not None and record is not None and result.is_final
                and record.state == "ungraded" and record.attempt == result.id
                and result.settings == self.settings.digest()
                and of_now(self.course, result.attempt))

    def keep(self, lab: str, student: str, *, page_again: bool = False) -> None:
        """Leave it as it is: graded, or ungraded for good. What it loses for being late is
        recalculated, and a page that is missing is made, unless that failed before."""
        record, is_other = records.last(self.course, lab, student), False
        if current(self.course, lab, student, self.book):
            record = replace(record, state="graded", reason="")  # by a person's scores, maybe
            with contextlib.suppress(records.Unusable):  # timestamp.txt: then as it was
                is_other = penalise_again(self.course, self.config, self.book, lab, student)
        outcome = Outcome(student, lab, record, 0.0, False)
        wanted = page_again or not (page(self.course, lab, student).exists() or any(
            note.startswith(NO_PAGE) for note in record.notes))
        has_content = self.course.notebook("autograded", lab, student).exists()
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

    def take(self, ended: Done) -> None:
        """Raises LabError when the worker's disk is full: that is no submission's fault."""
        if ended.answer and (problem := ended.answer.get("no room")):
            raise StorageFault(problem)
        (self.graded if ended.body["do"] == "grade" else self.paged)(ended)

    def graded(self, ended: Done) -> None:
        """A worker is through with a submission: enter what it left."""
        lab, student = ended.body["lab"], ended.body["student"]
        result = results.read(self.course, lab, student)
        if ended.answer is None or result is None or result.id != ended.answer.get("id"):
            result = self.failed(lab, student, ended)
        self.enter(result)

    def failed(self, lab: str, student: str, ended: Done) -> Result:
        """A grading without a result: the submission broke a worker, or the grader is at fault."""
        what = (f"a worker process {ended.fault}" if ended.answer is None
                else ended.answer.get("failed", "its result is damaged"))
        ours = ended.answer is not None and ended.answer.get("ours", True)
        return results.write(self.course, self.settings.digest(), Attempt(
            student, lab, self.course.digest(lab, student),
            records.digest_of_lab(self.course, lab), "ungraded",
            (OURS if ours else THEIRS) + self.see(what), own_doing=not ours))

    def see(self, what: str) -> str:
        return f"{what}; see {log_file(self.course).name}"

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
            reason = records.explain(error)
            if not isinstance(error, records.Unusable):
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
        lab, student = outcome.lab, outcome.student
        self.without_page[lab, student] = outcome
        shown = given(self.book, lab, student) | {
            "notices": notices.of(self.course, self.book, lab, student)}
        self.pool.add({"do": "feedback", "lab": lab, "student": student, "given": shown},
                      SECONDS_PER_PAGE, first=True)

    def paged(self, ended: Done) -> None:
        lab, student = ended.body["lab"], ended.body["student"]
        outcome = self.without_page.pop((lab, student))
        fault = ended.fault if ended.answer is None else ended.answer.get("failed", "")
        notes = [note for note in outcome.record.notes if not note.startswith(NO_PAGE)]
        notes += [f"{NO_PAGE}: {self.see(fault)}"] * bool(fault)
        if notes != outcome.record.notes:
            last = records.last(self.course, lab, student)
            records.write(self.course, lab, student, replace(last, notes=notes))
        self.end(replace(outcome, record=replace(outcome.record, notes=notes)))

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.done(outcome)

    def stopped(self) -> None:
        """After Ctrl-C: who was being graded has no score of an older version; what was entered
        counts, with or without its page."""
        for lab, student in self.pool.under_way("grade"):
            if not current(self.course, lab, student, self.book):
                leave_ungraded(self.course, lab, student, records.STOPPED, self.book)
        self.outcomes += self.without_page.values()


def current(course: Course, lab: str, student: str, book: Gradebook) -> bool:
    """Whether the gradebook has this very submission, graded with the lab as it is now."""
    return (records.state(course, lab, student, book)[0] == "graded"
            and records.is_entered(book, lab, student))


def waiting(course: Course, settings: Grading, lab: str, student: str) -> Result | None:
    """A result that nobody entered yet, of this submission, this lab and these limits."""
    result = results.read(course, lab, student)
    if result is None or result.settings != settings.digest():
        return None
    record, attempt = records.last(course, lab, student), result.attempt
    is_new = record is None or record.attempt != result.id
    return result if is_new and of_now(course, attempt) else None


def of_now(course: Course, attempt: Attempt) -> bool:
    """Whether it graded the submission and the lab that are there now."""
    return (attempt.digest == course.digest(attempt.lab, attempt.student)
            and attempt.lab_digest == records.digest_of_lab(course, attempt.lab))


def worker_command(course: Course, backend: str) -> list[str]:
    return [sys.executable, "-P", "-m", "grader.worker", str(course.root), str(course.sources),
            backend]


@contextlib.contextmanager
def prepared(course: Course, labs: list[str]) -> Iterator[tuple[Grading, Config, Gradebook]]:
    """The course is ours, its labs are released, its gradebook is open, and backed up before and
    after. Raises LabError."""
    with (course.held(), logging_to(course),
          protected(records.gradebook_file(course))):
        results.tidy(course)
        config = course.settings()
        settings = settings_of(config)
        for lab in labs:
            assign.release(course, lab)
            lab_plan.read(course, lab)  # says now what is wrong with the lab
        with records.gradebook(course) as book:
            yield settings, config, book


def grade_all(course: Course, work: Work, done: Callable[[Outcome], None], *, anew: bool = False,
              workers: int | None = None, elsewhere: Elsewhere | None = None) -> list[Outcome]:
    """Grade each (lab, student) of `work` that is not current, or all of them `anew`; `done` is
    called after each. `elsewhere` may grade them first, and says what it left.

    Raises LabError, before anything is touched, when no sandbox holds; Stopped after Ctrl-C.
    """
    from grader import sandbox

    settings = settings_of(course.settings())
    backend = sandbox.choose(settings.sandbox or None)
    count = min(workers or settings.worker_count(), max(1, len(work)))
    with explained(course.root):  # workers take a second to start: meanwhile comes the self-test
        pool = Pool(count, worker_command(course, backend.name), log_file(course))
    with pool:
        with explained(course.root):
            sandbox.self_test(backend, course.root)
        with prepared(course, sorted({lab for lab, _ in work})) as (settings, config, book):
            batch = Batch(course, settings, config, book, pool, done, backend.name)
            try:
                rest = batch.sort_out(work, anew)
                batch.grade(elsewhere(batch, rest) if elsewhere else rest)
            except KeyboardInterrupt as error:
                batch.stopped()
                raise Stopped(batch.outcomes) from error
            finally:
                pool.stop()  # while the course is still held
    return batch.outcomes


def pages_again(course: Course, work: Work, done: Callable[[Outcome], None]
                ) -> list[tuple[Path, str]]:
    """Make the pages of `work` anew, as after grading by hand; (page, student) of those that were
    made."""
    made: list[tuple[Path, str]] = []

    def ended(outcome: Outcome) -> None:
        place = page(course, outcome.lab, outcome.student)
        if place.exists():
            made.append((place, outcome.student))
        done(outcome)

    with prepared(course, []) as (settings, config, book):
        count = min(settings.worker_count(), len(work))
        with Pool(count, worker_command(course, NO_BACKEND), log_file(course)) as pool:
            batch = Batch(course, settings, config, book, pool, ended)
            for lab, student in work:
                page(course, lab, student).unlink(missing_ok=True)
                if records.last(course, lab, student) and records.is_entered(book, lab, student):
                    batch.keep(lab, student, page_again=True)
            batch.grade([])
    return made
