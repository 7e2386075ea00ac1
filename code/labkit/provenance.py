"""Find what a check relies on that grading will not have.

Grading rebuilds a notebook from the release and the student's answer cells, so a helper in a cell
of the student's own works in the notebook only. Given the cells that ran, this module follows the
names that a check uses, from cell to cell, and reports those that come from anywhere else.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

from labcore import workspace
from labkit.cells import TAGGED, Code, Release, ReleasedCell, Role
from labkit.names import changed

TRUSTED = (Role.CHECK_SETUP, Role.CHECK)  # grading runs them apart from the student's code
OWN = "a cell of your own"
MOVE = "move it into your answer"
STANDS_IN_FOR = "STANDS_IN_FOR"
# The IDs that `lab build` gives to cells without a grade_id end with a digest of the source.
BUILT_ID = re.compile(r"(?P<role>[a-z-]+)-(?P<digest>[0-9a-f]{8})(-\d+)?")


class RunCell(NamedTuple):
    """A code cell as it ran in a kernel, or as it is in a notebook.

    Attributes:
        code: its source.
        id: its cell ID; empty where the frontend does not send it.
        grade_id: nbgrader's, where the notebook's file is known.
        bound: the names whose values changed while it ran; None if nobody watched.
    """

    code: Code
    id: str = ""
    grade_id: str = ""
    bound: frozenset[str] | None = None

    def binds(self, name: str) -> bool:
        """Return whether the cell binds a global name. An import of what is there changes
        nothing."""
        names = self.code.names
        if self.bound is None:
            return name in names.binds
        return name in self.bound or (name in names.binds and name not in names.imports)


class Place(NamedTuple):
    """The released cell that a cell that ran is, and whether grading runs it as it ran."""

    cell: ReleasedCell | None
    is_graded: bool
    where: str  # for a message


@dataclass
class _Search:
    """What a search has followed so far: the names, the modules, and the problems found."""

    names: set[str] = field(default_factory=set)
    modules: set[str] = field(default_factory=set)
    visited: set[int] = field(default_factory=set)
    problems: dict[str, None] = field(default_factory=dict)


class Provenance:
    """Where the names of a notebook come from."""

    def __init__(self, release: Release, runs: Sequence[RunCell], home: Path | None = None
                 ) -> None:
        """Args:
            release: the notebook that students get.
            runs: the cells that ran, in this order.
            home: the workspace, whose files are compared with the cells that write them; None to
                compare none.
        """
        self.release, self.home = release, home
        # A check runs its own drivers, after all cells of the notebook.
        self.runs = [*runs, *(RunCell(cell.code, cell.id) for cell in release.cells
                              if cell.role is Role.DRIVER and cell.is_served)]
        self.cells = [self._cell_of(run) for run in self.runs]
        self.latest = {(cell.index, run.id): number for number, (cell, run)
                       in enumerate(zip(self.cells, self.runs, strict=True)) if cell is not None}

    @cached_property
    def places(self) -> list[Place]:
        return [self._place(number) for number in range(len(self.runs))]

    def _cell_of(self, run: RunCell) -> ReleasedCell | None:
        release, found = self.release, None
        if run.id or run.grade_id:
            found = release.by_grade_id.get(run.grade_id) or release.by_id.get(run.id)
        found = found or release.by_source.get(run.code.source)
        if found is None and not run.id and not run.grade_id:  # which answer is this?
            binds = frozenset(run.code.names.binds)
            return next((cell for cell in release.cells if cell.role is Role.ANSWER and (
                cell.code.stub_names & binds
                or (cell.code.path is not None and cell.code.path == run.code.path))), None)
        return found

    def _place(self, number: int) -> Place:
        run, cell = self.runs[number], self.cells[number]
        if cell is None:
            return self._other_version(run)
        if cell.role is Role.ANSWER:
            is_latest = self.latest[cell.index, run.id] == number
            return Place(cell, is_latest, "an earlier version of an answer cell")
        if cell.role in TRUSTED:
            return Place(cell, False, "a cell that only checks can use")
        is_original = cell.has_source(run.code.source)
        if cell.role is Role.EXPLORE:
            return Place(cell, False, "a cell that grading does not run" if is_original else OWN)
        return Place(cell, is_original, "a course cell that you changed")

    @staticmethod
    def _other_version(run: RunCell) -> Place:
        """Return the place of a cell that the release does not have: the student's own, or one of
        another version of the lab, whose notebook the student still has."""
        match = BUILT_ID.fullmatch(run.id)
        if match is None or match["role"] not in TAGGED:
            return Place(None, False, OWN)
        digest = hashlib.sha256(run.code.source.encode()).hexdigest()[:8]
        if match["digest"] != digest:
            return Place(None, False, "a course cell that you changed")
        return Place(None, TAGGED[match["role"]] in (Role.SETUP, Role.DRIVER),
                     "a cell that grading does not run")

    # --- searching

    def problems(self, check: ReleasedCell) -> list[str]:
        """Return one sentence for each thing that a check relies on and grading will not have."""
        trusted = {name for cell in self.release.cells if cell.role in TRUSTED
                   for name in cell.code.names.binds}
        search = _Search()
        todo = [use.name for use in check.code.names.uses if use.name not in trusted]
        files = {cell.code.path for cell in self.release.cells if cell.role is Role.ANSWER
                 and cell.code.path}
        self._follow(todo, check, search)
        texts = _strings(check.code) | {text for number in search.visited
                                        for text in _strings(self.runs[number].code)}
        for path in sorted(files):
            if path in texts or _is_imported(path, search.modules):
                self._file(path, check, search)
        for path in sorted(self._own_modules(search.modules, files)):
            search.problems[f"`{path}` is a file of your own; grading will not have it: move what "
                            "you import from it into your answer"] = None
        self._changes(search)
        return list(search.problems)

    def _follow(self, todo: list[str], check: ReleasedCell, search: _Search) -> None:
        while todo:
            name = todo.pop()
            if name in search.names:
                continue
            search.names.add(name)
            numbers = [number for number, run in enumerate(self.runs) if run.binds(name)]
            if not numbers:  # a builtin, or nothing that ran binds it
                continue
            last, graded = numbers[-1], [number for number in numbers
                                         if self.places[number].is_graded]
            if not self.places[last].is_graded and graded and self._defined_alike(
                    name, last, graded[-1]):
                last = graded[-1]
            if self.places[last].is_graded:
                todo += self._visit(last, name, check, search)
            else:
                search.problems[self._sentence(name, last, bool(graded))] = None

    def _defined_alike(self, name: str, one: int, other: int) -> bool:
        mine, original = (self.runs[number].code.definitions(name) for number in (one, other))
        return bool(mine) and mine == original

    def _visit(self, number: int, name: str, check: ReleasedCell, search: _Search) -> list[str]:
        """Return the names that a cell uses, and note a cell that grading runs too late."""
        cell, code = self.places[number].cell, self.runs[number].code
        if cell is not None and cell.index > check.index:
            search.problems[f"`{name}` is defined below this check; grading runs the cells from "
                            "top to bottom: define it in an answer above"] = None
        if number in search.visited:
            return []
        search.visited.add(number)
        search.modules |= code.modules
        return [use.name for use in code.names.uses]

    def _sentence(self, name: str, number: int, is_redefined: bool) -> str:
        where = self.places[number].where
        if is_redefined:
            return (f"`{name}` is redefined in {where}; grading will use the original: make the "
                    "change in your answer")
        verb = "imported" if name in self.runs[number].code.names.imports else "defined"
        return f"`{name}` is {verb} in {where}; grading will not have it: {MOVE}"

    # --- files and attributes

    def _file(self, path: str, check: ReleasedCell, search: _Search) -> None:
        """Follow a file that an answer writes, and note one that something else has written."""
        writers = [number for number, run in enumerate(self.runs) if run.code.path == path]
        if not writers:  # it was written before the kernel was restarted
            return
        last = writers[-1]
        if not self.places[last].is_graded:
            search.problems[f"`{path}` is written in {self.places[last].where}; grading will not "
                            f"run it: {MOVE}"] = None
            return
        search.visited.add(last)
        search.modules |= self.runs[last].code.modules
        if self.home is not None and _differs(self.home / path, self.runs[last].code.written):
            search.problems[f"`{path}` has changed since its cell wrote it; grading takes the "
                            "text from the cell: make the change there"] = None

    def _own_modules(self, modules: set[str], answers: set[str]) -> Iterator[str]:
        """Yield the files in the workspace that are imported, that no answer writes, and that no
        module of the course stands in for while a check runs."""
        answers = answers.union(*map(_stand_ins, modules)) if self.home is not None else answers
        for dotted in modules if self.home is not None else ():
            parts = dotted.split(".")
            for length in range(len(parts), 0, -1):
                path = "/".join(parts[:length]) + ".py"
                if path in answers:
                    break
                if (self.home / path).is_file():
                    yield path
                    break

    def _changes(self, search: _Search) -> None:
        """Note the student's own cells that change what the names followed refer to."""
        roots = {dotted.partition(".")[0] for dotted in search.modules}
        for number, run in enumerate(self.runs):
            place = self.places[number]
            if place.is_graded or (place.cell is not None
                                   and place.cell.has_source(run.code.source)):
                continue
            names = run.code.names
            for name, text, is_call in changed(run.code.tree, names) if not run.code.path else ():
                module = names.imports.get(name) or self._module(name)
                if is_call and module in sys.modules:  # a module's function changes no list
                    continue
                if name in search.names or module.partition(".")[0] in roots:
                    search.problems[f"`{text}` in {place.where} changes `{name}`; grading will "
                                    "not have the change: make it in your answer"] = None

    def _module(self, name: str) -> str:
        """Return the dotted path that the last import of a name binds; empty without one."""
        paths: Mapping[str, str] = {}
        for run in self.runs:
            paths = run.code.names.imports if name in run.code.names.imports else paths
        return paths.get(name, "")


def _strings(code: Code) -> set[str]:
    return {node.value for node in ast.walk(code.tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def _is_imported(path: str, modules: set[str]) -> bool:
    return path.endswith(".py") and path.removesuffix(".py").replace("/", ".") in modules


@cache
def _stand_ins(dotted: str) -> frozenset[str]:
    """Return the files that a module of the course takes the place of when a driver installs it.
    It lists them as STANDS_IN_FOR, a tuple of paths."""
    path = workspace.CHECKOUT / "code" / (dotted.replace(".", "/") + ".py")
    if not path.is_file():
        return frozenset()
    return frozenset(text for statement in ast.parse(path.read_bytes()).body
                     if isinstance(statement, ast.Assign)
                     and ast.unparse(statement.targets[0]) == STANDS_IN_FOR
                     for text in ast.literal_eval(statement.value))


def _differs(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8", errors="replace").rstrip() != text.rstrip()
    except OSError:  # the check reports that it is missing
        return False
