"""`lab second`: a second grader for a sample of the written answers."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from grader.commands import add_command, open_course, require_lab

EXAMPLES = """examples:
  lab second 03_multi_node --share 0.2   draw a fifth of the answers that were graded by hand
  lab second 03_multi_node               compare the second grader's scores with the first's

The sample is in second/LAB/ of the course folder: answers.html to read, scores.csv to fill in.
Neither contains names or first scores. No grade changes; change grades in formgrader."""
MOST_LISTED = 20


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(
        subparsers, "second", "let a second grader score a sample of written answers", EXAMPLES)
    parser.add_argument("lab", metavar="LAB", help="for example 03_multi_node")
    parser.add_argument("--share", type=_share, metavar="S",
                        help="draw this share of the graded answers, more than 0 and at most 1")
    parser.set_defaults(run=run)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text}: give a number above 0 and at most 1, such as "
                                         "0.2 for a fifth")
    return share


def run(arguments: argparse.Namespace) -> int:
    from grader.gradebook.records import gradebook
    from grader.written import second
    from labcore.errors import LabError

    course, lab = open_course(), arguments.lab
    require_lab(course, lab)
    with course.entering(), gradebook(course) as book:
        answers = second.graded_by_hand(course, book, lab)
        if not answers:
            raise LabError(f"{lab} has no written answer that was graded by hand: "
                           "`lab formgrader`, then Manual Grading")
        folder = second.folder(course, lab)
        if arguments.share is not None:
            lines, new = second.add(course, lab, answers, arguments.share)
            print(f"{new} answers drawn of {len(answers)} that were graded by hand; "
                  f"{len(lines)} in all\nRead {folder / 'answers.html'}, "
                  f"and fill in `score` in {folder / 'scores.csv'}")
            return 0
        if not second.read(course, lab):
            raise LabError(f"no answers of {lab} were drawn: lab second {lab} --share 0.2")
        pairs, waiting, dropped = second.pairs(course, lab, answers)
    _show(pairs, waiting, dropped)
    print(f"Both scores: {folder / 'agreement.csv'}")
    return 0


def _show(pairs: Sequence[Any], waiting: int, dropped: int) -> None:
    from rich.console import Console
    from rich.table import Table

    from grader.written.agreement import FEW, agreement
    from labcore.terminal import visible

    table = Table("answer", "points", "both scored", "mean difference", "second - first", "kappa")
    for cell in sorted({pair.cell for pair in pairs}):
        cell_pairs = [pair for pair in pairs if pair.cell == cell]
        one = agreement(cell_pairs)
        kappa = "-" if one.kappa is None else f"{one.kappa:.2f}" + " (few)" * (one.count < FEW)
        table.add_row(visible(cell), f"{cell_pairs[0].points:g}", str(one.count),
                      f"{one.mean_difference:.2f}", f"{one.bias:+.2f}", kappa)
    console = Console()
    if pairs:
        console.print(table)
    differing = sorted((pair for pair in pairs if pair.difference), key=lambda pair: (
        -abs(pair.difference) / pair.points, pair.answer))
    for pair in differing[:MOST_LISTED]:
        print(visible(f"apart: {pair.student}, {pair.cell}: {pair.first:g} and {pair.second:g} "
                        f"of {pair.points:g}" + f" ({pair.comment})" * bool(pair.comment)))
    if len(differing) > MOST_LISTED:
        print(f"and {len(differing) - MOST_LISTED} more, in agreement.csv")
    if waiting:
        print(f"{waiting} without a score in scores.csv")
    if dropped:
        print(f"{dropped} left out: submitted again, or no longer graded by hand")
