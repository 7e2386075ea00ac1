"""Run a batch from start to end: lock the course, start workers, and back up the gradebook."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from nbgrader.api import Gradebook
from traitlets.config import Config

from grader.batch import regrades, worker
from grader.batch.batch import (
    NO_BACKEND,
    ClusterGrader,
    GradingOutcome,
    GradingRun,
    Stopped,
    WorkList,
)
from grader.batch.pool import WorkerPool
from grader.course import Course, Submission, groups
from grader.course.log import log_file, logging_to
from grader.gradebook import records
from grader.gradebook.faults import explained
from grader.gradebook.guard import protected
from grader.gradebook.notices import zone_of
from grader.nbgrader_plugin import assign
from grader.run import lab_plan, results
from grader.run.settings import Grading, settings_of
from grader.sandbox.interface import Backend
from labcore.imports import imports_without_gc


def worker_command(course: Course, backend: str) -> list[str]:
    return [sys.executable, "-P", "-m", "grader.batch.worker", str(course.root),
            str(course.sources), backend]


def start_workers(course: Course, count: int, backend: Backend | None) -> WorkerPool:
    """Start a batch's workers. Call it before the gradebook is opened.

    Args:
        course: the course.
        count: the number of workers.
        backend: the sandbox that holds; None for workers that make pages only.
    """
    with imports_without_gc():  # what the workers need; forks have it from here
        import grader.feedback.pages
        import grader.run.attempt  # noqa: F401
    command = worker_command(course, backend.name if backend else NO_BACKEND)
    handler = partial(worker.TaskHandler, course, backend)
    return WorkerPool(count, command, log_file(course),
                      partial(worker.serve, handler, [*command, worker.ALREADY_READY]))


@contextlib.contextmanager
def locked_course(course: Course, labs: list[str], command: str
                  ) -> Iterator[tuple[Grading, Config, Gradebook]]:
    """Lock the course, release its labs, and open the gradebook, with a backup before and after.

    Args:
        course: the course.
        labs: the labs to release.
        command: the command that does it.

    Raises LabError.
    """
    with (course.locked(command), logging_to(course),
          protected(records.gradebook_file(course))):
        results.tidy(course)
        config = course.settings()
        settings = settings_of(config)
        zone_of(course)  # says now what is wrong with the time zone
        for lab in labs:
            with course.entering():
                assign.release(course, lab)
            lab_plan.read(course, lab)  # says now what is wrong with the lab
        with records.gradebook(course) as book:
            yield settings, config, book


def grade_all(course: Course, work: WorkList, done: Callable[[GradingOutcome], None], *,
              even_current: bool = False, workers: int | None = None,
              on_cluster: ClusterGrader | None = None, whole_lab: str = "",
              from_start: bool = False) -> list[GradingOutcome]:
    """Grade submissions that are not current.

    Args:
        course: the course.
        work: (lab, student) pairs.
        done: called with each outcome.
        even_current: whether to grade submissions that are current, too.
        workers: the number of workers; by default, from the settings.
        on_cluster: grades some of them first, and returns the rest.
        whole_lab: the lab, if `work` is all of it: then an unfinished regrade continues.
        from_start: do not continue it, but begin again.

    Raises LabError, before anything changes, when no sandbox is safe; Stopped after Ctrl-C.
    """
    from grader.sandbox import choice, selftest

    settings = settings_of(course.settings())
    backend = choice.choose(settings.sandbox or None)
    count = min(workers or settings.worker_count(), max(1, len(work)))
    with explained(course.root):
        pool = start_workers(course, count, backend)
    with pool:
        with explained(course.root):
            selftest.self_test(backend, course.root)
        with locked_course(course, sorted({lab for lab, _ in work}),
                           "lab regrade" if even_current else "lab grade"
                           ) as (settings, config, book):
            batch = GradingRun(course, settings, config, book, pool, done, backend.name)
            try:
                regrade = None
                if even_current and whole_lab:
                    regrade, again = regrades.begin(
                        course, whole_lab, [student for _, student in work], settings.digest(),
                        from_start)
                    if again:
                        print(f"lab: continues the regrade that began at {regrade.began}; "
                              "--from-start begins again", file=sys.stderr)
                rest = batch.triage(work, even_current, regrade)
                batch.grade(on_cluster(batch, rest) if on_cluster else rest)
                if regrade:
                    regrades.end(course, whole_lab)
            except KeyboardInterrupt as error:
                with contextlib.suppress(KeyboardInterrupt):  # pressed once more
                    batch.stopped()
                raise Stopped(batch.outcomes) from error
            finally:
                pool.stop()  # while the course is still held
    return batch.outcomes


def remake_pages(course: Course, work: WorkList, done: Callable[[GradingOutcome], None],
                 command: str = "lab feedback") -> list[tuple[Path, str]]:
    """Make feedback pages again, for example after grading by hand; return (page, student) pairs.

    Args:
        course: the course.
        work: (lab, student) pairs.
        done: called with each outcome.
        command: the command that does it.
    """
    pages: list[tuple[Path, str]] = []

    def ended(outcome: GradingOutcome) -> None:
        path = Submission(course, outcome.lab, outcome.student).page
        if path.exists():
            pages.append((path, outcome.student))
        done(outcome)

    count = min(settings_of(course.settings()).worker_count(), len(work))
    with (start_workers(course, count, None) as pool,
          locked_course(course, [], command) as (settings, config, book)):
        batch = GradingRun(course, settings, config, book, pool, ended)
        for lab, student in work:
            submission = Submission(course, lab, student)
            for one in (student, *groups.others_of(course, lab, student)):
                Submission(course, lab, one).page.unlink(missing_ok=True)
            if submission.record and records.is_entered(submission, book):
                batch.keep(submission, page_again=True)
        batch.grade([])
    return pages
