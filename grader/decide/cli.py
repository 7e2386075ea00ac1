"""`lab extend`, `lab score`, and `lab aside`: record an instructor's decisions."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence

from grader.commands import add_command, open_course
from labcore.errors import LabError

EXTEND_USAGE = "lab extend STUDENT... LAB DATE"
EXTEND = """examples:
  lab extend ada 03_multi_node "2026-12-08 18:00 +01:00" --why "ill for a week"
  lab extend ada grace 03_multi_node "2026-12-08 18:00 Europe/Berlin"
  lab extend ada 03_multi_node --remove
  lab extend                                 list all extensions
  lab extend 03_multi_node                   list those for one lab

Late penalties in grades.csv and on the feedback pages are recomputed at once."""
SCORE_USAGE = "lab score STUDENT... LAB excused|POINTS --why TEXT"
SCORE = """examples:
  lab score ada 03_multi_node 0 --why "copied from grace, see the minutes of May 3"
  lab score ada 03_multi_node excused --why "ill, with a certificate"
  lab score ada grace 03_multi_node 12.5 --why "oral exam"
  lab score ada 03_multi_node --remove       the graded score counts again
  lab score                                  list all such scores, and why

Such a score replaces the graded one, late penalty included, however often you grade again."""

ASIDE_USAGE = "lab aside STUDENT... LAB --why TEXT"
ASIDE = """examples:
  lab aside ada 03_multi_node --why "asked her for a notebook that opens"
  lab aside ada 03_multi_node --remove       the next `lab grade` tries it again
  lab aside                                  everything that is set aside, and why

`lab grade` and `lab regrade` leave such a submission alone. It stays in submitted/, is ungraded in
grades.csv with your reason, and is graded again as soon as the student submits another version."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    extend = add_command(subparsers, "extend", "set a later due date for one student", EXTEND)
    extend.add_argument("words", nargs="*", metavar="STUDENT... LAB DATE",
                        help="the date with its time zone; without one, list extensions")
    extend.add_argument("--why", default="", metavar="TEXT", help="the reason, for grades.csv")
    extend.set_defaults(run=run_extend)
    score = add_command(subparsers, "score", "enter one student's score for a whole lab", SCORE)
    score.add_argument("words", nargs="*", metavar="STUDENT... LAB excused|POINTS",
                       help="points after penalties, or excused: no score, and no 0 either")
    score.add_argument("--why", default="", metavar="TEXT",
                       help="the reason; the student's page shows it")
    score.set_defaults(run=run_score)
    aside = add_command(subparsers, "aside", "set an ungraded submission aside", ASIDE)
    aside.add_argument("words", nargs="*", metavar="STUDENT... LAB")
    aside.add_argument("--why", default="", metavar="TEXT", help="the reason, for grades.csv")
    aside.set_defaults(run=run_aside)
    for parser in (extend, score, aside):
        parser.add_argument("--remove", action="store_true", help="withdraw the decision")


def run_extend(arguments: argparse.Namespace) -> int:
    from grader.course.times import parse_time
    from grader.gradebook import decisions, extensions
    from grader.gradebook.guard import protected
    from grader.gradebook.records import gradebook, gradebook_file

    course = open_course()
    if _is_listing(course, arguments):
        with gradebook(course) as book:
            granted = extensions.all_extensions(course, book).values()
            return _list_extensions(granted, arguments.words)
    with course.entering(), protected(gradebook_file(course)), gradebook(course) as book:
        students, lab, date = _parse_arguments(course, book, arguments, EXTEND_USAGE)
        due = parse_time(date, "DATE") if date else None
        extensions.extend(course, book, students, lab, due)
        decisions.add(course, decisions.EXTENSION, students, lab,
                      due.isoformat() if due else None, arguments.why.strip())
    for student in students:
        print(f"{student}, {lab}: " + (f"due {due:%Y-%m-%d %H:%M} UTC" if due else "no extension"))
    return remake_pages(course, lab, students)


