"""A lab as its author wrote it: cells with their roles, names, and line numbers."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.build.calls import script_paths
from labkit.cells import Role
from labkit.names import Names, imported

NOTHING = Names({}, (), {})


@dataclass(frozen=True)
class Cell:
    """One cell. `line` is the line of the .py on which its source begins, from 1."""

    role: Role
    kind: str  # code, markdown or raw
    source: str
    line: int
    metadata: Mapping[str, Any]
    grade_id: str = ""  # mutant: the answer that it replaces; rubric: the written answer
    points: float = 0
    hint: str = ""  # a mutant's: part of what the student must read
    path: str | None = None  # of %%writefile, in an answer or its mutant
    names: Names = NOTHING
    tree: ast.Module | None = field(default=None, compare=False, repr=False)

    @property
    def defines(self) -> frozenset[str]:
        """Return the global names that the cell binds."""
        return frozenset(self.names.binds)

    @property
    def uses(self) -> frozenset[str]:
        """Return the global names, including builtins, that the cell reads before it binds them."""
        return frozenset(use.name for use in self.names.uses)

    @property
    def imports(self) -> frozenset[str]:
        """Return the dotted names that the cell imports, including imports in functions."""
        return frozenset(imported(self.tree))

    @property
    def module(self) -> str | None:
        """Return the module name of an answer's file: mytrainer.ddp for mytrainer/ddp.py."""
        return self.path.removesuffix(".py").replace("/", ".") \
            if self.path and self.path.endswith(".py") else None

    @property
    def title(self) -> str:
        """Return the cell's name for error messages."""
        return f"{self.role.value} {self.grade_id}" if self.grade_id else f"{self.role.value} cell"

    def line_of(self, line: int) -> int:
        """Return the line of the .py for a line of the cell's source."""
        return self.line + line - 1


@dataclass(frozen=True)
class Lab:
    """A whole lab, free of errors. `path` is its .py; `name` the file's name without .py."""

    path: Path
    cells: tuple[Cell, ...]
    draft: bool = False  # mutants are missing, so nothing proves that checks reject wrong answers

    @property
    def name(self) -> str:
        return self.path.stem

    def of(self, *roles: Role) -> list[Cell]:
        """Return the cells with one of these roles, in order."""
        return [cell for cell in self.cells if cell.role in roles]

    @cached_property
    def answers(self) -> dict[str, Cell]:
        return {cell.grade_id: cell for cell in self.of(Role.ANSWER)}

    @cached_property
    def checks(self) -> dict[str, Cell]:
        return {cell.grade_id: cell for cell in self.of(Role.CHECK)}

    @cached_property
    def rubrics(self) -> dict[str, Cell]:
        """Return the rubrics by the grade_id of their written answer."""
        return {cell.grade_id: cell for cell in self.of(Role.RUBRIC)}

    @cached_property
    def mutants(self) -> dict[str, list[Cell]]:
        """Return the mutants by the grade_id of the answer that they replace."""
        by_answer: dict[str, list[Cell]] = {name: [] for name in self.answers}
        for cell in self.of(Role.MUTANT):
            by_answer.setdefault(cell.grade_id, []).append(cell)
        return by_answer

    @cached_property
    def tested_by(self) -> dict[str, list[Cell]]:
        """Return the checks of every answer, by its grade_id: those that name it, a driver that
        uses or imports it, or its file. An answer without any is a prediction."""
        tested = [(check, self.answers_of(check)) for check in self.of(Role.CHECK)]
        return {name: [check for check, names in tested if name in names]
                for name in self.answers}

    def answers_of(self, check: Cell) -> set[str]:
        """Return the grade_ids of the answers that a check tests."""
        names, modules = set(check.uses), set()
        for driver in self.of(Role.DRIVER):
            if driver.defines & names:
                names |= driver.uses
                modules |= driver.imports
        paths = set(script_paths(check.tree))
        return {answer.grade_id for answer in self.of(Role.ANSWER)
                if answer.defines & names or answer.path in paths or answer.module in modules}
