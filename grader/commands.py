"""Helpers of the commands. Every `lab` command imports this module, so keep it light."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from labcore import own_labs

if TYPE_CHECKING:
    from grader.course import Course


def add_command(subparsers: argparse._SubParsersAction, name: str, purpose: str,
                epilog: str = "") -> argparse.ArgumentParser:
    """Add the parser of a command for instructors.

    Args:
        subparsers: where it goes.
        name: the command's name.
        purpose: what it does, for the list of commands.
        epilog: examples and hints, shown as they are written.
    """
    return subparsers.add_parser(name, help=f"for instructors: {purpose}", epilog=epilog,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)


def positive_count(text: str) -> int:
    """Parse a number of workers: an integer of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: give 1 or more")
    return int(text)


def open_course() -> Course:
    """Lay out the course folder and check its nbgrader_config.py. Raises LabError."""
    from grader.course import Course, default_root

    course = Course(default_root())
    course.make()
    course.settings()
    return course


def require_lab(course: Course, lab: str) -> None:
    """Raise LabError, naming the nearest lab, unless the course has this one.

    Args:
        course: the course.
        lab: the lab's name.
    """
    from grader.course import require_known

    own = own_labs.folder()
    require_known("lab", lab, course.labs(), f"{course.sources} or {course.root / 'source'}"
                  + (f" or {own / 'grader' / 'source'}" if own else ""))
