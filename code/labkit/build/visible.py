"""Keep answers out of what students can read of a check."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from labkit.build.calls import check_calls, resolved
from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems
from labkit.names import COMPREHENSIONS

BEGIN, END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
EXPECTED = ("expected", "bubble", "live")  # parameters that hold expected values
FORMULA = (ast.Lambda, ast.Name, ast.Call, *COMPREHENSIONS)


def without_hidden(source: str, blank: bool = False) -> str:
    """Return a check without its hidden tests; with `blank`, their lines become empty."""
    kept, hidden = [], False
    for line in source.split("\n"):
        hidden = hidden or line.strip() == BEGIN
        if blank or not hidden:
            kept.append("" if hidden else line)
        hidden = hidden and line.strip() != END
    return "\n".join(kept)


def hidden_lines(source: str) -> set[int]:
    """Return the line numbers, from 1, of hidden lines and their markers."""
    numbers, hidden = set(), False
    for number, line in enumerate(source.split("\n"), start=1):
        hidden = hidden or BEGIN in line
        if hidden:
            numbers.add(number)
        hidden = hidden and END not in line
    return numbers


def check(lab: Lab, problems: Problems) -> None:
    """Report formulas in expected values and hints outside hidden tests."""
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
                problems.add(cell, node.lineno, "students can read the answer in this "
                             "formula: give values here, and formulas in the hidden tests")


def _given(cell: Cell) -> Iterator[ast.expr]:
    """Yield expected values, and the wrong answers of hints. (A predicate of one value reveals
    little.)"""
    for call in check_calls(cell.tree):
        yield from (call.arguments[name] for name in EXPECTED if name in call.arguments)
        hints = resolved(call.arguments.get("hints"), cell.tree)
        if isinstance(hints, ast.Dict) and call.function in ("function", "ranks", "schedule"):
            yield from hints.values
