"""Find an author's own labs, in a folder outside the checkout.

The folder is laid out like the checkout: solutions/ for the sources, notebooks/ and grader/source/
for the generated notebooks, images/ for figures, and code/jobs/ for job scripts. It is set with
`--labs DIR` or the environment variable LAB_LABS.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from labcore.errors import LabError
from labcore.workspace import CHECKOUT

VARIABLE = "LAB_LABS"


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option --labs to a command."""
    parser.add_argument("--labs", type=Path, metavar="DIR", dest="folder",
                        help="a folder with labs of your own ($LAB_LABS; without it, the course's)")


def resolve_folder(given: Path | None) -> Path | None:
    """Return the folder of an author's own labs, or None to use the checkout's labs only.

    It also sets the variable, so that child processes use the same folder.

    Args:
        given: the value of --labs; if None, the variable's value is used.

    Raises:
        LabError: the folder does not exist.
    """
    text = str(given) if given is not None else os.environ.get(VARIABLE, "")
    if not text:
        return None
    folder = Path(text).expanduser().absolute()
    name = "--labs" if given is not None else VARIABLE
    if not folder.is_dir():
        raise LabError(f"{name} {text}: no such folder; `lab new 20_mine --labs {text}` creates it "
                       "with a first lab")
    os.environ[VARIABLE] = str(folder)
    return None if _is_checkout(folder) else folder


def folder() -> Path | None:
    """Return the folder that LAB_LABS names, whether or not it exists."""
    if not os.environ.get(VARIABLE):
        return None
    named = Path(os.environ[VARIABLE]).expanduser().absolute()
    return None if _is_checkout(named) else named


def _is_checkout(folder: Path) -> bool:
    return folder.resolve() == CHECKOUT
