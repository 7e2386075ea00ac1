"""Play every version that has not been played yet, each in its own sandbox.

A failure of one does not stop the others. After a crash, the next call continues from there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from grader.batch.pool import FinishedTask, WorkerPool
from grader.contest import attempts as store
from grader.contest import sandboxed, secret, submissions, worker
from grader.contest.attempts import ContestAttempt
from grader.course import Course, reasons
from grader.course.folder import CONTEST
from grader.course.log import log_file
from grader.course.record import now
from grader.run.settings import settings_of
from labcore.errors import LabError
from labkit.contest.declaration import Contest
from labkit.contest.play import CaseResult

GRACE_SECONDS = 120.0  # beyond what the sandboxes may take, before a worker counts as hung


@dataclass(frozen=True)
class Played:
    """One version that was played in this run. `attempt.reason` says why it could not be."""

    student: str
    attempt: ContestAttempt


def grade(course: Course, contest: Contest, done: Callable[[Played], None],
          workers: int | None = None) -> dict[str, str]:
    """Play what is new, and what was played with other cases or limits than today's.

    Args:
        course: the course.
        contest: the contest.
        done: called with each version once its result is on the disk.
        workers: how many at a time; by default c.Grading.workers.

    Returns why current files were refused, by student. Raises LabError when nobody submitted
    anything, and where no sandbox holds.
    """
    from grader.sandbox import choice, selftest

    settings = settings_of(course.settings())
    drawn = secret.cases(course, contest)
    made_with = secret.digest(contest, drawn, settings)
    with course.locked("lab contest grade", CONTEST):
        store.tidy(course, contest)
        refused = register_submissions(course, contest)
        tasks = versions_to_play(course, contest, made_with)
        if tasks:
            backend = choice.choose(settings.sandbox or None)
            selftest.self_test(backend, course.root)
            count = min(workers or settings.worker_count(), len(tasks))
            command = [sys.executable, "-P", "-m", "grader.contest.worker", str(course.root),
                       backend.name]
            handler = partial(worker.ContestTaskHandler, course, backend)
            main = partial(worker.serve, handler, [*command, worker.ALREADY_READY])
            with WorkerPool(count, command, log_file(course), main) as pool:
                for student, digest in tasks:
                    pool.add({"do": "play", "lab": contest.name, "student": student,
                              "digest": digest}, _most_seconds(contest, len(drawn)))
                while ended := pool.next():
                    done(enter(course, contest, made_with, ended))
    return refused


def _most_seconds(contest: Contest, cases: int) -> float:
    return (2 * sandboxed.TIME_FACTOR * contest.seconds + sandboxed.SECONDS_TO_SCORE
            ) * (cases + 1) + GRACE_SECONDS


def register_submissions(course: Course, contest: Contest) -> dict[str, str]:
    """Register every student's current file; return why files that are not played were refused.

    Args:
        course: the course.
        contest: the contest.

    Raises LabError when nobody ever submitted anything.
    """
    students, refusals = submissions.students(course, contest), {}
    if not students:
        raise LabError(f"nothing to grade: put each student's file at "
                       f"{submissions.folder(course, contest)}/STUDENT/{contest.file}, or use "
                       f"lab contest collect {contest.name} SOURCE")
    for student in students:
        try:
            content = submissions.read(course, contest, student)
            if content is not None:
                submissions.register(course, contest, student, content)
        except reasons.Unusable as error:
            refusals[student] = reasons.explain(error)
        kept, before = store.read(course, contest, student)
        if before != refusals.get(student, ""):
            store.write(course, contest, student, kept, refusals.get(student, ""))
    return refusals | submissions.invalid_folders(course, contest)


def versions_to_play(course: Course, contest: Contest, made_with: str) -> list[tuple[str, str]]:
    """Return (student, digest) of all versions without a current result.

    Args:
        course: the course.
        contest: the contest.
        made_with: the current secret.digest.
    """
    tasks = []
    for student in submissions.students(course, contest):
        played, _ = store.read(course, contest, student)
        for digest in submissions.versions(course, contest, student):
            one = played.get(digest)
            if one is None or not one.outcomes or one.made_with != made_with:
                tasks.append((student, digest))
    return tasks


def enter(course: Course, contest: Contest, made_with: str, ended: FinishedTask) -> Played:
    """Store a worker's result.

    Args:
        course: the course.
        contest: the contest.
        made_with: secret.digest of now.
        ended: the worker's answer, or its fault.
    """
    student, digest = ended.body["student"], ended.body["digest"]
    answer = ended.answer or {"unplayed": f"a worker process {ended.fault}"}
    received = submissions.versions(course, contest, student)[digest]
    attempt = ContestAttempt(digest, received.isoformat(), now(), made_with,
                             tuple(CaseResult(**one) for one in answer.get("outcomes", ())),
                             answer.get("unplayed", ""))
    played, refused = store.read(course, contest, student)
    before = played.get(digest)
    # An older result of the same version, with other cases, is of no use any more.
    if attempt.outcomes or before is None or before.made_with != made_with:
        store.write(course, contest, student, played | {digest: attempt}, refused)
    return Played(student, attempt)
