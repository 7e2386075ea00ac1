"""`lab export`: fill scores into an LMS's file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from grader.commands import add_command, open_course
from labcore.errors import LabError
from labcore.imports import imports_without_gc
from labcore.terminal import visible

if TYPE_CHECKING:
    from grader.course import Course
    from grader.export.filling import FilledColumn
    from grader.export.layout import LmsFile
    from grader.export.matching import Matches

MOST_SHOWN = 20  # students of one kind on the terminal
EXAMPLES = """examples:
  lab export canvas --roster Grades-CS336.csv --to upload.csv
  lab export canvas --roster Grades-CS336.csv --to upload.csv --column 03_multi_node="Lab 3 (910)"
  lab export moodle --roster worksheet.csv --lab 03_multi_node --to upload.csv
  lab export moodle --roster worksheet.csv --lab 03_multi_node --to upload.csv --feedback pages.zip

FILE comes from the LMS: Canvas's gradebook, or Moodle's grading worksheet or gradebook.
The scores are filled in (after late penalties; EX for excused students in Canvas), and no other
byte is changed. Students who are ungraded keep what the LMS has. More: docs/collecting.md."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, "export",
                         "export scores and feedback to Canvas or Moodle", EXAMPLES)
    parser.add_argument("lms", choices=("canvas", "moodle"), metavar="canvas|moodle")
    parser.add_argument("--roster", type=Path, required=True, metavar="FILE",
                        help="the CSV file that you downloaded from the LMS")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE",
                        help="where to write the file to upload")
    parser.add_argument("--lab", action="append", default=[], metavar="LAB",
                        help="export this lab (may be repeated; default: every lab with a column)")
    parser.add_argument("--column", action="append", default=[], metavar="LAB=TITLE",
                        help="the column of a lab whose assignment has another name")
    parser.add_argument("--scale", action="store_true",
                        help="multiply scores where the LMS's maximum is not the lab's")
    parser.add_argument("--feedback", type=Path, metavar="ZIP",
                        help="also write one lab's feedback pages, as the LMS takes them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from grader.course import require_known
        from grader.export import canvas, columns, moodle, sheet
        from grader.export.filling import fill
        from grader.export.matching import match
        from labcore.atomic import write_atomic

    _require_places(arguments)
    course = open_course()
    for lab in arguments.lab:
        require_known("lab", lab, course.labs(), str(course.sources))
    lms = canvas if arguments.lms == "canvas" else moodle
    layout = lms.layout(sheet.read(arguments.roster, lms.REQUIRED))
    people, rows = _students_and_rows(course)
    labs = {lab: columns.names_of(course, lab) for lab in sorted({row.lab for row in rows})}
    if unknown := [lab for lab in arguments.lab if lab not in labs]:
        raise LabError(f"--lab {unknown[0]}: nothing of it was graded yet: `lab grade "
                       f"{unknown[0]}` comes first")
    chosen = columns.chosen(layout, labs, arguments.lab, arguments.column)
    if arguments.feedback and len(chosen) > 1:
        raise LabError("--feedback takes one lab, since an upload belongs to one assignment: "
                       f"name it with --lab; there are {', '.join(chosen)}")
    matches = match(layout.entries, people)
    if not matches.entries:
        raise LabError(f"{arguments.roster}: none of its {len(layout.entries)} students is in "
                       "this course; `lab roster list` shows who is, and `lab roster import` adds "
                       "their email addresses and LMS ids")
    filled = [fill(layout, matches, lab, column, [row for row in rows if row.lab == lab],
                   arguments.scale) for lab, column in chosen.items()]
    content = layout.sheet.replaced({place: text for one in filled
                                     for place, text in one.cells.items()})
    if arguments.feedback:
        _feedback(course, layout, matches, next(iter(chosen)), arguments.feedback)
    write_atomic(arguments.to, content)
    _report(layout, matches, filled)
    print(f"{arguments.to}: ready to upload")
    return 0


def _require_places(arguments: argparse.Namespace) -> None:
    for flag, path in (("--to", arguments.to), ("--feedback", arguments.feedback)):
        if path is None:
            continue
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise LabError(f"{flag} {path}: " + ("it is a folder; give a file's name" if
                           path.is_dir() else f"there is no folder {path.absolute().parent}"))
        if path.exists() and arguments.roster.exists() and path.samefile(arguments.roster):
            raise LabError(f"{flag} {path}: that is the LMS's own file; give another name, so that "
                           "you can compare the two")
    if arguments.feedback and arguments.feedback.absolute() == arguments.to.absolute():
        raise LabError(f"--feedback {arguments.feedback}: --to is the same file")


def _students_and_rows(course: Course) -> tuple[list, list]:
    """Return everybody on the roster or in submitted/, and the rows of grades.csv."""
    from grader.course.roster import Person, people
    from grader.gradebook.decisions import dropped
    from grader.gradebook.records import gradebook
    from grader.report.grades import rows
    from grader.report.policy import counted

    with gradebook(course) as book:
        gone = dropped(course)
        known = [person for person in people(book) if person.id not in gone]
        all_rows = list(counted(course, rows(course, book)))
    ids = {person.id for person in known}
    others = [Person(student) for student in course.students()
              if student not in ids and student not in gone]
    return known + others, all_rows


def _report(layout: LmsFile, matches: Matches, filled: list[FilledColumn]) -> None:
    for one in filled:
        print(f"{one.lab} -> {visible(one.column.heading)}: {one.new} new, {one.changed} changed, "
              f"{one.same} as before, {len(one.excused)} excused, {len(one.kept)} ungraded, "
              f"{one.absent} who submitted nothing",
              flush=True)  # before what follows on standard error
        _list(f"{one.lab}: not written", one.lost)
        _list(f"{one.lab}: replaces what {layout.lms} has", one.overwritten, len(one.overwritten))
        _list(f"{one.lab}: ungraded, so the file keeps what it has", one.kept)
        _list(f"{one.lab}: written, but part of it is still to be graded by hand",
              one.provisional)
        if not layout.excused:
            _list(f"{one.lab}: excused, which {layout.lms}'s files cannot say; tick Excluded in "
                  "its gradebook for", one.excused)
        if one.column.most is None:
            print(f"note: {layout.sheet.path.name} does not tell the maximum points of "
                  f"{visible(one.column.heading)}; compare it with the lab's", file=sys.stderr)
    rows = {entry.row: entry for entry in layout.entries}
    _list(f"in {layout.sheet.path.name}, but not matched", (
        f"line {layout.sheet.lines[row]}, {visible(rows[row].name)}: {why}"
        for row, why in sorted(matches.refused.items())))
    _list(f"in this course, but not in {layout.sheet.path.name}", map(visible, matches.missing))


def _list(what: str, lines: Iterable[str], most: int = MOST_SHOWN) -> None:
    """Print lines to standard error, so that the counts stay readable.

    Args:
        what: precedes each line.
        lines: the lines.
        most: how many of them to print.
    """
    lines = list(lines)
    for line in lines[:most]:
        print(f"{what}: {line}", file=sys.stderr)
    if len(lines) > most:
        print(f"{what}: and {len(lines) - most} more", file=sys.stderr)


def _feedback(course: Course, layout: LmsFile, matches: Matches, lab: str, path: Path) -> None:
    """Write the zip of feedback pages.

    Args:
        course: the course.
        layout: the LMS's file.
        matches: our students in it.
        lab: the lab's name.
        path: the zip.

    Raises LabError when there is nothing to put into it.
    """
    from grader.batch.grading import remake_pages
    from grader.course import Submission
    from grader.course.groups import group_of, owner_of
    from grader.export.archive import names, zipped
    from grader.feedback.unreadable import make_pages
    from grader.report.show import progress
    from labcore.atomic import write_atomic

    if layout.lms == "Moodle" and not layout.one_assignment:
        raise LabError("--feedback needs Moodle's grading worksheet as --roster: the gradebook "
                       "does not have the participants' numbers")
    named, without = names(course, layout, lab, matches.entries)
    owners = {student: owner_of(course, lab, student) for student in matches.entries}
    if layout.lms == "Canvas":  # its files' numbers are those of the member who uploaded it
        in_groups = [student for student in named if group_of(course, lab, student)]
        without |= dict.fromkeys(in_groups, "Canvas takes pages for individual submissions only")
        named = {student: name for student, name in named.items() if student not in in_groups}
    graded = [student for student in matches.entries
              if course.notebook("autograded", lab, owners[student]).exists()]
    work = sorted({(lab, owners[student]) for student in graded if student in named})
    with progress(len(work)) as step:
        if work:
            remake_pages(course, work, step, "lab export")
    made = {student for student in graded
            if student in named and Submission(course, lab, student).page.exists()}
    made |= {student for _, student in make_pages(course, [lab]) if student in named}
    _list("no page in the zip", (f"{visible(student)}: {without.get(student, 'no page was made')}"
                                 for student in graded if student not in made))
    if not made:
        raise LabError(f"--feedback {path}: there is no page of {lab} to give back")
    write_atomic(path, zipped({named[student]: Submission(course, lab, student).page
                            for student in made}))
    print(f"{path}: {len(made)} pages to upload to the assignment in {layout.lms}")
