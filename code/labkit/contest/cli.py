"""`lab contest`: the list of contests, and one subcommand per contest, which scores a file.

Where the grader is installed, it adds subcommands for instructors to the same parser: see `steps`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from labcore.errors import LabError
from labkit.contest import catalog

EXAMPLES = """examples:
  lab contest                          the contests
  lab contest pipelines                its rules, and what the ghosts score
  lab contest pipelines pipelines.py   what your file scores on the open cases

docs/contests.md is the guide."""
LARGEST = 200_000  # bytes, for a submitted file


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    raw = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = subparsers.add_parser("contest", help="score your function against published ones",
                                   epilog=EXAMPLES, **raw)
    parser.set_defaults(run=run_list)
    parser.steps = parser.add_subparsers(metavar="NAME")
    for name in catalog.names():
        step = parser.steps.add_parser(name, help="a contest: score a file, or see its rules",
                                       epilog=EXAMPLES, **raw)
        step.add_argument("file", nargs="?", type=Path, metavar="FILE", help="your Python file")
        step.set_defaults(run=run_contest, contest=name)


def steps(subparsers: argparse._SubParsersAction) -> argparse._SubParsersAction:
    """Return the parser object to which further subcommands of `lab contest` are added.

    Args:
        subparsers: the subparsers of `lab`.
    """
    return subparsers.choices["contest"].steps


def run_list(arguments: argparse.Namespace) -> None:
    for name in catalog.names():
        contest = catalog.find(name)
        cases = len(contest.open_cases())
        print(f"{name}: {contest.title}\n    {contest.file}: {contest.entry}(case); {cases} open "
              f"cases; ghosts: {', '.join(ghost.name for ghost in contest.ghosts)}")


def run_contest(arguments: argparse.Namespace) -> None:
    """Run `lab contest NAME`. Raises LabError for a file that cannot be scored at all."""
    from labkit.contest import local, play
    from labkit.contest.table import show

    contest = catalog.find(arguments.contest)
    if arguments.file is not None:
        require_readable(arguments.file)
    cases = contest.open_cases()
    players: dict[str, Any] = {}
    if arguments.file is None:
        print(contest.rules + "\n")
        for group in contest.groups:
            print(f"{group.name}: {group.title}")
        print()
    else:
        with local.LocalPlayer(contest, arguments.file) as player:
            players[arguments.file.name] = play.play(contest, cases, player.ask)
    mine = next(iter(players), None)
    show(contest, players | play.ghosts(contest, cases), mine)


def require_readable(path: Path) -> None:
    """Raise LabError for a file that the grader would refuse, too."""
    try:
        content = path.read_bytes()
    except OSError as error:
        near = sorted(other.name for other in path.parent.glob("*.py"))[:5]
        raise LabError(f"{path}: {error.strerror}"
                       + (f"; nearby: {', '.join(near)}" if near else "")) from error
    if problem := problem_of(content):
        raise LabError(f"{path}: {problem}")


def problem_of(content: bytes) -> str:
    """Return why a file cannot be played, or an empty string."""
    if len(content) > LARGEST:
        return f"{len(content):,} bytes are too many; the limit is {LARGEST:,}"
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 (byte {error.start:,}); save it as UTF-8"
    return "it contains a null byte" if "\0" in text else ""
