"""`lab similar`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lab.errors import LabError

EXAMPLES = """examples:
  lab similar 03_multi_node                        writes similar/03_multi_node.html
  lab similar 03_multi_node --over 80 --to alike.html

Compares the students' own answers, without the text they were given. It names pairs to look at; it
proves nothing and changes no grade."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "similar", help="for instructors: whose answers look alike", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", metavar="LAB")
    parser.add_argument("--over", type=float, default=60, metavar="PERCENT",
                        help="pairs that are more alike than that (60)")
    parser.add_argument("--to", type=Path, metavar="FILE", help="(similar/LAB.html, in the course)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from grader.course import Course, default_root, require_known
    from grader.similar import pairs
    from grader.similar_page import page
    from lab.workspace import put_whole

    if not 0 <= arguments.over <= 100:
        raise LabError(f"--over {arguments.over:g}: it is from 0 to 100")
    course = Course(default_root())
    course.make()
    require_known("lab", arguments.lab, course.labs(), str(course.sources))
    students, left_out = answers_of(course, arguments.lab)
    found, median = pairs(students, arguments.over / 100)
    path = arguments.to or course.root / "similar" / f"{arguments.lab}.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    put_whole(path, page(arguments.lab, found, median, students).encode(errors="replace"))
    for student, reason in left_out.items():
        print(f"left out: {student}: {reason}")
    print(f"{len(students)} students, {len(found)} pairs over {arguments.over:g} % (half of all "
          f"pairs are above {median:.0%}): {path}")
    return 0


def answers_of(course: Any, lab: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(answers by student, reasons by student who is left out). Raises LabError without a release:
    what students were given must not count."""
    import nbformat
    from nbgrader import utils

    from grader.rebuild import read_submitted, rebuild
    from grader.records import Unusable
    from grader.similar import Answers

    released = course.notebook("release", lab)
    if not released.is_file():
        raise LabError(f"{released} is not there yet: `lab grade {lab}` makes it")
    release = nbformat.read(released, as_version=4)

    def sources(notebook: Any) -> dict[str, str]:
        return {cell.metadata.nbgrader.grade_id: cell.source for cell in notebook.cells
                if utils.is_solution(cell)}

    given = sources(release)
    students, left_out = {}, {}
    for student in course.students(lab):
        try:
            own = rebuild(release, read_submitted(course.notebook("submitted", lab, student)))[0]
        except Unusable as error:
            left_out[student] = str(error)
        else:
            students[student] = Answers.of(sources(own), given)
    return students, left_out
