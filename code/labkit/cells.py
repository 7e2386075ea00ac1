"""The code cells of a notebook that students get: their roles, their names, and the files that they
write."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from labkit import lab_checks
from labkit.names import Names, analyse, imported

WRITEFILE = re.compile(r"%%writefile[ \t]+(?P<rest>.*)")
# labkit.build.stubs puts this into an answer of which nothing remains, so that students know which
# names to define.
DEFINE = re.compile(r"Your turn: define (?P<names>[\w ]+) here")
# Cell magics whose cell is still Python.
PYTHON_MAGICS = ("%%time", "%%timeit", "%%capture", "%%prun")
# A line that may be a magic, a shell command, a request for help, or an automatic call.
MAGIC = re.compile(r"^[ \t]*(?:>>> ?)?[%!?/,;]|\?[ \t]*$|=[ \t]*[%!]", re.MULTILINE)


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


# In a notebook, tags name these roles; nbgrader's metadata names answers and checks.
TAGGED = {role.value: role for role in (Role.SETUP, Role.EXPLORE, Role.CHECK_SETUP, Role.DRIVER)}

# Students see nothing of these, unless an experiment uses them, and only a line of each check.
HELPERS = (Role.CHECK_SETUP, Role.DRIVER)
SERVED = (*HELPERS, Role.CHECK)


def role_of(metadata: Mapping[str, Any]) -> Role:
    """Return a code cell's role, given its metadata. An answer with points is still an answer: a
    person grades it. A cell without marks is setup, as in nbgrader's own assignments."""
    marks = metadata.get("nbgrader", {})
    if marks.get("solution"):
        return Role.ANSWER
    if marks.get("grade"):
        return Role.CHECK
    tags = [TAGGED[tag] for tag in metadata.get("tags", []) if tag in TAGGED]
    return tags[0] if tags else Role.SETUP


def transform_work(source: str) -> int:
    """Return an upper bound on the characters that IPython tokenizes to transform a cell.

    It rewrites one magic at a time and tokenizes the whole cell again after each, so a cell of
    n lines with a magic on each costs n passes.
    """
    return len(source) * (1 + len(MAGIC.findall(source)))


def python_of(source: str) -> str:
    """Return an explore cell as Python with the same lines, IPython's magics turned into calls."""
    from IPython.core.inputtransformer2 import TransformerManager

    first, _, rest = source.partition("\n")
    if first.split(" ")[0] in PYTHON_MAGICS:
        source = f"\n{rest}"
    return TransformerManager().transform_cell(source)


@dataclass(frozen=True)
class Code:
    """The source of a code cell, and what can be read from it without running it."""

    source: str

    @cached_property
    def path(self) -> str | None:
        """Return the file that the cell writes with %%writefile, if it does."""
        match = WRITEFILE.match(self.source)
        return match["rest"].split()[-1] if match and match["rest"].split() else None

    @property
    def written(self) -> str:
        """Return the text that %%writefile writes."""
        return self.source.partition("\n")[2] + "\n"

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed cell; an empty module if it is not Python, such as a script."""
        is_module = self.path is not None and self.path.endswith(".py")
        try:
            return ast.parse(self.written if is_module else python_of(self.source))
        except (SyntaxError, ValueError):
            return ast.Module([], [])

    @cached_property
    def names(self) -> Names:
        """Return the cell's global names; none for a file, whose names are not the notebook's."""
        return analyse(ast.Module([], []) if self.path else self.tree)

    @cached_property
    def stub_names(self) -> frozenset[str]:
        """Return the names that an answer to this stub binds."""
        match = DEFINE.search(self.source)
        return frozenset(self.names.binds) | frozenset(
            match["names"].split(" and ") if match else ())

    def definitions(self, name: str) -> list[str]:
        """Return the statements at the top level that bind a global name; an import of several
        names counts as one of this name."""
        if name in self.names.imports:
            return [self.names.imports[name]]
        return [ast.unparse(statement) for statement in self.tree.body
                if name in analyse(ast.Module([statement], [])).binds]

    @cached_property
    def modules(self) -> frozenset[str]:
        """Return the dotted names of all modules and names that the code imports."""
        return frozenset(imported(self.tree))


@dataclass(frozen=True)
class ReleasedCell:
    """A code cell of a lab, as students get it.

    Attributes:
        index: its position in the lab.
        id: its cell ID.
        code: the whole cell, as its author has it, without solutions and hidden tests.
        text: the cell in the notebook, such as `check("shift")`; None if it is not in there.
    """

    index: int
    id: str
    role: Role
    grade_id: str
    code: Code
    text: str | None

    @property
    def is_served(self) -> bool:
        """Return whether the notebook has only a part of the cell, or a line instead."""
        return self.text != self.code.source

    def has_source(self, source: str) -> bool:
        """Return whether a source is this cell's, as it is in the notebook or as a whole."""
        return source in (self.text, self.code.source)


@dataclass(frozen=True)
class Release:
    """The code cells of the lab that students get, including those that only its checks use."""

    name: str
    cells: tuple[ReleasedCell, ...]

    @cached_property
    def by_id(self) -> dict[str, ReleasedCell]:
        return {cell.id: cell for cell in self.cells}

    @cached_property
    def by_grade_id(self) -> dict[str, ReleasedCell]:
        return {cell.grade_id: cell for cell in self.cells if cell.grade_id}

    @cached_property
    def by_source(self) -> dict[str, ReleasedCell]:
        return {cell.code.source if cell.text is None else cell.text: cell for cell in self.cells}


@cache
def read_release(path: Path) -> Release:
    """Return the code cells of a released notebook and of its checks. Raises OSError and
    ValueError."""
    shown = json.loads(path.read_text(encoding="utf-8"))["cells"]
    checks = lab_checks.of_notebook(path)
    served = checks.by_id if checks else {}
    by_id = {cell.get("id", f"cell {number}"): cell for number, cell in enumerate(shown)}
    order = lab_checks.complete_order(
        list(by_id), [(cell.id, cell.before) for cell in served.values()])
    cells = []
    for index, name in enumerate(order):
        cell, whole = by_id.get(name), served.get(name)
        if cell is None:
            cells.append(ReleasedCell(index, name, Role(whole.role), whole.grade_id,
                                      Code(whole.source), None))
        elif cell["cell_type"] == "code":
            metadata, text = cell["metadata"], "".join(cell["source"])
            cells.append(ReleasedCell(
                index, cell.get("id", ""), role_of(metadata),
                metadata.get("nbgrader", {}).get("grade_id", ""),
                Code(whole.source if whole else text), text))
    return Release(path.stem, tuple(cells))
