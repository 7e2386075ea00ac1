"""The trusted side of a check: its cell runs here, what it asks of the student runs in the sandbox.

A check sees what check-setup cells bound, and the student's names: copies where they hold plain
values, else proxies.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import io
import linecache
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from nbformat import NotebookNode

from grader import cleaning
from grader.run.lab_plan import PlannedCell
from grader.run.proxies import Function, Proxy, name_of
from grader.run.remote import Lost, Remote
from grader.run.timing import Budget, Late, limited
from labkit.build.names import analyse
from labkit.build.visible import hidden_lines
from labkit.check import wire
from labkit.check.checks import HIDDEN_FAILED
from labkit.check.sides import Raised, checking_on

MOST_PRINTED = 200_000  # characters that one check may print
GRACE = 0.5  # seconds that the channel's own deadline comes before the alarm
BUILTINS = frozenset(dir(builtins))


@dataclass
class Verdict:
    """What came of a check, or of a course's cell that ran here: exactly one of passed, failed (an
    exception of its own) and lost (why nothing can be said)."""

    outputs: list[NotebookNode] = field(default_factory=list)
    failed: Exception | None = None
    lost: str = ""
    late: bool = False  # the alarm rang

    @property
    def passed(self) -> bool:
        return self.failed is None and not self.lost


class Trusted:
    """The namespace of one submission on the trusted side."""

    def __init__(self, remote: Remote, answers: frozenset[str]) -> None:
        self.remote, self.answers = remote, answers
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        self.of_checks: dict[str, Any] = {}  # what earlier checks bound
        self.wanted: set[str] = set()  # names that the definitions of untagged cells use
        self.beginnings: set[str] = set()  # what they bind that answers bind or change, too

    def define(self, cell: PlannedCell, budget: Budget) -> None:
        """Make an untagged cell's definitions, those that can be made here."""
        with contextlib.suppress(Late), limited(budget.left()):
            for node in cell.trusted.body if cell.trusted else ():
                with contextlib.suppress(Exception):
                    exec(_compiled(ast.Module([node], []), cell), self.names)
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    self.beginnings |= self.answers & analyse(ast.Module([node], [])).binds.keys()
        if cell.names:
            self.wanted |= {use.name for use in cell.names.uses}

    def setup(self, cell: PlannedCell, budget: Budget) -> Verdict:
        """Run a check-setup cell."""
        return self._run(cell, self.names, budget, [])

    def check(self, cell: PlannedCell, budget: Budget) -> Verdict:
        """Run a check. It leaves behind what it bound for later checks, and nothing else."""
        before = dict(self.names)
        uses = {use.name for use in cell.names.uses} if cell.names else set()
        for name in self.beginnings:
            self.names.pop(name, None)
        try:
            return self._run(cell, self.names, budget,
                             sorted(uses | self.wanted | self.beginnings))
        finally:
            self.of_checks |= {name: value for name, value in self.names.items()
                               if name not in before and name_of(value) is None
                               and name in (cell.names.binds if cell.names else ())}
            self.names.clear()
            self.names |= before

    def _bind(self, name: str) -> None:
        """Give a check a name that nobody trusted binds."""
        if name in self.names or (name in BUILTINS and name not in self.answers):
            return
        if name in self.of_checks and name not in self.answers:
            self.names[name] = self.of_checks[name]
            return
        kind = self.remote.kind(name)
        if kind == "plain":
            try:
                value = self.remote.value(Proxy(name, self.remote))
            except wire.CannotCross:  # the guest says one thing and sends another
                value = Proxy(name, self.remote)
            self.names[name] = Proxy(name, self.remote) if isinstance(value, Raised) else value
        elif kind != "missing":
            self.names[name] = (Function if kind == "callable" else Proxy)(name, self.remote)

    def _make_repeatable(self, cell: PlannedCell) -> None:
        """A check that draws by itself draws the same at every grading."""
        seed = int.from_bytes(hashlib.sha256(f"{self.remote.seed}/{cell.name}".encode()).digest())
        random.seed(seed)
        np.random.seed(seed % 2**32)

    def _run(self, cell: PlannedCell, names: dict[str, Any], budget: Budget, needed: list[str]
             ) -> Verdict:
        verdict, printed = Verdict(), Printed()
        self._make_repeatable(cell)
        late, self.remote.lost, self.remote.unmeasured = [], None, ""
        try:
            with _capturing(printed), checking_on(self.remote), \
                    limited(budget.left() + GRACE) as late:
                for name in needed:
                    self._bind(name)
                exec(_compiled(cell.trusted, cell), names)
        except (Late, Lost):
            pass  # said below, also where the check swallowed it
        except MemoryError:
            verdict.lost = "the check itself ran out of memory"
        except (Exception, GeneratorExit) as error:  # SystemExit and Ctrl-C end the grader, not it
            verdict.failed = error if isinstance(error, Exception) else RuntimeError(repr(error))
        verdict.late = bool(late)
        verdict.lost = str(self.remote.lost or self.remote.unmeasured or verdict.lost
                           or ("out of time" if late else ""))
        verdict.outputs = printed.outputs()
        if verdict.failed is not None and not verdict.lost:
            verdict.outputs.append(shown(verdict.failed, cell))
        return verdict


