"""Keep answers out of what students can read of a check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from labkit.build.calls import check_calls, resolved
from labkit.build.lab import Cell, Lab, Role
from labkit.build.names import COMPREHENSIONS
from labkit.build.problems import Problems

BEGIN, END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
EXPECTED = ("expected", "bubble", "live")  # what a check's author expects, by its parameter
FORMULA = (ast.Lambda, ast.Name, ast.Call, *COMPREHENSIONS)


def without_hidden(source: str, blank: bool = False) -> str:
    """A check without its hidden tests, whose markers pair up; `blank`: their lines stay, empty."""
    kept, hidden = [], False
    for line in source.split("\n"):
        hidden = hidden or line.strip() == BEGIN
        if blank or not hidden:
            kept.append("" if hidden else line)
        hidden = hidden and line.strip() != END
    return "\n".join(kept)


def hidden_lines(source: str) -> set[int]:
    """Return the line numbers, from 1, of hidden lines and their markers."""
    found, hidden = set(), False
    for number, line in enumerate(source.split("\n"), start=1):
        hidden = hidden or BEGIN in line
        if hidden:
            found.add(number)
        hidden = hidden and END not in line
    return found


def check(lab: Lab, problems: Problems) -> None:
    """Add every formula outside hidden tests in what a check expects and in its hints."""
    for cell in lab.of(Role.CHECK):
        if cell.tree is None:
            continue
        try:
            seen = replace(cell, tree=ast.parse(without_hidden(cell.source, blank=True)))
        except SyntaxError as error:
            problems.add(cell, error.lineno, "without its hidden tests it is not Python")
            continue
        for node in _given(seen):
            if any(isinstance(part, FORMULA) for part in ast.walk(node)):
                problems.add(cell, node.lineno, "a formula where students can read it is the "
                             "answer: give values here, and formulas in the hidden tests")


def _given(cell: Cell) -> Iterator[ast.expr]:
    """Yield expected values, and the wrong answers of hints. (A predicate of one value reveals
    little.)"""
    for call in check_calls(cell):
        yield from (call.arguments[name] for name in EXPECTED if name in call.arguments)
        hints = resolved(call.arguments.get("hints"), cell)
        if isinstance(hints, ast.Dict) and call.function in ("function", "ranks", "schedule"):
            yield from hints.values
