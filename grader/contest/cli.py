"""`lab contest collect`, `lab contest grade` and `lab contest table`: for instructors."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grader.commands import add_command, open_course, positive_count
from labcore.errors import LabError
from labkit.contest import catalog
from labkit.contest.cli import steps

if TYPE_CHECKING:
    from grader.contest.grading import Played
    from grader.course import Course
    from labkit.contest.declaration import Contest

COLLECT = """examples:
  lab contest collect pipelines submissions.zip     a Canvas or Moodle download
  lab contest collect pipelines files/ --as-is      STUDENT/pipelines.py

Takes one Python file per student into contests/NAME/STUDENT/, and keeps every version. Of a group
(`lab groups`), any member may submit: its best attempt is the group's row in the table."""
GRADE = """examples:
  lab contest grade pipelines                score every version that has no score yet

Students' files are taken from contests/NAME/STUDENT/FILE in the course folder. All students get the
same secret cases; docs/contests.md is the guide."""
TABLE = """examples:
  lab contest table pipelines                contest-results/pipelines/pipelines.html and .csv
  lab contest table pipelines --pseudonyms --to public/

With --pseudonyms, who.csv in contest-results/ maps students to pseudonyms. Keep it to yourself."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    collect = add_command(steps(subparsers), "collect", "collect students' submissions", COLLECT)
    collect.add_argument("contest", metavar="NAME", help="for example pipelines")
    collect.add_argument("source", type=Path, metavar="SOURCE", help="a folder, a zip, or a tar")
    collect.add_argument("--received", metavar="TIME",
                         help="time of receipt for all submissions, with its time zone")
    collect.add_argument("--as-is", action="store_true",
                         help="folder names are the students' ids, on the roster or not")
    collect.set_defaults(run=run_collect)
    grade = add_command(steps(subparsers), "grade", "score submissions on the secret cases", GRADE)
    grade.add_argument("contest", metavar="NAME", help="for example pipelines")
    grade.add_argument("--workers", type=positive_count, metavar="N",
                       help="submissions graded at a time (default: one per core)")
    grade.set_defaults(run=run_grade)
    table = add_command(steps(subparsers), "table", "write the ranking as HTML and CSV", TABLE)
    table.add_argument("contest", metavar="NAME", help="for example pipelines")
    table.add_argument("--pseudonyms", action="store_true", help="show pseudonyms, not names")
    table.add_argument("--to", type=Path, metavar="FOLDER", help="folder (contest-results/NAME)")
    table.set_defaults(run=run_table)


def run_collect(arguments: argparse.Namespace) -> int:
    from grader.collect.cli import show
    from grader.contest.collecting import collect
    from grader.course.times import now, parse_time

    contest = catalog.find(arguments.contest)
    received = parse_time(arguments.received, "--received") if arguments.received else None
    if received and received > now() + datetime.timedelta(minutes=5):
        raise LabError(f"--received {arguments.received!r} is in the future")
    lines = collect(open_course(), contest, arguments.source, received=received,
                    as_is=arguments.as_is)
    show(lines)
    if any(line.verdict != "refused" for line in lines):
        return 0
    print("lab: nothing was taken" + ("" if lines else f": no Python file in {arguments.source}"),
          file=sys.stderr)
    return 1


def run_grade(arguments: argparse.Namespace) -> int:
    from grader.contest import grading
    from labcore.terminal import visible
    from labkit.contest.table import explained

    contest, course = catalog.find(arguments.contest), open_course()
    unplayed = []

    def done(played: Played) -> None:
        attempt = played.attempt
        if attempt.reason:
            unplayed.append(played)
            print(visible(f"{played.student}: not played: {attempt.reason}"), flush=True)
            return
        lines = [f"{played.student}: {attempt.points:.2f} points"]
        lines += explained(one for one in attempt.outcomes if one.kind)
        print("\n    ".join(visible(line) for line in lines), flush=True)

    refused = grading.grade(course, contest, done, arguments.workers)
    for student, reason in refused.items():
        print(visible(f"{student}: refused: {reason}"))
    print(f"Attempts: {_results(course, contest)}/attempts; ranks: "
          f"lab contest table {contest.name}")
    return 1 if unplayed else 0


def _results(course: Course, contest: Contest) -> Path:
    from grader.contest.attempts import results

    return results(course, contest)


def run_table(arguments: argparse.Namespace) -> int:
    from grader.contest import page, secret
    from grader.contest.standings import standings, teams
    from labcore.atomic import write_atomic

    contest, course = catalog.find(arguments.contest), open_course()
    members = teams(course, contest)
    named = (secret.pseudonyms(course, members) if arguments.pseudonyms
             else _names(course, contest, members))
    rows = standings(course, contest, named, hide=arguments.pseudonyms)
    private = _results(course, contest)
    folder = arguments.to or private
    for one in (private, folder):
        one.mkdir(parents=True, exist_ok=True)
    stem = contest.name + "-pseudonyms" * arguments.pseudonyms
    write_atomic(folder / f"{stem}.html", page.page(contest, rows).encode(errors="replace"))
    write_atomic(folder / f"{stem}.csv", page.table(contest, rows).encode(errors="replace"))
    if arguments.pseudonyms:
        who = {one: named[owner] for owner, some in members.items() for one in some}
        write_atomic(private / "who.csv",
                     page.pseudonym_table(who).encode(errors="replace"), 0o600)
    students, ghosts = sum(map(len, members.values())), len(rows) - len(members)
    print(f"{students} students and {ghosts} ghosts: {folder / stem}.html and .csv"
          + (f"; who is who: {private / 'who.csv'}" if arguments.pseudonyms else ""))
    return 0


def _names(course: Course, contest: Contest, members: Mapping[str, Sequence[str]]
           ) -> dict[str, str]:
    """Return the names of the table's rows: a student's from the roster, or a group's with its
    members'."""
    from grader.contest.standings import roster_of
    from grader.contest.submissions import label
    from grader.course.groups import group_of

    names = {person.id: f"{person.name} ({person.id})" for person in roster_of(course)
             if person.name not in ("", person.id)}
    result = {}
    for owner, some in members.items():
        group = group_of(course, label(contest), owner)
        known = ", ".join(names.get(one, one) for one in some)
        result[owner] = f"{group.name}: {known}" if group else known
    return result