def run_score(arguments: argparse.Namespace) -> int:
    from grader.gradebook import decisions
    from grader.gradebook.records import gradebook

    course = open_course()
    if _is_listing(course, arguments):
        return _list_scores(decisions.current(course, decisions.SCORE), arguments.words)
    with gradebook(course) as book:  # a batch may go on: the decision is not in the gradebook
        students, lab, text = _parse_arguments(course, book, arguments, SCORE_USAGE,
                                               whole_group=False)
        value = None if arguments.remove else _value(book, lab, text)
        if not arguments.remove and not arguments.why.strip():
            raise LabError("--why is missing: say why, for example --why \"oral exam\"; it is kept "
                           "with the score, and the student's page shows it")
        decisions.add(course, decisions.SCORE, students, lab, value, arguments.why.strip())
    for student in students:
        print(f"{student}, {lab}: " + (
            "the graded score counts again" if value is None else value if isinstance(value, str)
            else f"{value:g} points"))
    return remake_pages(course, lab, students)


def run_aside(arguments: argparse.Namespace) -> int:
    from grader.decide.words import split
    from grader.gradebook import decisions
    from grader.gradebook.records import gradebook
    from grader.report.grades import save

    course = open_course()
    words, why = arguments.words, arguments.why.strip()
    if not (arguments.remove or why) and len(words) < 2:
        return _list_aside(course, decisions.current(course, decisions.ASIDE), words)
    with gradebook(course) as book:
        students, lab, rest = split(course, book, words, ASIDE_USAGE)
        if not students or rest:
            raise LabError(f"name students and a lab, and nothing else: {ASIDE_USAGE}")
        if not arguments.remove:
            if not why:
                raise LabError("--why is missing: say why, for example --why \"empty file, asked "
                               "for another\"; grades.csv shows it")
            _require_ungraded(course, book, students, lab)
        for student in students:
            decisions.add(course, decisions.ASIDE, [student], lab,
                          None if arguments.remove else course.digest(lab, student), why)
    for student in students:
        print(f"{student}, {lab}: " + ("`lab grade` tries it again" if arguments.remove
                                       else "set aside"))
    save(course)
    return 0


def _require_ungraded(course, book, students: Sequence[str], lab: str) -> None:
    from grader.course import Submission
    from grader.gradebook.records import state

    for student in students:
        submission = Submission(course, lab, student)
        if not submission.exists:
            raise LabError(f"{student} has submitted nothing for {lab}: there is nothing to set "
                           f"aside; `lab score {student} {lab} excused` excuses a student")
        if state(submission, book)[0] == "graded":
            raise LabError(f"{lab} of {student} is graded: only an ungraded submission can be set "
                           f"aside; `lab score {student} {lab} POINTS` replaces a score")


def _is_listing(course, arguments: argparse.Namespace) -> bool:
    """Return whether the command only lists: no value follows the lab, or there are no words.

    Args:
        course: the course.
        arguments: the parsed command line.
    """
    words = arguments.words
    return not (arguments.remove or arguments.why) and (not words or words[-1] in course.labs())


def _parse_arguments(course, book, arguments: argparse.Namespace, usage: str,
                     whole_group: bool = True) -> tuple[list[str], str, str]:
    """Return (students, lab, the date or score).

    Args:
        course: the course.
        book: the gradebook.
        arguments: the parsed command line.
        usage: the command's usage, for messages.
        whole_group: whether a member stands for the group.

    Raises LabError when one of them is missing.
    """
    from grader.decide.words import split

    if not arguments.words:
        raise LabError(f"name a student and a lab: {usage}")
    students, lab, rest = split(course, book, arguments.words, usage, whole_group)
    if not students:
        raise LabError(f"no student before {lab}: {usage}")
    if arguments.remove and rest:
        raise LabError(f"--remove only withdraws an existing decision: leave out {rest!r}")
    if not arguments.remove and not rest:
        raise LabError(f"nothing after {lab}: {usage}")
    return students, lab, rest


