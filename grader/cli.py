"""`lab grade`, `lab regrade`, `lab release`, `lab feedback`, and `lab formgrader`."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import signal
import sys
import time
from pathlib import Path

from grader.commands import add_command, open_course, positive_count, require_lab
from labcore import own_labs
from labcore.errors import LabError
from labcore.imports import imports_without_gc

GRADE = """examples:
  lab grade --all                      every submission that is not graded yet
  lab grade 03_multi_node              that lab, all students
  lab grade 03_multi_node ada grace    that lab, two students
  lab grade --all --workers 8          eight submissions at a time
  lab grade --all --slurm              on the cluster, see docs/grading.md
"""
REGRADE = """examples:
  lab regrade 03_multi_node              that lab, all students, even with a score
  lab regrade 03_multi_node ada          one student
  lab regrade 03_multi_node --ungraded   only submissions without a score

After it was stopped or killed, `lab regrade LAB` continues with those that are left.
"""
RELEASE = """examples:
  lab release 03_multi_node                                  make release/03_multi_node/
  lab release 03_multi_node --due "2026-12-01 18:00 +01:00"  and set its due date
  lab release 20_mine --labs my-labs                         a lab of your own
"""
FEEDBACK = """examples:
  lab feedback 03_multi_node                  the pages of one lab, after manual grading
  lab feedback                                the pages of all labs
  lab feedback --to /tmp/pages                also copied there, one folder per student
"""
WHERE = """
The course folder is $LAB_COURSE, else course/ in the checkout; docs/instructors.md is the guide."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the grader's commands, those of its packages included. Students' images have no nbgrader,
    and only `lab validate`."""
    from grader.validate import cli as validating

    validating.add_parser(subparsers)
    if importlib.util.find_spec("nbgrader") is None:
        return
    _add_grading(subparsers)
    _add_release_and_feedback(subparsers)
    _add_formgrader(subparsers)
    from grader.collect import cli as collecting
    from grader.collect import groups as grouping
    from grader.contest import cli as contests
    from grader.decide import attempts as choosing
    from grader.decide import cli as deciding
    from grader.decide import review as reviewing
    from grader.export import cli as exporting
    from grader.gradebook import cli as gradebooks
    from grader.sandbox import cli as isolating
    from grader.similarity import cli as comparing
    from grader.stats import cli as statistics
    from grader.written import cli as second_graders

    for part in (collecting, contests, exporting, comparing, statistics, second_graders,
                 isolating, gradebooks, deciding, choosing, reviewing, grouping):
        part.add_parser(subparsers)


def _add_grading(subparsers: argparse._SubParsersAction) -> None:
    grade = add_command(subparsers, "grade", "grade submissions that are not graded yet",
                        GRADE + WHERE)
    grade.add_argument("lab", nargs="?", metavar="LAB", help="for example 03_multi_node")
    _students(grade)
    grade.add_argument("--all", action="store_true", help="every lab that has submissions")
    grade.set_defaults(run=run_grade, even_current=False, ungraded=False, from_start=False)
    again = add_command(subparsers, "regrade", "grade submissions again", REGRADE + WHERE)
    again.add_argument("lab", metavar="LAB", help="for example 03_multi_node")
    _students(again)
    again.add_argument("--ungraded", action="store_true", help="skip submissions that have a score")
    again.add_argument("--from-start", action="store_true",
                       help="grade all of them, even after a regrade that was stopped")
    again.set_defaults(run=run_grade, even_current=True, all=False)
    for parser in (grade, again):
        parser.add_argument("--workers", type=positive_count, metavar="N",
                            help="submissions graded at a time (default: one per core)")
        parser.add_argument("--slurm", action="store_true", help="as one array job on the cluster")
        own_labs.add_option(parser)


def _add_release_and_feedback(subparsers: argparse._SubParsersAction) -> None:
    release = add_command(subparsers, "release", "make the notebook that students get",
                          RELEASE + WHERE)
    release.add_argument("lab", metavar="LAB", help="for example 03_multi_node")
    release.add_argument("--due", metavar="TIME",
                         help="due date with its time zone; run `lab grade` again afterwards")
    own_labs.add_option(release)
    release.set_defaults(run=run_release)
    feedback = add_command(subparsers, "feedback", "make the feedback pages for students",
                           FEEDBACK + WHERE)
    feedback.add_argument("lab", nargs="?", metavar="LAB", help="(default: all labs)")
    feedback.add_argument("--to", type=Path, metavar="FOLDER", help="also copy them there")
    feedback.set_defaults(run=run_feedback)


def _add_formgrader(subparsers: argparse._SubParsersAction) -> None:
    from lab.jupyter import LOOPBACK
    from lab.start import ipv4_address, jupyter_port

    form = add_command(subparsers, "formgrader", "start JupyterLab with nbgrader's formgrader",
                       WHERE)
    form.add_argument("--port", type=jupyter_port,
                      help="JupyterLab's port (the first free from 8888)")
    form.add_argument("--ip", type=ipv4_address, default=LOOPBACK,
                      help=f"where JupyterLab listens ({LOOPBACK}: only this machine reaches it)")
    form.add_argument("--hub", nargs=argparse.REMAINDER, metavar="ARGUMENT",
                      help="what a JupyterHub starts for an instructor")
    form.set_defaults(run=run_formgrader)


def _students(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("students", nargs="*", metavar="STUDENT",
                        help="(default: everyone who submitted it)")


def run_formgrader(arguments: argparse.Namespace) -> int:
    from grader.nbgrader_plugin.formgrader import serve

    return serve(arguments.port, arguments.ip, arguments.hub)


def run_grade(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from rich.console import Console

        from grader.batch.batch import Stopped
        from grader.batch.grading import grade_all
        from grader.report.grades import save
        from grader.report.show import progress, show

    own_labs.resolve_folder(arguments.folder)
    course = open_course()
    work = choose(course, arguments)
    console, start, outcomes, stopped = Console(), time.monotonic(), [], False
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # stops as Ctrl-C does
    try:
        with progress(len(work)) as step:
            outcomes = grade_all(course, work, step, even_current=arguments.even_current,
                                 workers=arguments.workers, on_cluster=_cluster_grader(arguments),
                                 whole_lab="" if arguments.students or arguments.ungraded
                                 else arguments.lab or "", from_start=arguments.from_start)
    except Stopped as error:
        outcomes, stopped = error.outcomes, True
    rows = save(course)
    show(console, outcomes, rows, time.monotonic() - start)
    if stopped:
        console.print(f"stopped: {len(work) - len(outcomes)} of {len(work)} were not graded this "
                      "time; grade again", soft_wrap=True)
    console.print(f"Scores: {course.root / 'grades.csv'}   feedback: {course.root / 'feedback'}/",
                  soft_wrap=True)
    return 130 if stopped else 0


def _cluster_grader(arguments: argparse.Namespace):
    if not arguments.slurm:
        return None
    from grader.batch.slurm import grade_on_cluster

    return grade_on_cluster


def choose(course, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the (lab, student) pairs to grade, in order.

    Args:
        course: the course.
        arguments: the parsed command line.

    Raises LabError.
    """
    from grader.course import Submission, groups, require_known
    from grader.gradebook.decisions import dropped
    from grader.gradebook.records import state

    known = course.labs()
    if arguments.all == bool(arguments.lab):
        raise LabError("name a LAB, or --all for all of them; the labs are: "
                       + (", ".join(known) or "none yet (lab build creates them)"))
    if arguments.lab:
        require_lab(course, arguments.lab)
        arguments.students = list(dict.fromkeys(
            groups.owner_of(course, arguments.lab, student) for student in arguments.students))
    for student in arguments.students:
        require_known("student", student, course.students(), str(course.root / "submitted"))
    gone = dropped(course)
    work = [(lab, student) for lab in ([arguments.lab] if arguments.lab else known)
            for student in arguments.students or course.students(lab)
            if arguments.students or not gone.keys() >= {
                student, *groups.others_of(course, lab, student)}]
    if not work:
        which = arguments.lab or "LAB"
        raise LabError(f"nothing to grade: put each student's notebook at {course.root}/submitted/"
                       f"STUDENT/{which}/{which}.ipynb")
    if arguments.ungraded:
        work = [(lab, student) for lab, student in work
                if state(Submission(course, lab, student))[0] == "ungraded"]
        if not work:
            raise LabError(f"nothing to grade: all that submitted {arguments.lab} are graded")
    return work


