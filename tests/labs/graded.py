"""Runs a lab as it is graded: what is the student's in one namespace, the checks in another.

Only what the contract allows reaches a check, so a check that passes here needs nothing else. (In
grading there is a wall between the two as well; tests/grader proves that.)
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from labkit import check
from labkit.build.lab import Cell, Lab, Role
from labkit.check import Failed
from labkit.check.kernel import KernelSide
from labkit.check.sides import checking_on

COLORS = re.compile("\033\\[[0-9;]*m")
Change = Callable[[Cell], str]  # of an answer cell: the source to run in its place


@dataclass(frozen=True)
class Mark:
    """A pass mark that a modeled figure was held against (check.pass_mark)."""

    figure: float
    mark: float
    error: float | None
    passed: bool

    def too_close(self) -> str:
        """What is wrong with the figure's distance from the mark; empty if it is twice the error,
        within which a real GPU might decide otherwise."""
        if self.error is None:
            return f"the error of {self.figure:.4g}, held against {self.mark:g}, is not known"
        low, high = sorted((self.figure, self.mark))
        if low <= 0 or high / low - 1 >= 2 * self.error:
            return ""
        return (f"{self.figure:.4g} is {high / low - 1:.1%} away from the pass mark {self.mark:g}, "
                f"less than twice the error of {self.error:.1%}")


@dataclass
class Outcome:
    """What came of every check, by grade_id: None where it passed, else what it raised. And what
    the answers raised, and the pass marks of modeled figures, by the check's grade_id."""

    checks: dict[str, Exception | None] = field(default_factory=dict)
    answers: dict[str, Exception] = field(default_factory=dict)
    marks: dict[str, list[Mark]] = field(default_factory=dict)

    def failed(self) -> set[str]:
        return {name for name, error in self.checks.items() if error is not None}


def as_written(cell: Cell) -> str:
    return cell.source


def run(lab: Lab, home: Path, answer: Change = as_written, only: set[str] | None = None,
        hint: str | None = None) -> Outcome:
    """Grade a lab.

    Args:
        lab: the lab.
        home: the workspace.
        answer: returns the source of each answer.
        only: the checks to run; None: all.
        hint: ends the run at the first check that fails with this text, and that check at its
            first part that does.
    """
    outcome, student = Outcome(), {"__name__": "__main__"}
    with inside(home), checking_on(KernelSide()), ending_at(hint):
        for cell in lab.of(Role.SETUP, Role.ANSWER, Role.DRIVER):
            if cell.role is not Role.ANSWER:
                _execute(cell.source, student, cell)
                continue
            try:
                run_cell(cell, answer(cell), student, home)
            except Exception as error:
                outcome.answers[cell.grade_id] = error
        proxies = {name for cell in lab.of(Role.ANSWER, Role.DRIVER) for name in cell.defines}
        trusted: dict[str, Any] = {"__name__": "__main__"}
        for cell in lab.of(Role.CHECK_SETUP, Role.CHECK):
            if cell.role is Role.CHECK_SETUP:
                _execute(cell.source, trusted, cell)
                continue
            if only is not None and cell.grade_id not in only:
                continue
            given = {name: student[name] for name in proxies & cell.uses if name in student}
            source = cell.source if hint is None else hinting_first(cell.source, hint)
            try:
                with collecting_marks(outcome.marks.setdefault(cell.grade_id, [])):
                    _execute(source, trusted | given, cell)
                outcome.checks[cell.grade_id] = None
            except Exception as error:
                outcome.checks[cell.grade_id] = error
                if hint is not None and hint in text(error):
                    break
    return outcome


