"""Contents of a submission's folder other than a notebook, and names of the folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tests.attacks.attack import attack
from tests.attacks.course import LAB, RIGHT_DOUBLE, RIGHT_TRIPLE
from tests.attacks.rows.stages import FORGED_STAMP

RIGHT = {"double": RIGHT_DOUBLE, "triple": RIGHT_TRIPLE}
NAME = f"{LAB}.ipynb"


def links(folder: Path) -> None:
    source = folder.parents[2] / "source" / LAB / NAME
    (folder / "notes.txt").symlink_to(source)
    (folder / "users.txt").symlink_to("/etc/passwd")
    (folder / "all").symlink_to(folder.parents[2])


def linked_notebook(folder: Path) -> None:
    (folder / NAME).unlink()
    (folder / NAME).symlink_to(folder.parents[1] / "zoe" / LAB / NAME)


def linked_folder(folder: Path) -> None:
    (folder / NAME).unlink()
    folder.rmdir()
    folder.symlink_to(folder.parents[1] / "zoe" / LAB)


def hard_link(folder: Path) -> None:
    os.link(folder.parents[2] / "nbgrader_config.py", folder / "data.py")


def fifo(folder: Path) -> None:
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME)


def fifo_beside(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def listener(folder: Path) -> None:
    (folder / NAME).unlink()
    os.chdir(folder)  # a socket's path may have 107 bytes
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(NAME)


def a_folder(folder: Path) -> None:
    (folder / NAME).unlink()
    (folder / NAME).mkdir()
    (folder / NAME / "inner").write_text("")


def sparse(folder: Path) -> None:
    with open(folder / NAME, "r+b") as file:
        file.truncate(10_000_000_000)


def sparse_stamp(folder: Path) -> None:
    with open(folder / "timestamp.txt", "wb") as file:
        file.truncate(10_000_000_000)


def unreadable_stamp(folder: Path) -> None:
    (folder / "timestamp.txt").write_text("2026-01-31 12:00:00 UTC")
    (folder / "timestamp.txt").chmod(0)


def unreadable(folder: Path) -> None:
    (folder / NAME).chmod(0)


def closed(folder: Path) -> None:
    folder.chmod(0)


def closed_above(folder: Path) -> None:
    folder.parent.chmod(0)


def crowded(folder: Path) -> None:
    for number in range(3_000):
        (folder / f"{number}.txt").write_text("")


def deep(folder: Path) -> None:
    os.chdir(folder)
    for _ in range(300):
        os.mkdir("d" * 20)
        os.chdir("d" * 20)


def odd_names(folder: Path) -> None:
    for name in (b"a\nb", b"\x1b]0;pwned\x07", b"\xff\xfe", "\u202egpj".encode(), b"-rf", b"*"):
        with open(os.path.join(os.fsencode(folder), name), "w") as file:
            file.write("")


def stamp(folder: Path) -> None:
    (folder / "timestamp.txt").write_text(f"{FORGED_STAMP} 00:00:00 UTC")


def course_files(folder: Path) -> None:
    """The grader's own files, as a student's copy of the repository has them, edited."""
    for name in ("code/labkit/check/checks.py", "grader/run/attempt.py", "nbgrader_config.py"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('pwned')\ndef function(*a, **k): pass\n")


def named(row: str, name: str, title: str, **more):
    return attack(row, name, title, score=5.0, **RIGHT, **more)


ATTACKS = [
    attack("29", "links", "Links to the solution and to a file of the system", "leak",
           place=links, score=None, reason="link", small=True, **RIGHT),
    attack("29", "linked-notebook", "The notebook is a link to a peer's", score=None,
           reason="link", place=linked_notebook),
    attack("29", "linked-folder", "The folder is a link to a peer's", score=None,
           reason="link", place=linked_folder),
    attack("34", "stamps", "A forged timestamp.txt", "stamp", place=stamp, score=5.0, **RIGHT),
    attack("37", "=HYPERLINK(1)", "A name that is a formula", "formula", alone=True, score=5.0,
           **RIGHT),
    attack("41", "brings-checks", "The grader's files, edited, beside the notebook",
           place=course_files, score=5.0, **RIGHT),
    attack("f1", "hard-link", "A hard link to a file of the course", place=hard_link, score=5.0,
           may_end=True, **RIGHT),
    attack("f2", "fifo", "A pipe in the notebook's place", place=fifo, score=None),
    attack("f2", "fifo-beside", "A pipe beside the notebook", place=fifo_beside, score=5.0,
           may_end=True, **RIGHT),
    attack("f3", "socket", "A socket in the notebook's place", place=listener, score=None),
    attack("f4", "a-folder", "A folder in the notebook's place", place=a_folder, score=None),
    attack("f5", "sparse", "A sparse file of 10 GB", place=sparse, score=None, reason="MB"),
    attack("f5", "sparse-stamp", "A timestamp.txt of 10 GB", place=sparse_stamp, score=5.0,
           may_end=True, **RIGHT),
    attack("f6", "unreadable-stamp", "A timestamp.txt that nobody may read",
           place=unreadable_stamp, score=5.0, may_end=True, **RIGHT),
    attack("f6", "unreadable", "A file that nobody may read", place=unreadable, score=5.0,
           may_end=True, **RIGHT),
    attack("f6", "closed", "A folder that nobody may open", place=closed, score=5.0,
           may_end=True, small=True, **RIGHT),
    attack("f6", "closed-above", "A student's folder that nobody may open", place=closed_above,
           score=5.0, may_end=True, **RIGHT),
    attack("f7", "crowded", "3,000 files beside the notebook", place=crowded, score=5.0,
           may_end=True, **RIGHT),
    attack("f8", "deep-folders", "300 folders in one another", place=deep, score=5.0,
           may_end=True, **RIGHT),
    attack("f9", "odd-names", "File names with line ends, escapes and no UTF-8",
           place=odd_names, score=5.0, may_end=True, **RIGHT),
    named("f10", "-rf", "A name like a flag"),
    named("f10", "*", "A name like a pattern"),
    named("f10", "[bold red]{x}%s$HOME`id`", "A name with the marks of other languages"),
    named("f10", "a b\tc", "A name with blanks and a tab"),
    named("f10", "line\nend", "A name with a line end", may_end=True),
    named("f10", "\x1b[2J\x1b]0;pwned\x07", "A name with terminal escapes", may_end=True),
    named("f10", "\u202eavob", "A name with a bidirectional mark", may_end=True),
    named("f10", "l" + "o" * 200 + "ng", "A name of 203 letters"),
    named("f10", "<script>pwned()<", "A name with markup"),
    named("f10", "'; DROP TABLE grade; --", "A name with SQL"),
    named("f10", "Ada", "A name that differs from another's by case"),
]
