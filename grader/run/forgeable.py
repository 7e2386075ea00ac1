"""Warn about tests that students could forge, and about hidden tests that give students no hint.

A test can be forged if it takes from the sandbox a value that the course put there, or if it runs a
string that a student may have written.
"""

from __future__ import annotations

import ast
import re

from grader.course import Course
from grader.run.lab_plan import GradingPlan, PlannedCell, read
from labkit.build.visible import hidden_lines
from labkit.cells import Role, python_of
from labkit.names import analyse

COMPARES = re.compile(r"(?:^|\.)(?:testing\..+|assert_\w+|allclose|array_equal)$")
RUNS_TEXT = frozenset(("eval", "exec", "compile", "__import__"))


def warnings(course: Course, lab: str) -> list[str]:
    """Return one warning per such test of a released lab. Raises LabError.

    Args:
        course: the course.
        lab: the lab's name.
    """
    return warnings_of(read(course, lab))


def warnings_of(plan: GradingPlan) -> list[str]:
    """Return the warnings for a plan.

    Only untagged cells can bind values that students may change: `data = load()` does not run on
    the trusted side.
    """
    given: set[str] = set()  # by untagged cells, in the sandbox alone
    made: set[str] = set()
    needed: set[str] = set()  # by what is made of untagged cells
    result = []
    for cell in plan.cells:
        if cell.role is Role.SETUP and cell.trusted is not None:
            here = set(cell.names.binds)
            made |= here
            needed |= {use.name for use in cell.names.uses}
            given = (given | _binds(cell.source)) - here
        elif cell.role is Role.CHECK_SETUP and cell.names:
            made |= set(cell.names.binds)
        elif cell.role is Role.CHECK and cell.names:
            uses = {use.name for use in cell.names.uses} | needed
            result += [f"{plan.lab}: the test {cell.name} uses {name}: a student's string that "
                       "reaches it runs outside the sandbox with your permissions; let the test "
                       "call a function of the assignment instead"
                       for name in sorted(uses & RUNS_TEXT)]
            result += _without_words(plan.lab, cell)
            for name in sorted(uses & given - made - plan.answers):
                result.append(f"{plan.lab}: the test {cell.name} uses {name}, which an untagged "
                              "cell computes in the sandbox, where students' code could change "
                              "it: compute it in the test, or in a cell with the tag check-setup")
    return result


def _without_words(lab: str, cell: PlannedCell) -> list[str]:
    """Return a warning for each hidden comparison whose message the feedback leaves out."""
    hidden = hidden_lines(cell.source)
    calls = {ast.unparse(node.func) for node in ast.walk(cell.trusted or ast.Module([], []))
             if isinstance(node, ast.Call) and node.lineno in hidden}
    return [f"{lab}: the hidden test {cell.name} calls {name}: feedback leaves out its message, "
            "which may hold the expected values, so students learn only that a hidden test failed; "
            "check.value, check.function, and check.that(..., hint) give them a hint"
            for name in sorted(calls) if COMPARES.search(name)]


def _binds(source: str) -> set[str]:
    try:
        return set(analyse(ast.parse(python_of(source))).binds)
    except (SyntaxError, ValueError):  # %%bash, say
        return set()