def hinting_first(source: str, hint: str) -> str:
    """Return a check's source, in which parts that have a hint in their own text come before the
    others: what else the check tries costs seconds a mutant."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if not (isinstance(last, ast.With) and ast.unparse(last.items[0]) == "check.parts()"):
        return source
    last.body.sort(key=lambda part: hint not in ast.unparse(part))
    return ast.unparse(tree)


@contextlib.contextmanager
def ending_at(hint: str | None) -> Iterator[None]:
    """End a check at its first part that fails with this hint, unless the hint is None."""
    @contextlib.contextmanager
    def part(points: float, title: str) -> Iterator[None]:
        failed = None
        with real(points, title):
            try:
                yield
            except Failed as error:
                failed = error
                raise
        if failed is not None and hint in text(failed):
            raise failed

    real = check.part
    if hint is not None:
        check.part = part
    try:
        yield
    finally:
        check.part = real


@contextlib.contextmanager
def collecting_marks(marks: list[Mark]) -> Iterator[None]:
    """Add every pass mark that a check holds a modeled figure against."""
    def noted(figure: float, hint: str, *, error: float | None, below: float | None = None,
              above: float | None = None) -> None:
        mark = below if above is None else above
        passed = figure < mark if above is None else figure >= mark
        marks.append(Mark(figure, mark, error, passed))
        real(figure, hint, error=error, below=below, above=above)

    real = check.pass_mark
    check.pass_mark = noted
    try:
        yield
    finally:
        check.pass_mark = real


def run_cell(cell: Cell, source: str, student: dict[str, Any], home: Path) -> None:
    """Run the source of a setup or answer cell, or write its file."""
    if cell.path is None:
        _execute(source, student, cell)
    else:
        path = home / cell.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source.partition("\n")[2] + "\n")
        # Python takes the compiled file of a mutant for that of the next one, if both have the same
        # size and were written in the same second.
        Path(cache_from_source(str(path))).unlink(missing_ok=True)


def _execute(source: str, names: dict[str, Any], cell: Cell) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(source, f"<{cell.title}>", "exec"), names)


@contextlib.contextmanager
def inside(home: Path) -> Iterator[None]:
    """With `home` as the workspace and the current folder; labs may change the latter."""
    before, folder = os.environ.get("LAB_HOME"), os.getcwd()
    os.environ["LAB_HOME"] = str(home)
    os.chdir(home)
    sys.path.insert(0, "")  # as in a kernel: answers write modules
    try:
        yield
    finally:
        sys.path.remove("")
        os.chdir(folder)
        os.environ.pop("LAB_HOME")
        if before is not None:
            os.environ["LAB_HOME"] = before


def text(error: Exception | None) -> str:
    return COLORS.sub("", str(error))


def unproven(lab: Lab, home: Path, *names: str, thorough: bool = True) -> list[str]:
    """Return a sentence for every mutant that the checks accept or break on, and for one that they
    reject without its hint, or give its hint too close to a pass mark.

    Args:
        lab: the lab.
        home: a workspace.
        *names: the answers whose mutants are tried; all answers if none is given.
        thorough: whether to run a mutant's other checks and parts, too, once one has given its
            hint.
    """
    found = []
    for name in names or lab.mutants:
        checks = {cell.grade_id for cell in lab.tested_by[name]}
        for mutant in lab.mutants[name]:
            outcome = run(lab, home, lambda cell, name=name, mutant=mutant:
                          mutant.source if cell.grade_id == name else cell.source, checks,
                          None if thorough else mutant.hint)
            errors = [error for error in outcome.checks.values() if error is not None]
            where = f"{lab.path.name}:{mutant.line} (mutant of {name})"
            if not errors:
                found.append(f"{where}: accepted")
            elif not any(mutant.hint in text(error) for error in errors):
                found.append(f"{where}: rejected, but {mutant.hint!r} is not in "
                             f"{[text(error) for error in errors]}")
            found += [f"{where}: the check breaks: {error!r}" for error in errors
                      if not isinstance(error, Failed)]
            found += [f"{where}: {why}" for check_id, marks in outcome.marks.items()
                      if mutant.hint in text(outcome.checks[check_id]) for mark in marks
                      if not mark.passed and (why := mark.too_close())]
    return found
