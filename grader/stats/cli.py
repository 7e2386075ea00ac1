"""`lab stats`."""

from __future__ import annotations

import argparse
from pathlib import Path

from grader.commands import add_command, open_course
from labcore.errors import LabError
from labcore.imports import imports_without_gc

EXAMPLES = """examples:
  lab stats 03_multi_node                        writes stats/03_multi_node.html, in the course
  lab stats 03_multi_node --to /tmp/lab3.html    and lab3.csv and lab3-hints.csv beside it

Reports how hard each exercise was, how well it distinguished students, and which hints fired. It
reads the results that `lab grade` stored, grades nothing, and names no student."""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(
        subparsers, "stats", "report which exercises were hard and which hints fired", EXAMPLES)
    parser.add_argument("lab", metavar="LAB", help="for example 03_multi_node")
    parser.add_argument("--to", type=Path, metavar="FILE",
                        help="the page, a name that ends in .html (stats/LAB.html, in the course)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    with imports_without_gc():
        from grader.course import require_known
        from grader.stats.figures import figures
        from grader.stats.page import exercises_csv, hints_csv, page
        from grader.stats.reading import read
        from labcore.atomic import write_atomic

    course = open_course()
    require_known("lab", arguments.lab, course.labs(), str(course.sources))
    path = arguments.to or course.root / "stats" / f"{arguments.lab}.html"
    if path.suffix != ".html":
        raise LabError(f"--to {path}: give the page a name that ends in .html, for example "
                       f"{path.with_suffix('.html')}; the CSV files are written beside it")
    if arguments.to and not path.absolute().parent.is_dir():
        raise LabError(f"--to {path}: there is no folder {path.absolute().parent}")
    results = figures(read(course, arguments.lab))
    path.parent.mkdir(parents=True, exist_ok=True)
    for place, text in ((path, page(results)), (path.with_suffix(".csv"), exercises_csv(results)),
                        (path.with_name(f"{path.stem}-hints.csv"), hints_csv(results))):
        write_atomic(place, text.encode())
    print(f"{results.submissions} submissions, {results.graded} graded; {len(results.exercises)} "
          f"exercises: {path}, and as CSV beside it")
    return 0
