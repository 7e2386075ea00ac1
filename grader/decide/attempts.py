"""`lab attempt`: list a submission's attempts, and withdraw or choose one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grader.commands import add_command, open_course
from labcore.errors import LabError

if TYPE_CHECKING:
    from grader.course import Course, Submission
    from grader.gradebook.decisions import Versions

USAGE = "lab attempt STUDENT... LAB [withdraw N | choose N] --why TEXT"
EXAMPLES = """examples:
  lab attempt ada 00_welcome                 her attempts: when each came in, and its score
  lab attempt 00_welcome                     everybody's attempts
  lab attempt ada 00_welcome withdraw 2 --why "uploaded to the wrong assignment"
  lab attempt ada 00_welcome choose 1 --why "asked for it by email on May 3"
  lab attempt ada 00_welcome --remove        go back to what c.Attempts says

A withdrawn attempt never counts, but its notebook and its score are kept. A chosen one counts no
matter what is submitted later. The version to grade is put into submitted/ at once; `lab grade`
then grades it. The numbers are those of the list."""


@dataclass(frozen=True)
class _Attempt:
    """One line of the list."""

    number: int
    digest: str
    when: str  # UTC
    file: str
    state: str
    score: float | None


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, "attempt", "list, withdraw, or choose attempts", EXAMPLES)
    parser.add_argument("words", nargs="+", metavar="STUDENT... LAB [withdraw N | choose N]")
    parser.add_argument("--why", default="", metavar="TEXT", help="the reason; grades.csv shows it")
    parser.add_argument("--remove", action="store_true",
                        help="take back what was withdrawn or chosen")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from grader.course.folder import COLLECTING
    from grader.decide.words import split
    from grader.gradebook import decisions
    from grader.gradebook.guard import protected
    from grader.gradebook.records import gradebook, gradebook_file
    from grader.report.grades import save

    course, why = open_course(), arguments.why.strip()
    with gradebook(course) as book:
        students, lab, rest = split(course, book, arguments.words, USAGE)
        if not rest and not arguments.remove:
            if why:
                raise LabError(f"--why belongs to withdraw or choose: {USAGE}")
            return _list(course, book, lab, students)
    if arguments.remove and rest:
        raise LabError(f"--remove takes back every decision on these attempts: leave out {rest!r}")
    if not students:
        raise LabError(f"no student before {lab}: {USAGE}")
    step, number = ("remove", 0) if arguments.remove else _step(rest)
    if not arguments.remove and not why:
        raise LabError("--why is missing: say why, for example --why \"wrong file\"; grades.csv "
                       "shows it")
    with (course.locked("lab attempt", COLLECTING), course.entering(),
          protected(gradebook_file(course)), gradebook(course) as book):
        decided = decisions.versions(course)
        new = {student: _decide(course, book, lab, student, step, number, why,
                                decided.get((lab, student), decisions.Versions()))
               for student in students}
        for student, versions in new.items():
            before = decided.get((lab, student), decisions.Versions())
            if versions.withdrawn != before.withdrawn:
                value = " ".join(sorted(versions.withdrawn)) or None
                decisions.add(course, decisions.WITHDRAWN, [student], lab, value, why)
            if versions.chosen != before.chosen:
                decisions.add(course, decisions.CHOSEN, [student], lab, versions.chosen or None,
                              why)
        for student in students:
            print(_place(course, book, lab, student, new[student], why))
    save(course)
    return 0


def _step(rest: str) -> tuple[str, int]:
    """Return (withdraw or choose, the attempt's number). Raises LabError."""
    words = rest.split()
    if len(words) != 2 or words[0] not in ("withdraw", "choose") or not (
            words[1].isascii() and words[1].isdecimal()):
        raise LabError(f"{rest!r}: say withdraw N or choose N, where N is the number of an attempt "
                       "in the list")
    return words[0], int(words[1])


def _attempts(course: Course, book: Any, lab: str, student: str) -> list[_Attempt]:
    """Return all attempts of a student, withdrawn ones included, oldest first."""
    from grader.course import Submission, receipts
    from grader.report.policy import distinct_attempts, submitted_versions

    submission = Submission(course, lab, student)
    record = submission.record
    history = list(record.history) if record else []
    received = list(receipts.read(course).get((student, lab), []))
    known = {one.digest for one in received} | {one.get("digest") for one in history}
    if submission.digest and submission.digest not in known:  # put there by hand, not graded yet
        from grader.course.received import received as time_of

        history.append({"digest": submission.digest, "received": time_of(submission)})
    versions = submitted_versions(received, history)
    graded = {str(one.get("digest")): one for one in history}
    files = {one.digest: one.file for one in received}
    result = []
    for number, digest in enumerate(filter(None, distinct_attempts(versions)), 1):
        entry = graded.get(digest, {})
        state, score = str(entry.get("state") or "not graded"), entry.get("score")
        if digest == submission.digest and record and record.digest == digest:
            current = _current_score(submission, book)
            state, score = ("graded", current) if current is not None else (state, score)
        when = min(when for when, one in versions if one == digest)
        result.append(_Attempt(number, digest, when, files.get(digest, ""), state,
                               score if isinstance(score, (int, float)) else None))
    return result


def _current_score(submission: Submission, book: Any) -> float | None:
    from grader.gradebook.records import is_entered, net_score, state

    if state(submission, book)[0] != "graded" or not is_entered(submission, book):
        return None
    return net_score(book.find_submission(*submission.key))


def _decide(course: Course, book: Any, lab: str, student: str, step: str, number: int,
            why: str, before: Versions) -> Versions:
    """Return the versions of a student after one step. Raises LabError that names the nearest
    attempt."""
    from grader.collect.store import version_path
    from grader.course import Submission

    attempts = {one.number: one for one in _attempts(course, book, lab, student)}
    if step == "remove":
        if not before.withdrawn and not before.chosen and not _is_misplaced(
                course, lab, student):
            raise LabError(f"no attempt of {student} at {lab} was withdrawn or chosen")
        return replace(before, withdrawn={}, chosen="")
    if not attempts:
        raise LabError(f"{student} has submitted nothing readable for {lab}")
    if number not in attempts:
        nearest = min(attempts, key=lambda one: abs(one - number))
        raise LabError(f"{student} has {len(attempts)} attempts at {lab}, and none is number "
                       f"{number}; nearest: {nearest}")
    digest = attempts[number].digest
    if step == "choose":
        path = version_path(Submission(course, lab, student, digest))
        if not path.is_file() and course.digest(lab, student) != digest:
            raise LabError(f"attempt {number} of {student} cannot be chosen: its notebook was "
                           f"never collected, so {path} does not exist; `lab score` enters points")
        kept = {one: reason for one, reason in before.withdrawn.items() if one != digest}
        return replace(before, withdrawn=kept, chosen=digest)
    return replace(before, withdrawn={digest: why, **before.withdrawn},
                   chosen="" if before.chosen == digest else before.chosen)


def _is_misplaced(course: Course, lab: str, student: str) -> bool:
    """Return whether submitted/ has another version than c.Attempts says, because this command was
    killed after it took a decision back."""
    from grader.course import receipts
    from grader.report.policy import attempts_of, to_grade

    received = receipts.read(course).get((student, lab), [])
    receipt = to_grade(attempts_of(course.settings()), received) if received else None
    return receipt is not None and receipt.digest != course.digest(lab, student)


def _place(course: Course, book: Any, lab: str, student: str, versions: Versions, why: str) -> str:
    """Put the version to grade into submitted/, and return what to print."""
    from grader.collect import store
    from grader.course import Submission, receipts
    from grader.gradebook import ungraded
    from grader.report.policy import attempts_of, to_grade

    submission = Submission(course, lab, student)
    store.register(submission)
    received = receipts.read(course).get((student, lab), [])
    receipt = to_grade(attempts_of(course.settings()), received, versions)
    if receipt is None:
        store.clear(submission)
        ungraded.leave_ungraded(Submission(course, lab, student),
                                f"every attempt was withdrawn: {why}", book)
        return f"{student}, {lab}: no attempt is left"
    if not store.version_path(replace(submission, version=receipt.digest)).is_file():
        raise LabError(f"{student}, {lab}: {store.version_path(submission).parent} does not have "
                       "that version any more: collect it again")
    changed = store.submit_version(replace(submission, version=receipt.digest))
    number = next((one.number for one in _attempts(course, book, lab, student)
                   if one.digest == receipt.digest), 0)
    then = f"; grade it with `lab grade {lab} {student}`" if changed else ""
    return f"{student}, {lab}: attempt {number} is the one to grade{then}"


def _list(course: Course, book: Any, lab: str, students: Sequence[str]) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from grader.course import Submission, receipts, unreadable
    from grader.gradebook import decisions
    from labcore.terminal import visible

    decided, unread = decisions.versions(course), unreadable.newest(course)
    everybody = sorted({*course.students(lab),
                        *(student for student, one in receipts.read(course) if one == lab),
                        *(student for one, student in unread if one == lab)})
    table, count = Table("student", "attempt", "received (UTC)", "file", "state", "score", ""), 0
    for student in students or everybody:
        current = Submission(course, lab, student).digest
        versions = decided.get((lab, student), decisions.Versions())
        for one in _attempts(course, book, lab, student):
            marks = ["in submitted/"] * (one.digest == current)
            marks += [f"chosen: {versions.why_chosen}"] * (one.digest == versions.chosen)
            marks += [versions.why_not(one.digest)] * (one.digest in versions.withdrawn)
            table.add_row(*(escape(visible(text)) for text in (
                student, str(one.number), one.when[:19].replace("T", " "), one.file, one.state,
                "" if one.score is None else f"{one.score:g}", "; ".join(marks))))
            count += 1
        if (lab, student) in unread:
            bad = unread[lab, student]
            table.add_row(*(escape(visible(text)) for text in (
                student, "-", bad.when[:19].replace("T", " "), bad.name, "unreadable", "",
                bad.why)))
    if table.rows:
        Console().print(table)
    print(f"{count} attempt{'s' * (count != 1)} at {lab}")
    return 0
