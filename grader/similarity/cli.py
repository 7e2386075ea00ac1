"""`lab similar`: find submissions that look alike."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from grader.commands import add_command
from labcore.errors import LabError
from labcore.imports import imports_without_gc

MOST_SHOWN = 20  # submissions that were left out, on the terminal
EXAMPLES = """examples:
  lab similar 03_multi_node                        writes similar/03_multi_node.html
  lab similar 03_multi_node --over 80 --to alike.html
  lab similar 03_multi_node --with ../course-2025/submitted

Compares the students' own answers with each other, with the worked solution, and with earlier
submissions, ignoring the text of the release. It names groups to look at; it proves
nothing and changes no grade."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, "similar", "find submissions that look alike", EXAMPLES)
    parser.add_argument("lab", metavar="LAB")
    parser.add_argument("--over", type=float, default=60, metavar="PERCENT",
                        help="least similarity to report (60)")
    parser.add_argument("--with", type=Path, action="append", default=[], dest="earlier",
                        metavar="FOLDER", help="also compare with these submissions, of last year "
                        "say: a folder like submitted/, or a zip or tar of one (may be repeated)")
    parser.add_argument("--to", type=Path, metavar="FILE", help="the page (similar/LAB.html)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from grader.course import Course, default_root, require_known
        from grader.similarity.page import page
        from grader.similarity.reading import SubmissionReader, counted
        from grader.similarity.report import report
        from labcore.atomic import write_atomic

    if not 0 <= arguments.over <= 100:
        raise LabError(f"--over {arguments.over:g}: give a percentage from 0 to 100")
    course = Course(default_root())
    course.make()
    require_known("lab", arguments.lab, course.labs(), str(course.sources))
    reader = SubmissionReader(course, arguments.lab)
    earlier, left_out = {}, {}
    for folder in arguments.earlier:
        submissions = reader.earlier(folder)
        earlier |= {f"{folder}: {who}": one for who, one in submissions.students.items()}
        left_out |= {f"{folder}: {who}": why for who, why in submissions.left_out.items()}
    ours = reader.of_class()
    left_out = ours.left_out | left_out
    findings = report(arguments.lab, ours.students, arguments.over / 100, worked=reader.worked(),
                      earlier=earlier, left_out=left_out)
    path = arguments.to or course.root / "similar" / f"{arguments.lab}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page(findings).encode(errors="replace"))
    _left_out(left_out)
    in_groups = sum(len(group.students) for group in findings.groups)
    print(f"{counted(findings.count, 'submission')}: {counted(len(findings.groups), 'group')} with "
          f"{in_groups} students over {arguments.over:g}% alike, "
          f"{counted(findings.across_count, 'pair')} across groups, {len(findings.worked)} like "
          f"the worked solution (median similarity of all pairs: {findings.median:.0%})")
    if earlier:
        students = {pair.one for pair in findings.earlier}
        print(f"{counted(len(earlier), 'earlier submission')}: "
              f"{counted(len(students), 'student')} over "
              f"{arguments.over:g}% like one of them")
    print(path)
    return 0


def _left_out(left_out: dict[str, str]) -> None:
    from labcore.terminal import visible

    for student, reason in list(left_out.items())[:MOST_SHOWN]:
        print(visible(f"left out: {student}: {reason}"), file=sys.stderr)
    if len(left_out) > MOST_SHOWN:
        print(f"left out: and {len(left_out) - MOST_SHOWN} more, which the page names",
              file=sys.stderr)
