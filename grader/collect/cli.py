"""`lab collect` and `lab roster`."""

from __future__ import annotations

import argparse
import datetime
import math
import signal
import sys
import time
from pathlib import Path

from grader.commands import add_command, open_course
from labcore.errors import LabError
from labcore.terminal import visible

COLLECT = """examples:
  lab collect submissions.zip                    a Canvas or Moodle download
  lab collect submissions.zip --received "2026-01-31 23:59 Europe/Berlin"
  lab collect submissions.zip --worksheet worksheet.csv --zone Europe/Berlin    Moodle's times
  lab collect handed-in/ --keep-times            STUDENT/LAB.ipynb or STUDENT/LAB/LAB.ipynb
  lab collect scans/ --pattern '{student}_{any}.ipynb'
  lab collect /srv/homes --below work/notebooks --lab 03_multi_node    a hub's homes
  lab collect exchange                           $LAB_EXCHANGE, or nbgrader's c.Exchange.root
  lab collect /srv/homes --below work/notebooks --grade --every 10    grade on upload

An archive does not say when a student handed in: without --received, it was when you collect.
Every version is kept in received/; the newest is put into submitted/. More: docs/collecting.md."""
ROSTER = """examples:
  lab roster import students.csv     columns id, first_name, last_name, email, lms_user_id
  lab roster import Grades-CS336.csv --remove-others    Canvas's gradebook: dropouts leave
  lab roster import participants.csv --id "Email address"          Moodle's participants
  lab roster remove ada --why "left on May 3"           lab roster restore ada
  lab roster list
  lab roster export > students.csv"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    collect = add_command(subparsers, "collect", "collect students' submissions", COLLECT)
    collect.add_argument("source", metavar="SOURCE",
                         help="a folder, an LMS's zip, a tar, an exchange, or the word exchange")
    collect.add_argument("--lab", metavar="LAB", help="collect only this lab")
    times = collect.add_mutually_exclusive_group()
    times.add_argument("--received", metavar="TIME",
                       help="time of receipt of all new versions, with its time zone")
    times.add_argument("--keep-times", action="store_true",
                       help="trust the files' own times, which students can write")
    collect.add_argument("--times", type=Path, metavar="FILE",
                         help="CSV file of times of receipt, with the columns student, received")
    collect.add_argument("--worksheet", type=Path, metavar="FILE", help="Moodle's grading "
                         "worksheet of the assignment, to tell namesakes apart")
    collect.add_argument("--zone", metavar="ZONE", help="take the times of submission in "
                         "--worksheet, which Moodle shows in this time zone (Europe/Berlin, ...)")
    collect.add_argument("--correct", action="store_true",
                         help="also change the times of versions that were collected before")
    collect.add_argument("--student", action="append", default=[], metavar="STUDENT",
                         help="collect only this student's files (may be repeated)")
    collect.add_argument("--as-is", action="store_true",
                         help="take folder names as student ids, on the roster or not")
    collect.add_argument("--pattern", help="how a flat folder names files: {student}, {lab}, {any}")
    collect.add_argument("--below", metavar="FOLDER", help="SOURCE holds students' homes: take "
                         "STUDENT/FOLDER/LAB.ipynb and nothing else of them")
    collect.add_argument("--grade", action="store_true",
                         help="then grade whatever is not graded yet, as `lab grade` does")
    collect.add_argument("--every", type=_minutes, metavar="MINUTES",
                         help="repeat at this interval until Ctrl-C")
    collect.set_defaults(run=run_collect)
    roster = add_command(subparsers, "roster", "import, list, and export the class list", ROSTER)
    steps = roster.add_subparsers(metavar="STEP", required=True)
    step = steps.add_parser("import", help="add and change students", epilog=ROSTER,
                            formatter_class=argparse.RawDescriptionHelpFormatter)
    step.add_argument("file", type=Path, metavar="students.csv",
                      help="or Canvas's gradebook, or Moodle's list of participants")
    step.add_argument("--id", metavar="COLUMN", help="the heading of the ids in an LMS's file")
    step.add_argument("--remove-others", action="store_true",
                      help="remove whoever is not in the file")
    step.set_defaults(run=run_import)
    step = steps.add_parser("remove", help="remove students who left; nothing of theirs is deleted")
    step.add_argument("students", nargs="+", metavar="STUDENT")
    step.add_argument("--why", default="", metavar="TEXT")
    step.set_defaults(run=run_remove)
    step = steps.add_parser("restore", help="bring removed students back")
    step.add_argument("students", nargs="+", metavar="STUDENT")
    step.set_defaults(run=run_remove, why=None)
    steps.add_parser("list", help="show them").set_defaults(run=run_list)
    step = steps.add_parser("export", help="write them as CSV")
    step.add_argument("--to", type=Path, metavar="FILE", help="(standard output)")
    step.set_defaults(run=run_export)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: give minutes, such as 10")
    return minutes


def run_collect(arguments: argparse.Namespace) -> int:
    """Collect once, or repeatedly. A failed round is reported, and the next one starts on time,
    because an archive may be replaced while it is read."""
    if arguments.every is None:
        return _collect_once(arguments)
    if arguments.received or arguments.times or arguments.zone:
        raise LabError("--every collects at other times than --received, --times, or --zone says: "
                       "leave one out")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    try:
        while True:
            try:
                _collect_once(arguments)
            except (LabError, OSError) as error:  # a disk or a mount that is away for a while
                print(f"lab: {visible(str(error))}", file=sys.stderr, flush=True)
            time.sleep(60 * arguments.every)
    except KeyboardInterrupt:
        return 130


def _collect_once(arguments: argparse.Namespace) -> int:
    from lab.cli import main

    code = _collect(arguments)
    if code or not arguments.grade:
        return code
    graded = main(["grade", arguments.lab or "--all"])
    if graded == 130:
        raise KeyboardInterrupt
    return graded


def _collect(arguments: argparse.Namespace) -> int:
    from grader.collect.collecting import CollectOptions, collect
    from grader.course import require_known
    from grader.course.roster import people
    from grader.course.times import now, parse_time
    from grader.gradebook.records import gradebook
    from grader.report.grades import save

    course = open_course()
    received = parse_time(arguments.received, "--received") if arguments.received else None
    if received and received > now() + datetime.timedelta(minutes=5):
        raise LabError(f"--received {arguments.received!r} is in the future")
    if arguments.lab:
        require_known("lab", arguments.lab, course.labs(), str(course.sources))
    if arguments.student and not arguments.as_is:
        with gradebook(course) as book:
            known = [person.id for person in people(book)]
        for student in arguments.student:
            require_known("student", student, known, "the roster")
    if arguments.zone is not None and not arguments.worksheet:
        raise LabError(f"--zone {arguments.zone}: it is the time zone of --worksheet FILE")
    if arguments.correct and not (received or arguments.keep_times or arguments.times
                                  or arguments.zone):
        raise LabError("--correct changes times of receipt: say which with --received TIME, "
                       "--times FILE, --worksheet FILE and --zone ZONE, or --keep-times")
    lines = collect(course, arguments.source, CollectOptions(
        arguments.lab, received, arguments.keep_times, arguments.as_is, arguments.pattern,
        arguments.below, arguments.correct, tuple(arguments.student),
        arguments.worksheet, arguments.times, arguments.zone))
    show(lines)
    if arguments.worksheet and not (arguments.zone or received or arguments.times):
        print("note: these are the times of collecting; --zone with the time zone of your Moodle "
              "profile takes the times of submission in --worksheet", file=sys.stderr)
    if any(line.verdict == "refused" and line.when for line in lines):
        save(course)  # what cannot be read will not be graded, so nothing else would say so
    if any(line.verdict != "refused" for line in lines):
        return 0
    print("lab: nothing was taken" + ("" if lines else f": no notebook in {arguments.source}"),
          file=sys.stderr)
    return 1


def show(lines) -> None:
    """Print the table of the files that were taken, and the refused files below it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table("student", "lab", "")
    table.add_column("received (UTC)", no_wrap=True)
    table.add_column("file", overflow="fold")
    table.add_column("note")
    taken = [line for line in lines if line.verdict != "refused"]
    for line in taken:
        table.add_row(*(escape(visible(text)) for text in (
            line.student, line.lab, line.verdict, line.when[:19].replace("T", " "), line.file,
            line.why)))
    if taken:
        console.print(table)
    for line in lines:
        if line.verdict == "refused":
            who = f" ({visible(line.student)})" if line.student else ""
            console.print(f"refused: {escape(visible(line.file))}{escape(who)}: "
                          f"{escape(visible(line.why))}", soft_wrap=True, highlight=False)
    counts = {kind: sum(line.verdict == kind for line in lines)
              for kind in ("new", "same", "other", "refused")}
    console.print(", ".join(f"{count} {kind}" for kind, count in counts.items()), highlight=False)


