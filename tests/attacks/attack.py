"""An attack: a student's submission, and the harms that it must not do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = "@ROOT@"  # stands in a program for the course folder, which strangers may well know

# What may come of an attack; tests/attacks/harms.py finds each.
SCORE = "score"  # more points than were earned
LOST = "lost"  # fewer points than were earned, or none
INVENTED = "invented"  # a score where nothing could be graded
PEERS = "peers"  # another student has another score, or none
LEAK = "leak"  # of tests, solutions or peers' work, into what the student gets back
FEEDBACK = "feedback"  # hidden tests on the feedback page
ORACLE = "oracle"  # hidden arguments on the feedback page
FILES = "files"  # of the course were changed, or new ones made
SUBMITTED = "submitted"  # somebody's submission was changed
PROCESSES = "processes"  # outlived the grading
NETWORK = "network"  # somebody outside was reached
SIZE = "size"  # of what is kept of one student
SCRIPT = "script"  # runs in the browser of whoever reads the page
FORMULA = "formula"  # in a table that a spreadsheet opens
TIME = "time"  # one submission held up the batch
STAMP = "stamp"  # a time of receipt that the student chose
LIMIT = "limit"  # more memory, processes or files than a submission may take
TERMINAL = "terminal"  # escape sequences on the instructor's terminal

Notebook = dict[str, Any]


@dataclass(frozen=True)
class Attack:
    """One row. `double` and `triple` are the sources of the two answer cells."""

    row: str  # of the table of docs/attacks.md
    name: str  # of the student who tries it
    title: str
    double: str = "def double(x):\n    return 0"
    triple: str = "def triple(x):\n    return 0"
    job: str = ""  # a third answer, that only ours asks for
    rounds: str = ""  # a fourth one, on which a check's own loop depends; ours alone has it, too
    parted: str = ""  # a fifth one, whose check gives partial credit; ours alone has it, too
    bubble: str = ""  # a sixth one, whose answer the trainer has, masked; ours alone has it, too
    ranked: str = ""  # a seventh one, which runs on ranks; a course of ours has it, too
    change: Callable[[Notebook], Any] | None = None  # of the submitted notebook
    place: Callable[[Path], Any] | None = None  # what else is put into the submitted folder
    first: tuple[str, str] | None = None  # answers that were handed in and graded before
    stock: str = "-"  # W: it wins there; P: partly; S: stock withstands it; -: was not tried there
    harms: frozenset[str] = field(default=frozenset())  # that the control must do there
    alone: bool = False  # what it does to stock cannot be told from what others do
    score: float | None = 0.0  # that it earned; None: it cannot be graded
    most: float | None = None  # where more than `score` would be honest, too
    may_end: bool = False  # it may end its own sandbox, and is ungraded then
    remains: frozenset[str] = frozenset()  # harms that ours does not prevent
    reason: str = ""  # of being ungraded by ours: words from it
    small: bool = False  # also in make test


def attack(row: str, name: str, title: str, harms: str = "", **more: Any) -> Attack:
    """`harms`: names with blanks between; where there are any, stock loses."""
    more.setdefault("stock", "W" if harms else "-")
    return Attack(row, name, title, harms=frozenset(harms.split()), **more)