class Printed(io.TextIOBase):
    """What a check prints; what is too much is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self.left = MOST_PRINTED

    def write(self, text: str) -> int:
        if self.left > 0 and text:
            self.pieces.append(text[:self.left])
            self.left -= len(self.pieces[-1])
            if self.left <= 0:
                self.pieces.append("\n[the rest of what this check printed was cut]\n")
        return len(text)

    def writable(self) -> bool:
        return True

    def outputs(self) -> list[NotebookNode]:
        text = cleaning.terminal("".join(self.pieces))
        return [cleaning.stream(text)] if text else []


@contextlib.contextmanager
def _capturing(printed: Printed) -> Iterator[None]:
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield


def _compiled(tree: ast.Module, cell: PlannedCell) -> Any:
    return compile(tree, _file(cell), "exec", dont_inherit=True, optimize=0)  # with its asserts


def _file(cell: PlannedCell) -> str:
    return f"<cell {cell.name}>"


def shown(error: Exception, cell: PlannedCell) -> NotebookNode:
    """The error output of a check, as a kernel has it; of what labkit.check says the text alone."""
    from labkit.check import Failed

    text = _text(error)
    if isinstance(error, Failed):
        lines = Failed(text)._render_traceback_()
    else:
        lines = [cleaning.terminal(line) for line in _traceback(error, cell)]
    return cleaning.error(type(error).__name__, text, lines)


def text_of(error: Exception) -> str:
    """Return what a failed check says, in one piece of text."""
    from labkit.check import Failed

    text = _text(error)
    return text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"


def text_for_students(error: Exception, cell: PlannedCell) -> str:
    """Return what a student may read of a failed check: of a hidden test only labkit.check's words.

    Args:
        error: what the check raised.
        cell: the check, or the part of one.
    """
    from labkit.check import Failed

    lines = {frame.lineno for frame in traceback.extract_tb(error.__traceback__)
             if frame.filename == _file(cell)}
    if not isinstance(error, Failed) and lines & hidden_lines(cell.source):
        return HIDDEN_FAILED
    return text_of(error)


def _text(error: Exception) -> str:
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text cannot be shown: {type(another).__name__})"
    return cleaning.terminal(text[:10_000])


def _traceback(error: Exception, cell: PlannedCell) -> list[str]:
    """From the check's own lines on; what of the grader is in between says nothing to students."""
    source = cell.source.splitlines(keepends=True)
    linecache.cache[_file(cell)] = (len(cell.source), None, source, _file(cell))
    try:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__, limit=50)
                  if frame.filename == _file(cell)]
        lines = ["Traceback (most recent call last):\n", *traceback.format_list(frames),
                 f"{type(error).__name__}: {str(error)[:10_000]}"]
        return "".join(lines).splitlines()
    finally:
        linecache.cache.pop(_file(cell), None)

