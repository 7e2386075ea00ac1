"""`lab new`: write a complete small lab to start from."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from labcore import own_labs, workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError

TEMPLATE = Path(__file__).with_name("template.py.txt")
TITLE = "THE TITLE"


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    new = subparsers.add_parser("new", help="for authors: a new lab, with an exercise of each kind")
    new.add_argument("lab", metavar="NAME", help="for example 20_batches")
    own_labs.add_option(new)
    new.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.folder is not None:
        _make_folder(arguments.folder)
    own = own_labs.resolve_folder(arguments.folder)
    path = write(own or workspace.CHECKOUT, arguments.lab)
    where = f" --labs {arguments.folder}" if arguments.folder else ""
    print(f"{path}: one exercise of each kind; keep what you need\n"
          f"Next: lab build {path.stem}{where}")
    return 0


def write(root: Path, name: str) -> Path:
    """Write the source of a new lab and return its path.

    Args:
        root: a folder laid out like the checkout; solutions/ is created in it if needed.
        name: the lab's name, such as 20_batches.

    Raises LabError if the name is invalid, or if its name or number is taken.
    """
    from labkit.build.reading import NUMBER

    name = name.removesuffix(".py")
    folders = {root / "solutions", workspace.CHECKOUT / "solutions"}
    taken = {path.stem: path for folder in folders for path in folder.glob("[0-9][0-9]_*.py")}
    if not NUMBER.fullmatch(name):
        raise LabError(f"{name!r} is not a lab name: two digits, _, then lowercase letters, "
                       f"digits, or _; nearest: {_nearest(name, taken)}")
    for other, path in taken.items():
        if other[:2] == name[:2]:
            raise LabError(f"{name}: {path} already has the number {name[:2]}; free: "
                           f"{_nearest(name[3:], taken)}")
    path = root / "solutions" / f"{name}.py"
    title = name[3:].replace("_", " ").strip().capitalize() or name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, TEMPLATE.read_text().replace(TITLE, title).encode())
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _nearest(name: str, taken: dict[str, Path]) -> str:
    """Return an unused name similar to `name`."""
    numbers = {int(other[:2]) for other in taken}
    name = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    given = re.match(r"(\d{1,2})_?(.*)", name)
    start, words = (int(given[1]), given[2]) if given else (20, name)
    number = next(n for n in [*range(start, 100), *range(100)] if n not in numbers)
    return f"{number:02d}_{words or 'mine'}"


def _make_folder(folder: Path) -> None:
    try:
        folder.expanduser().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"--labs {folder} cannot be created: {error.strerror}") from error
