"""Install the course's own version of a piece at the student's request."""

from __future__ import annotations

from pathlib import Path

from lab.mytrainer.pieces import FOLDER, Piece
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError

WORKED_FOLDER = Path("notebooks/worked") / FOLDER  # generated from the labs by `lab build`


def install(piece: Piece, force: bool) -> list[str]:
    """Copy the worked version of a piece into the workspace, and return messages for the student.

    Args:
        piece: the piece to install.
        force: whether to replace the student's own file, after backing it up.

    Raises:
        LabError: there is no worked version, or the file exists and `force` is false.
    """
    source = workspace.CHECKOUT / WORKED_FOLDER / piece.path.name
    if not source.exists():
        raise LabError(f"--worked {piece.name}: this installation has no worked version of "
                       f"{piece.shown} ({source} does not exist)")
    content, lines = source.read_bytes(), []
    workspace.require_writable(piece.path.parent)
    if piece.path.exists():
        own = piece.path.read_bytes()
        if own == content:
            return [f"{piece.shown} is already the worked version"]
        if not force:
            raise LabError(f"--worked {piece.name}: {piece.shown} is your own file; add --force to "
                           "replace it (a backup is kept)")
        backup = unused_name(piece.path)
        write_atomic(backup, own)
        lines = [f"your version is now {FOLDER}/{backup.name}"]
    write_atomic(piece.path, content)
    return [*lines, f"{piece.shown} is now the worked version"]


def unused_name(path: Path) -> Path:
    """Return the first of NAME.mine.py, NAME.mine2.py, ... that does not exist."""
    number = 1
    while True:
        backup = path.with_name(f"{path.stem}.mine{number if number > 1 else ''}{path.suffix}")
        if not backup.exists():
            return backup
        number += 1