def _value(book, lab: str, text: str) -> float | str:
    """Return the points, or the word excused.

    Args:
        book: the gradebook.
        lab: the lab's name.
        text: what the user typed.

    Raises LabError that names the nearest valid value.
    """
    from grader.gradebook.decisions import EXCUSED

    most = next((one.max_score for one in book.assignments if one.name == lab), None)
    if most is None:
        raise LabError(f"{lab} has no maximum yet: `lab release {lab}` comes first")
    if text.lower() == EXCUSED:
        return EXCUSED
    if not re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", text, re.IGNORECASE | re.ASCII):
        raise LabError(f"{text!r} is not a score: give points from 0 to {most:g}, such as "
                       f"{most / 2:g}, or the word excused")
    value = float(text)
    if not math.isfinite(value) or not 0 <= value <= most:
        nearest = 0 if value < 0 else most
        raise LabError(f"{text} points: {lab} has from 0 to {most:g}; the nearest is {nearest:g}")
    return value


def remake_pages(course, lab: str, students: Sequence[str]) -> int:
    """Recalculate penalties, and make the pages of these students and grades.csv again."""
    from grader.batch import grading
    from grader.course import CourseBusy, groups
    from grader.report.grades import save

    owners = dict.fromkeys(groups.owner_of(course, lab, student) for student in students)
    work = [(lab, student) for student in owners
            if course.notebook("autograded", lab, student).exists()]
    try:
        made = grading.remake_pages(course, work, lambda outcome: None) if work else []
    except CourseBusy as error:
        print(f"{error.holder}; afterwards, `lab feedback {lab}` makes the pages again")
    else:
        if work:
            print(f"{len(made)} of {len(work)} feedback pages made again; hand them out with "
                  f"`lab feedback {lab}`")
    save(course)
    print(f"Scores: {course.root / 'grades.csv'}")
    return 0


def _list_extensions(entries, words: Sequence[str]) -> int:
    lines = [(one.student, one.lab, f"{one.due:%Y-%m-%d %H:%M}" if one.due else "", one.why)
             for one in entries if _is_selected(one, words)]
    return _show(("student", "lab", "due (UTC)", "why"), lines, "extensions")


def _list_scores(entries, words: Sequence[str]) -> int:
    lines = [(one.student, one.lab, f"{one.value:g}" if isinstance(one.value, (int, float))
              else one.value, one.why, one.who, one.at[:16].replace("T", " "))
             for key, one in sorted(entries.items()) if _is_selected(one, words)]
    return _show(("student", "lab", "score", "why", "who", "when (UTC)"), lines, "scores")


def _list_aside(course, entries, words: Sequence[str]) -> int:
    lines = [(one.student, one.lab, one.why, one.who, one.at[:16].replace("T", " "),
              "" if one.value == course.digest(one.lab, one.student) else "submitted again since")
             for key, one in sorted(entries.items()) if _is_selected(one, words)]
    return _show(("student", "lab", "why", "who", "when (UTC)", ""), lines, "set aside")


def _is_selected(one, words: Sequence[str]) -> bool:
    """Return whether an entry is of the lab that ends the words, and of a student before it.

    Args:
        one: the entry.
        words: students and a lab; empty for all.
    """
    return not words or (one.lab == words[-1] and (one.student in words[:-1] or not words[:-1]))


def _show(columns: Sequence[str], lines: Sequence[Sequence[str]], what: str) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from labcore.terminal import visible

    table = Table(*columns)
    for line in lines:
        table.add_row(*(escape(visible(text)) for text in line))
    if lines:
        Console().print(table)
    print(f"{len(lines)} {what.removesuffix('s') if len(lines) == 1 else what}")
    return 0