def run_release(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from grader.course.log import logging_to
        from grader.course.times import parse_time
        from grader.gradebook.guard import protected
        from grader.gradebook.late import set_due
        from grader.gradebook.records import gradebook_file
        from grader.nbgrader_plugin import assign
        from grader.run import forgeable

    due = parse_time(arguments.due, "--due") if arguments.due else None
    own_labs.resolve_folder(arguments.folder)
    course = open_course()
    require_lab(course, arguments.lab)
    assign.require_built(course, arguments.lab)
    with contextlib.ExitStack() as stack:
        if changed := not assign.is_current(course, arguments.lab):  # a batch reads the lab's cells
            stack.enter_context(course.locked("lab release"))
        for one in (course.entering(), logging_to(course), protected(gradebook_file(course))):
            stack.enter_context(one)
        if changed:
            changed = assign.release(course, arguments.lab)
        if due:
            set_due(course, arguments.lab, due)
    folder = course.notebook("release", arguments.lab).parent
    print(f"{folder}: {'made' if changed else 'is up to date'}; hand it out as it is"
          + (f". It is due {due:%Y-%m-%d %H:%M} UTC" if due else ""))
    for warning in forgeable.warnings(course, arguments.lab):
        print(f"note: {warning}")
    return 0


def run_feedback(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from grader.batch.grading import remake_pages
        from grader.course import Submission
        from grader.course.groups import others_of
        from grader.course.log import log_file
        from grader.feedback import unreadable
        from grader.gradebook.records import state
        from grader.report.grades import save
        from grader.report.show import progress
        from labcore.atomic import write_atomic
        from labcore.terminal import visible

    course = open_course()
    if arguments.lab:
        require_lab(course, arguments.lab)
    work = [(lab, student) for lab in ([arguments.lab] if arguments.lab else course.labs())
            for student in course.students(lab)
            if course.notebook("autograded", lab, student).exists()]
    unread = unreadable.make_pages(course, [arguments.lab] if arguments.lab else course.labs())
    if not work and not unread:
        raise LabError(f"no feedback yet: run `lab grade {arguments.lab or '--all'}` first")
    with progress(len(work)) as step:
        pages = remake_pages(course, work, step) if work else []
    copies = [(Submission(course, path.stem, member).page, member) for path, student in pages
              for member in others_of(course, path.stem, student)]
    pages += [(path, member) for path, member in copies if path.exists()] + unread
    for path, student in pages:
        if arguments.to:
            copy = arguments.to / student / path.name
            copy.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(copy, path.read_bytes())
    for lab, student in work:
        submission = Submission(course, lab, student)
        if not submission.page.exists():
            reason = state(submission)[1] or f"see {log_file(course)}, or grade it again"
            print(visible(f"no page: {student}, {lab}: {reason}"), file=sys.stderr)
    save(course)
    count = len(unread) + sum(1 + len(others_of(course, lab, student)) for lab, student in work)
    print(f"{len(pages)} of {count} pages in {arguments.to or course.root / 'feedback'}/")
    return 0 if len(pages) == count else 1
