"""`lab review`: what in a lab waits for a decision, and decisions about all of it at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
    step = parser.add_mutually_exclusive_group()
    step.add_argument("--accept", action="store_true", help="keep the scores entered by hand")
    step.add_argument("--discard", action="store_true",
                      help="drop what was entered for earlier versions")
    step.add_argument("--blank-zero", action="store_true",
                      help="give 0 points to blank written answers")
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
    if not (arguments.accept or arguments.discard or arguments.blank_zero):
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
        step = accept if arguments.accept else discard if arguments.discard else zero
        done = step(course, book, lab, chosen)
    for one in chosen:
        if arguments.accept and one.problem:
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


def accept(course: Course, book: Any, lab: str, chosen: Sequence[Waiting]) -> list[Waiting]:
    """Enter held scores and comments, and accept those that nbgrader wants looked at again.

    The gradebook is written before the records, so that a crash leaves them to be accepted again.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
        chosen: what waits; what cannot be accepted is left.
    """
    from grader.gradebook import byhand

    done = [one for one in chosen if one.kind in (HELD, AGAIN) and not one.problem]
    for student in sorted({one.student for one in done}):
        entry = book.find_submission(lab, student)
        values = {one.name: one.value for one in done if one.student == student}
        byhand.set_values(entry, values, again=False)
    book.db.commit()
    _forget(course, lab, [one for one in done if one.kind == HELD])
    return done


def discard(course: Course, book: Any, lab: str, chosen: Sequence[Waiting]) -> list[Waiting]:
    """Drop what was entered for earlier versions; each version's archive keeps its own.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
        chosen: what waits.
    """
    done = [one for one in chosen if one.kind == HELD]
    _forget(course, lab, done)
    return done


def zero(course: Course, book: Any, lab: str, chosen: Sequence[Waiting]) -> list[Waiting]:
    """Give 0 points to blank written answers.

    Args:
        course: the course.
        book: the gradebook.
        lab: the lab's name.
        chosen: what waits.
    """
    from grader.gradebook import byhand

    done = [one for one in chosen if one.kind == BLANK]
    for one in done:
        byhand.set_values(book.find_submission(lab, one.student), {one.name: [0.0, None]},
                          again=False)
    book.db.commit()
    return done


def _forget(course: Course, lab: str, done: Sequence[Waiting]) -> None:
    """Remove settled entries from the records, and the notes about them."""
    from grader.course import Submission
    from grader.gradebook import byhand

    for student in sorted({one.student for one in done}):
        submission = Submission(course, lab, student)
        names = {one.name for one in done if one.student == student}
        record = submission.record
        aside = {name: value for name, value in record.set_aside.items() if name not in names}
        notes = [note for note in record.notes if not note.startswith(byhand.SET_ASIDE)]
        submission.save(replace(record, set_aside=aside, set_aside_of=record.set_aside_of
                                if aside else "", notes=notes + byhand.set_aside_notes(aside)))


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
