"""Labs of an author's own, in a folder outside the checkout.

The folder is laid out as the checkout is: solutions/ for the sources; notebooks/ and
grader/source/ for what `lab build` makes of them; images/ and code/jobs/ for what they show and
submit. `--labs DIR` names it, or the variable LAB_LABS does.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from lab.errors import LabError
from lab.workspace import CHECKOUT

VARIABLE = "LAB_LABS"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Give a command the option --labs."""
    parser.add_argument("--labs", type=Path, metavar="DIR", dest="folder",
                        help="a folder with labs of your own ($LAB_LABS; without it, the course's)")


def chosen(given: Path | None) -> Path | None:
    """Return the folder with an author's own labs, or None where only the checkout's are meant.

    Args:
        given: what --labs says; None: what the variable says.

    Sets the variable, so that processes started later know the folder. Raises LabError if there is
    no such folder.
    """
    text = str(given) if given is not None else os.environ.get(VARIABLE, "")
    if not text:
        return None
    folder = Path(text).expanduser().absolute()
    name = "--labs" if given is not None else VARIABLE
    if not folder.is_dir():
        raise LabError(f"{name} {text}: there is no such folder; `lab new 20_mine --labs {text}` "
                       "makes one with a first lab in it")
    os.environ[VARIABLE] = str(folder)
    return None if _is_checkout(folder) else folder


def folder() -> Path | None:
    """Return the folder that LAB_LABS names, whether or not it is there."""
    if not os.environ.get(VARIABLE):
        return None
    named = Path(os.environ[VARIABLE]).expanduser().absolute()
    return None if _is_checkout(named) else named


def _is_checkout(folder: Path) -> bool:
    return folder.resolve() == CHECKOUT