def run_import(arguments: argparse.Namespace) -> int:
    from grader.course.roster import add, people, read_file, with_known_ids
    from grader.gradebook import decisions
    from grader.gradebook.guard import protected
    from grader.gradebook.records import gradebook, gradebook_file
    from grader.report.grades import save

    in_file, notes = read_file(arguments.file, arguments.id)
    course = open_course()
    with course.entering(), protected(gradebook_file(course)), gradebook(course) as book:
        in_file = with_known_ids(in_file, people(book))
        added, changed = add(book, in_file)
        ids, gone = {person.id for person in in_file}, decisions.dropped(course)
        back = sorted(ids & set(gone))
        left = sorted({person.id for person in people(book)} - ids - set(gone)) \
            if arguments.remove_others else []
        decisions.add(course, decisions.DROPPED, back, "", None, "")
        decisions.add(course, decisions.DROPPED, left, "", decisions.DROPPED,
                      f"not in {arguments.file.name}")
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{len(in_file)} students: {added} added, {changed} changed, "
          f"{len(in_file) - added - changed} as before")
    for students, what in ((left, "removed"), (back, "restored")):
        if students:
            print(f"{len(students)} {what}: {', '.join(students)}")
    if left or back:
        save(course)
    return 0


def run_remove(arguments: argparse.Namespace) -> int:
    """Remove students, or restore them if there is no reason to have."""
    from grader.course import require_known
    from grader.course.roster import people
    from grader.gradebook import decisions
    from grader.gradebook.records import gradebook
    from grader.report.grades import save

    course, gone = open_course(), decisions.dropped(open_course())
    restore = arguments.why is None
    with gradebook(course) as book:
        known = sorted({*(person.id for person in people(book)), *course.students()})
    for student in arguments.students:
        require_known("student", student, sorted(gone) if restore else known,
                      "those who left" if restore else "the roster")
    decisions.add(course, decisions.DROPPED, arguments.students, "",
                  None if restore else decisions.DROPPED, (arguments.why or "").strip())
    save(course)
    for student in arguments.students:
        print(f"{student}: " + ("back in the course" if restore else "removed; the notebooks and "
                                f"grades stay, and `lab roster restore {student}` undoes this"))
    return 0


def run_list(arguments: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from grader.course.roster import COLUMNS

    students, gone = _present(open_course())
    table = Table(*COLUMNS)
    for person in students:
        table.add_row(*(escape(visible(getattr(person, column))) for column in COLUMNS))
    if students:
        Console().print(table)
    print(f"{len(students)} students")
    for student, why in sorted(gone.items()):
        print(visible(f"left: {student}" + f" ({why})" * bool(why)))
    return 0


def _present(course) -> tuple[list, dict[str, str]]:
    """Return the people of the class, and those who left it with the reason."""
    from grader.course.roster import people
    from grader.gradebook.decisions import dropped
    from grader.gradebook.records import gradebook

    gone = dropped(course)
    with gradebook(course) as book:
        return [person for person in people(book) if person.id not in gone], gone


def run_export(arguments: argparse.Namespace) -> int:
    from grader.course.roster import write_csv
    from labcore.atomic import write_atomic

    text = write_csv(_present(open_course())[0])
    if arguments.to:
        write_atomic(arguments.to, text.encode())
    else:
        print(text, end="")
    return 0
