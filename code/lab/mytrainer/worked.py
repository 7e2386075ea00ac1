"""Install a piece at the student's request: the course's version, or the student's extended one."""

from __future__ import annotations

from pathlib import Path

from lab.mytrainer.pieces import FOLDER, Piece
from labcore import workspace
from labcore.atomic import write_atomic
from labcore.errors import LabError

WORKED_FOLDER = Path("notebooks/worked") / FOLDER  # generated from the labs by `lab build`
WRITE = ("You write {0.shown} in {0.lab}: do that exercise first, or ask your instructor for the "
         "file.")


def install(piece: Piece, force: bool) -> list[str]:
    """Copy the worked version of a piece into the workspace, and return messages for the student.

    Args:
        piece: the piece to install; an extended version takes the place of what it extends.
        force: whether to replace the student's own file, after backing it up.

    Raises:
        LabError: there is no worked version, or the file exists and `force` is false.
    """
    source = source_of(piece)
    if not source.exists():
        raise LabError(f"--worked {piece.name}: this installation has no worked version of "
                       f"{piece.shown} ({source} does not exist). {WRITE.format(piece)}")
    target, content = piece.target, source.read_bytes()
    if target.path.exists() and target.path.read_bytes() != content and not force:
        raise LabError(f"--worked {piece.name}: {target.shown} is your own file; add --force to "
                       "replace it (a backup is kept)")
    return replace(target, content, "the worked version")


def install_or_explain(piece: Piece) -> list[str]:
    """Install a piece that the student lacks, and return messages; without a worked version, say
    what to do instead."""
    if source_of(piece).exists():
        return install(piece, force=False)
    return [f"{piece.shown} is missing, and this course has no worked version of it. "
            + WRITE.format(piece)]


def source_of(piece: Piece) -> Path:
    return workspace.CHECKOUT / WORKED_FOLDER / f"{piece.name}.py"


def adopt(piece: Piece) -> list[str]:
    """Replace a piece by the student's extended version, if that works, and return messages.

    Args:
        piece: the extended version.

    Raises:
        LabError: it does not exist or does not work; then nothing has changed.
    """
    from lab.mytrainer import pieces, selfcheck

    target = piece.target
    if pieces.load(piece.name) is None:
        raise LabError(f"--adopt {target.name}: {piece.shown} does not exist; you write it in "
                       f"{piece.lab}")
    if problem := selfcheck.problem(piece):
        raise LabError(f"--adopt {target.name}: {problem}; {target.shown} is unchanged")
    return replace(target, piece.path.read_bytes(), f"a copy of {piece.shown}, which works on "
                   f"{selfcheck.RANKS} ranks")


def replace(piece: Piece, content: bytes, what: str) -> list[str]:
    """Write a piece, after backing up a file that differs, and return messages.

    Args:
        piece: the piece to write.
        content: its new content.
        what: description of the new content.
    """
    lines = []
    workspace.require_writable(piece.path.parent)
    if piece.path.exists():
        own = piece.path.read_bytes()
        if own == content:
            return [f"{piece.shown} is already {what}"]
        backup = unused_name(piece.path)
        write_atomic(backup, own)
        lines = [f"your version is now {FOLDER}/{backup.name}"]
    write_atomic(piece.path, content)
    return [*lines, f"{piece.shown} is now {what}"]


def unused_name(path: Path) -> Path:
    """Return the first of NAME.mine.py, NAME.mine2.py, ... that does not exist."""
    number = 1
    while True:
        backup = path.with_name(f"{path.stem}.mine{number if number > 1 else ''}{path.suffix}")
        if not backup.exists():
            return backup
        number += 1
