"""A lab as its author wrote it: cells with their roles, names and places."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from labkit.build.calls import script_paths
from labkit.build.names import Names, imported

NOTHING = Names({}, (), {})


class Role(Enum):
    """The role of a cell; docs/writing-labs.md has the table."""

    TEXT = "text"
    SETUP = "setup"
    EXPLORE = "explore"
    ANSWER = "answer"
    CHECK_SETUP = "check-setup"
    DRIVER = "driver"
    CHECK = "check"
    MUTANT = "mutant"
    WRITTEN = "written answer"
    RUBRIC = "rubric"


@dataclass(frozen=True)
class Cell:
    """One cell. `line` is where its source begins in the .py, counted from 1."""

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
        """The global names it binds."""
        return frozenset(self.names.binds)

    @property
    def uses(self) -> frozenset[str]:
        """The global names it reads and does not bind before, builtins among them."""
        return frozenset(use.name for use in self.names.uses)

    @property
    def imports(self) -> frozenset[str]:
        """The dotted names that it imports, also within functions."""
        return frozenset(imported(self.tree))

    @property
    def module(self) -> str | None:
        """The name under which an answer's file is imported: mytrainer.ddp of mytrainer/ddp.py."""
        return self.path.removesuffix(".py").replace("/", ".") \
            if self.path and self.path.endswith(".py") else None

    @property
    def title(self) -> str:
        """Return the cell's name for error messages."""
        return f"{self.role.value} {self.grade_id}" if self.grade_id else f"{self.role.value} cell"

    def line_of(self, line: int) -> int:
        """The line in the .py of a line of the source."""
        return self.line + line - 1


@dataclass(frozen=True)
class Lab:
    """A whole lab, free of errors. `path` is its .py; `name` the file's name without .py."""

    path: Path
    cells: tuple[Cell, ...]
    draft: bool = False  # mutants are missing: nothing proves that its checks reject wrong answers

    @property
    def name(self) -> str:
        return self.path.stem

    def of(self, *roles: Role) -> list[Cell]:
        """The cells with one of these roles, in order."""
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
        """By the grade_id of the answer which they replace."""
        found: dict[str, list[Cell]] = {name: [] for name in self.answers}
        for cell in self.of(Role.MUTANT):
            found.setdefault(cell.grade_id, []).append(cell)
        return found

    @cached_property
    def tested_by(self) -> dict[str, list[Cell]]:
        """Return the checks of every answer, by its grade_id: those that name it, a driver that
        uses or imports it, or its file. An answer without any is a prediction."""
        tested = [(check, self.answers_of(check)) for check in self.of(Role.CHECK)]
        return {name: [check for check, names in tested if name in names]
                for name in self.answers}

    def answers_of(self, check: Cell) -> set[str]:
        """The grade_ids of the answers which a check tests."""
        names, modules = set(check.uses), set()
        for driver in self.of(Role.DRIVER):
            if driver.defines & names:
                names |= driver.uses
                modules |= driver.imports
        paths = set(script_paths(check))
        return {answer.grade_id for answer in self.of(Role.ANSWER)
                if answer.defines & names or answer.path in paths or answer.module in modules}
