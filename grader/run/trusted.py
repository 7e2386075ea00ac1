"""The trusted side of a check: its cell runs here, and the student's functions run in the sandbox.

A check sees the names bound by check-setup cells and the student's names: copies of plain values,
and proxies for everything else.
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
from grader.run.remote import Remote, SandboxLost
from grader.run.timing import Budget, TimeLimitReached, limited
from labkit.build.visible import hidden_lines
from labkit.cells import Role
from labkit.check import checks, wire
from labkit.check.checks import HIDDEN, HIDDEN_FAILED
from labkit.check.sides import Raised, checking_on
from labkit.names import analyse

MOST_PRINTED = 200_000  # characters that one check may print
GRACE = 0.5  # seconds that the channel's own deadline comes before the alarm
BUILTINS = frozenset(dir(builtins))


@dataclass
class Verdict:
    """The verdict on a check or a trusted course cell: exactly one of passed, failed, and lost.

    Attributes:
        failed: the exception that the cell raised.
        lost: why the check could not be decided.
        late: whether the time limit was reached.
    """

    outputs: list[NotebookNode] = field(default_factory=list)
    failed: Exception | None = None
    lost: str = ""
    late: bool = False

    @property
    def passed(self) -> bool:
        return self.failed is None and not self.lost


class TrustedNamespace:
    """The namespace of one submission on the trusted side."""

    def __init__(self, remote: Remote, answers: frozenset[str]) -> None:
        self.remote, self.answers = remote, answers
        self.names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        self.bound_by_checks: dict[str, Any] = {}  # what earlier checks bound
        self.definition_uses: set[str] = set()  # names that the definitions of untagged cells use
        self.overridable: set[str] = set()  # what they bind that answers bind or change, too

    def define(self, cell: PlannedCell, budget: Budget) -> None:
        """Evaluate an untagged cell's definitions, as far as they work on the trusted side.

        Args:
            cell: the cell.
            budget: the time left.
        """
        with contextlib.suppress(TimeLimitReached), limited(budget.left()):
            for node in cell.trusted.body if cell.trusted else ():
                with contextlib.suppress(Exception):
                    exec(_compiled(ast.Module([node], []), cell), self.names)
                if not isinstance(node, ast.Import | ast.ImportFrom):
                    self.overridable |= self.answers & analyse(ast.Module([node], [])).binds.keys()
        if cell.names:
            self.definition_uses |= {use.name for use in cell.names.uses}

    def setup(self, cell: PlannedCell, budget: Budget) -> Verdict:
        """Run a check-setup cell.

        Args:
            cell: the cell.
            budget: the time left.
        """
        return self._run(cell, self.names, budget, [])

    def check(self, cell: PlannedCell, budget: Budget) -> Verdict:
        """Run a check. Later checks see the names it bound, and nothing else of it.

        Args:
            cell: the check.
            budget: the time left.
        """
        before = dict(self.names)
        uses = {use.name for use in cell.names.uses} if cell.names else set()
        for name in self.overridable:
            self.names.pop(name, None)
        try:
            return self._run(cell, self.names, budget,
                             sorted(uses | self.definition_uses | self.overridable))
        finally:
            self.bound_by_checks |= {name: value for name, value in self.names.items()
                                     if name not in before and name_of(value) is None
                                     and name in (cell.names.binds if cell.names else ())}
            self.names.clear()
            self.names |= before

    def _bind(self, name: str) -> None:
        """Bind a name in the check's namespace that no trusted cell binds."""
        if name in self.names or (name in BUILTINS and name not in self.answers):
            return
        if name in self.bound_by_checks and name not in self.answers:
            self.names[name] = self.bound_by_checks[name]
            return
        kind = self.remote.kind(name)
        if kind == "plain":
            try:
                value = self.remote.value(Proxy(name, self.remote))
            except wire.CannotCross:  # the guest contradicts itself
                value = Proxy(name, self.remote)
            self.names[name] = Proxy(name, self.remote) if isinstance(value, Raised) else value
        elif kind != "missing":
            self.names[name] = (Function if kind == "callable" else Proxy)(name, self.remote)

    def _make_repeatable(self, cell: PlannedCell) -> None:
        """Seed the random generators so that a check draws the same numbers at every grading."""
        seed = int.from_bytes(hashlib.sha256(f"{self.remote.seed}/{cell.name}".encode()).digest())
        random.seed(seed)
        np.random.seed(seed % 2**32)

    def _run(self, cell: PlannedCell, names: dict[str, Any], budget: Budget, needed: list[str]
             ) -> Verdict:
        verdict, printed = Verdict(), CapturedOutput()
        self._make_repeatable(cell)
        late, self.remote.lost, self.remote.unmeasured = [], None, ""
        try:
            with _capturing(printed), checking_on(self.remote), \
                    limited(budget.left() + GRACE) as late:
                for name in needed:
                    self._bind(name)
                checks.begin()
                exec(_compiled(cell.trusted, cell), names)
                if cell.role is Role.CHECK:
                    checks.conclude()
        except (TimeLimitReached, SandboxLost):
            pass  # reported below, even if the check caught it
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


class CapturedOutput(io.TextIOBase):
    """Captures a check's output up to a limit and drops the rest."""

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
def _capturing(printed: CapturedOutput) -> Iterator[None]:
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        yield


def _compiled(tree: ast.Module, cell: PlannedCell) -> Any:
    return compile(tree, _file(cell), "exec", dont_inherit=True, optimize=0)  # with its asserts


def _file(cell: PlannedCell) -> str:
    return f"<cell {cell.name}>"


def shown(error: Exception, cell: PlannedCell) -> NotebookNode:
    """Return a failed check's error output as a kernel formats it; only the text for
    labkit.check's.

    Args:
        error: what the check raised.
        cell: the check.
    """
    from labkit.check import Failed

    text = _text(error)
    if isinstance(error, Failed):
        text = _in_hidden_test(error, cell) + text
        lines = Failed(text)._render_traceback_()
    else:
        lines = [cleaning.terminal(line) for line in _traceback(error, cell)]
    return cleaning.error(type(error).__name__, text, lines)


def text_of(error: Exception) -> str:
    """Return the message of a failed check as one string."""
    from labkit.check import Failed

    text = _text(error)
    return text if isinstance(error, Failed) else f"{type(error).__name__}: {text}"


def text_for_students(error: Exception, cell: PlannedCell) -> str:
    """Return what a student may read about a failed check: of a hidden test, only labkit.check's
    text.

    Args:
        error: what the check raised.
        cell: the check, or the part of one.
    """
    from labkit.check import Failed

    if not isinstance(error, Failed) and _failing_lines(error, cell) & hidden_lines(cell.source):
        return HIDDEN_FAILED
    return (_in_hidden_test(error, cell) if isinstance(error, Failed) else "") + text_of(error)


def _in_hidden_test(error: Exception, cell: PlannedCell) -> str:
    """Return a prefix for the message of a hidden test, whose cases students see nowhere else."""
    lines = _failing_lines(error, cell)
    return HIDDEN if lines and lines <= hidden_lines(cell.source) else ""


def _failing_lines(error: Exception, cell: PlannedCell) -> set[int]:
    return {frame.lineno for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename == _file(cell)}


def _text(error: Exception) -> str:
    try:
        text = str(error)
    except Exception as another:
        text = f"(its text cannot be shown: {type(another).__name__})"
    return cleaning.terminal(text[:10_000])


def _traceback(error: Exception, cell: PlannedCell) -> list[str]:
    """Return the traceback from the check's own lines on, without the grader's frames.

    Args:
        error: what the check raised.
        cell: the check.
    """
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

