"""`lab review`: what in a lab waits for a decision, and decisions about all of it at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.commands import add_command, open_course, require_lab
from labcore.errors import LabError

if TYPE_CHECKING:
    from grader.course import Course, Submission

EXAMPLES = """examples:
  lab review 03_multi_node                    what waits for your decision, and why
  lab review 03_multi_node --accept           keep all scores that were entered by hand
  lab review 03_multi_node ada --accept --cell essay     one student's, for one answer
  lab review 03_multi_node ada --discard      drop what she got for an earlier version
  lab review 03_multi_node --blank-zero       written answers that are blank get 0 points

A score entered by hand waits here if its answer has changed since (the same answer keeps its
score), if the question's points have, or if the submission was graded again. formgrader shows it,
too."""
SCORED_SINCE = "scored again since: --discard drops the earlier one"
GONE = "the lab has no such cell now: --discard drops it"
HELD, AGAIN, BLANK, NEW = "earlier version", "graded again", "blank", "not graded yet"
ACCEPT, DISCARD, ZERO = "accept", "discard", "blank-zero"
KINDS = {ACCEPT: (HELD, AGAIN), DISCARD: (HELD,), ZERO: (BLANK,)}  # what a step settles


@dataclass(frozen=True)
class Waiting:
    """One cell of one submission that waits for a person.

    Attributes:
        name: the cell, or "comment on" it.
        kind: HELD, AGAIN, BLANK, or NEW.
        value: as in `byhand.entered_by_hand`; None where nobody has entered anything.
        most: the cell's points now; None for a comment.
        problem: why its score cannot be accepted as it is; empty if it can.
    """

    student: str
    name: str
    kind: str
    value: Any = None
    most: float | None = None
    problem: str = ""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, "review", "list and make pending decisions", EXAMPLES)
    parser.add_argument("lab", metavar="LAB", help="for example 03_multi_node")
    parser.add_argument("students", nargs="*", metavar="STUDENT", help="(default: everybody)")
    parser.add_argument("--cell", metavar="NAME", help="only this answer or check")
    steps = parser.add_mutually_exclusive_group()
    for step, what in ((ACCEPT, "keep the scores entered by hand"),
                       (DISCARD, "drop what was entered for earlier versions"),
                       (ZERO, "give 0 points to blank written answers")):
        steps.add_argument(f"--{step}", dest="step", action="store_const", const=step, help=what)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from grader.course import groups, require_known
    from grader.gradebook.guard import protected
    from grader.gradebook.records import gradebook, gradebook_file

    course, lab = open_course(), arguments.lab
    require_lab(course, lab)
    arguments.students = list(dict.fromkeys(groups.owner_of(course, lab, student)
                                            for student in arguments.students))
    for student in arguments.students:
        require_known("student", student, course.students(lab), f"{course.root / 'submitted'}")
    students = arguments.students or course.students(lab)
    if arguments.step is None:
        with gradebook(course) as book:
            return _list([one for one in waiting(course, book, lab, students)
                          if _is_of(one, arguments.cell)])
    with course.entering(), protected(gradebook_file(course)), gradebook(course) as book:
        chosen = [one for one in waiting(course, book, lab, students)
                  if _is_of(one, arguments.cell)]
        if arguments.cell and not chosen:
            names = sorted({one.name for one in waiting(course, book, lab, students)})
            raise LabError(f"--cell {arguments.cell}: no decision pending; what waits: "
                           + (", ".join(names) or "nothing"))
        done = settle(course, book, lab, arguments.step, chosen)
    for one in chosen:
        if arguments.step == ACCEPT and one.problem:
            print(f"left: {one.student}, {one.name}: {one.problem}")
    print(f"{len(done)} of {len(chosen)} settled")
    return _remade(course, lab, sorted({one.student for one in done}))


def _is_of(one: Waiting, cell: str | None) -> bool:
    from grader.gradebook.byhand import COMMENT

    return cell is None or one.name.removeprefix(COMMENT) == cell


def _remade(course: Course, lab: str, students: Sequence[str]) -> int:
    from grader.decide.cli import remake_pages

    return remake_pages(course, lab, students) if students else 0


def waiting(course: Course, book: Any, lab: str, students: Sequence[str]) -> Iterator[Waiting]:
    """Yield everything of these students that waits for a person.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
        students: their ids.
    """
    from nbgrader.api import MissingEntry

    from grader.course import Submission
    from grader.gradebook import byhand
    from grader.gradebook.pending import pending
    from grader.gradebook.records import state

    for student in students:
        submission = Submission(course, lab, student)
        record = submission.record
        held = dict(record.set_aside) if record else {}
        held.pop("extension", None)
        try:
            entry = book.find_submission(lab, student)
        except MissingEntry:
            entry = None
        if entry is None or (state(submission, book)[0] == "ungraded" and not record.unscored):
            for name, value in held.items():  # `lab grade` comes first: it may be the same answer
                yield Waiting(student, name, HELD, value,
                              problem="the newest version is ungraded: `lab grade` comes first")
            continue
        grades = {grade.name: grade for one in entry.notebooks for grade in one.grades}
        known = byhand.entered_by_hand(entry)
        places = {*grades, *(byhand.COMMENT + comment.name for one in entry.notebooks
                             for comment in one.comments)}
        for name, value in held.items():
            most = grades[name].max_score if name in grades else None
            problem = (GONE if name not in places else SCORED_SINCE
                       if known.get(name, value) != value else above(value, most))
            yield Waiting(student, name, HELD, value, most, problem)
        for name, grade in grades.items():
            if grade.needs_manual_grade and grade.manual_score is not None:
                value = [grade.manual_score, grade.extra_credit]
                yield Waiting(student, name, AGAIN, value, grade.max_score,
                              above(value, grade.max_score))
        blank = blank_answers(submission) if (missing := pending(entry)) else set()
        for name, points in missing.items():
            yield Waiting(student, name, BLANK if name in blank else NEW, None, points)


def above(value: Any, most: float | None) -> str:
    """Return that a score is more than there are points; empty if it is not.

    Args:
        value: as in `byhand.entered_by_hand`.
        most: the cell's points now.
    """
    score = value[0] if isinstance(value, list) else None
    if score is None or most is None or score <= most:
        return ""
    return f"more than the {most:g} points there are now: score it in formgrader"


def blank_answers(submission: Submission) -> set[str]:
    """Return the written answers that are empty or as they were released, without pictures."""
    import nbformat

    from grader.gradebook.pending import is_written

    course, lab = submission.course, submission.lab
    graded, released = (nbformat.read(path, as_version=4) for path in (
        submission.notebook("autograded"), course.notebook("release", lab)))
    given = {cell.metadata.nbgrader["grade_id"]: cell.source.strip()
             for cell in released.cells if is_written(cell)}
    return {name for cell in graded.cells if is_written(cell)
            and (name := cell.metadata.nbgrader["grade_id"]) in given
            and not cell.get("attachments") and cell.source.strip() in ("", given[name])}


def settle(course: Course, book: Any, lab: str, step: str, chosen: Sequence[Waiting]
           ) -> list[Waiting]:
    """Take one step with what waits, and return what is settled.

    The gradebook is written before the records, so that a crash leaves them to be settled again.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
        step: ACCEPT what was entered and has no problem; DISCARD what is on hold, which does not
            return with its version either; or ZERO points for blank answers.
        chosen: what waits.
    """
    from grader.course import Submission
    from grader.gradebook import byhand

    done = [one for one in chosen
            if one.kind in KINDS[step] and not (step == ACCEPT and one.problem)]
    of = {student: [one for one in done if one.student == student]
          for student in sorted({one.student for one in done})}
    if step != DISCARD:
        for student, ones in of.items():
            byhand.set_values(book.find_submission(lab, student), {
                one.name: [0.0, None] if step == ZERO else one.value for one in ones}, again=False)
        book.db.commit()
    for student, ones in of.items():
        if held := {one.name for one in ones if one.kind == HELD}:
            submission = Submission(course, lab, student)
            submission.save(byhand.without(submission.record, held, archives=step == DISCARD))
    return done


def _list(lines: Sequence[Waiting]) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from labcore.terminal import visible

    table = Table("student", "cell", "waits because", "by hand", "of", "")
    for one in lines:
        score = one.value[0] if isinstance(one.value, list) else one.value
        table.add_row(*(escape(visible(text)) for text in (
            one.student, one.name, one.kind,
            "" if score is None else score if isinstance(score, str) else f"{score:g}",
            "" if one.most is None else f"{one.most:g}",
            one.problem)))
    if lines:
        Console().print(table)
    print(f"{len(lines)} to decide")
    return 0
