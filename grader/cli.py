"""`lab grade` and `lab formgrader`."""

from __future__ import annotations

import argparse
import signal
import statistics
import time

from lab.errors import LabError

EXAMPLES = """examples:
  lab grade --all                      everything in submitted/
  lab grade 03_multi_node              that lab, all students
  lab grade 03_multi_node ada grace    that lab, two students

The course folder is $LAB_COURSE, else course/ in the checkout; docs/instructors.md is the guide."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    grade = subparsers.add_parser(
        "grade", help="for instructors: grade what was submitted", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    grade.add_argument("lab", nargs="?", metavar="LAB", help="for example 03_multi_node")
    grade.add_argument("students", nargs="*", metavar="STUDENT", help="(all that submitted it)")
    grade.add_argument("--all", action="store_true", help="every lab that somebody submitted")
    grade.set_defaults(run=run_grade)
    from lab.start import jupyter_port

    form = subparsers.add_parser("formgrader",
                                 help="for instructors: JupyterLab with nbgrader's formgrader")
    form.add_argument("--port", type=jupyter_port,
                      help="JupyterLab's port (the first free from 8888)")
    form.set_defaults(run=run_formgrader)
    from grader.collect import cli as collecting

    collecting.add_parser(subparsers)
    from grader.sandbox import cli as isolating

    isolating.add_parser(subparsers)


def run_formgrader(arguments: argparse.Namespace) -> int:
    from grader.formgrader import serve

    return serve(arguments.port)


def run_grade(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from grader.batch import Outcome, grade_all
    from grader.course import Course, default_root
    from grader.report import save

    course = Course(default_root())
    course.make()
    course.settings()
    work = choose(course, arguments)
    console, start = Console(), time.monotonic()
    say_warning()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # stops as Ctrl-C does
    outcomes: list[Outcome] = []
    stopped = False
    try:
        with progress(len(work)) as step:
            grade_all(course, work, lambda one: (outcomes.append(one), step(one)))
    except KeyboardInterrupt:
        stopped = True
    rows = save(course)
    show(console, outcomes, rows, time.monotonic() - start)
    if stopped:
        console.print(f"stopped: {len(work) - len(outcomes)} of {len(work)} were not graded this "
                      "time; grade again", soft_wrap=True)
    console.print(f"Scores: {course.root / 'grades.csv'}   feedback: {course.root / 'feedback'}/",
                  soft_wrap=True)
    return 130 if stopped else 0


def say_warning() -> None:
    import getpass
    import sys

    from grader.execute import WARNING

    print("warning: " + WARNING % getpass.getuser(), file=sys.stderr)


def choose(course, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """(lab, student) pairs in the order of grading. Raises LabError."""
    from grader.course import require_known

    if arguments.all == bool(arguments.lab):
        raise LabError("name a LAB, or --all for all of them; there are: "
                       + (", ".join(course.labs()) or "none yet (lab build makes them)"))
    labs = [arguments.lab] if arguments.lab else course.labs()
    known = course.labs()
    if arguments.lab:
        require_known("lab", arguments.lab, known, f"{course.sources} or {course.root / 'source'}")
    for student in arguments.students:
        require_known("student", student, course.students(), str(course.root / "submitted"))
    work = [(lab, student) for lab in labs
            for student in arguments.students or course.students(lab)]
    if not work:
        which = arguments.lab or "LAB"
        raise LabError(f"nothing to grade: put each student's notebook at {course.root}/submitted/"
                       f"STUDENT/{which}/{which}.ipynb")
    return work


class progress:
    """A bar where there is a terminal, else nothing."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True,
                            disable=not Console(stderr=True).is_terminal)
        self.task = self.bar.add_task("grading", total=total)

    def __enter__(self):
        self.bar.__enter__()
        return lambda outcome: self.bar.update(
            self.task, advance=1, description=f"{outcome.lab} {outcome.student}")

    def __exit__(self, *error) -> None:
        self.bar.__exit__(*error)


def show(console, outcomes, rows, seconds: float) -> None:
    """The table at the end; below it, whoever is ungraded and what else to know."""
    from rich.markup import escape

    console.print(table(outcomes, rows))
    for one in outcomes:
        who = f"{escape(one.student)}, {one.lab}"
        lines = [f"ungraded: {who}: {escape(one.record.reason)}"] * (one.record.state == "ungraded")
        lines += [f"note: {who}: {escape(note)}" for note in one.record.notes]
        for line in lines:
            console.print(line, soft_wrap=True, highlight=False)
    console.print(f"{len(outcomes)} submissions in {seconds:.1f} s")


def table(outcomes, rows):
    """One line for every lab of the batch."""
    from rich.table import Table

    result = Table("lab")
    for name in ("graded", "ungraded", "mean", "of", "seconds"):
        result.add_column(name, justify="right")
    by_name = {(row.lab, row.student): row for row in rows}
    for lab in dict.fromkeys(outcome.lab for outcome in outcomes):
        mine = [outcome for outcome in outcomes if outcome.lab == lab]
        found = [by_name[lab, one.student] for one in mine if one.record.state == "graded"]
        scores = [row.score for row in found if row.score is not None]
        most = by_name[lab, mine[0].student].max_score
        result.add_row(lab, str(len(scores)), str(len(mine) - len(scores)),
                       f"{statistics.fmean(scores):.1f}" if scores else "-", f"{most:g}",
                       f"{sum(one.seconds for one in mine):.1f}")
    return result
