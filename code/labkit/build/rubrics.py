"""Written answers, which a person grades, and their rubrics."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems, nearest
from labkit.build.prose import text_of
from labkit.build.stubs import BEGIN, END

CRITERION = re.compile(r"[-*] (?P<points>\d+(?:\.\d+)?) points?: (?P<text>\S.*)")
NEARLY = re.compile(r"\s*[-*+]\s*\d")
FORM = "- 2 points: what the answer must say"


@dataclass(frozen=True)
class Criterion:
    """One line of a rubric."""

    points: float
    text: str

    def __str__(self) -> str:
        return f"- {counted(self.points)}: {self.text}"


@dataclass(frozen=True)
class Rubric:
    """The criteria of a written answer, and notes for its graders.

    Attributes:
        criteria: in the author's order; their points sum to the answer's.
        notes: the rest of the cell, for graders only.
        visible: whether students see the criteria.
    """

    criteria: tuple[Criterion, ...]
    notes: str
    visible: bool

    @property
    def points(self) -> float:
        return math.fsum(criterion.points for criterion in self.criteria)


def counted(points: float) -> str:
    """Return `1 point`, `2.5 points`."""
    return f"{points:g} point{'' if points == 1 else 's'}"


def read(cell: Cell) -> Rubric:
    """Return the rubric in a cell.

    Raises ValueError for a malformed criterion; its second argument is the line in the cell.
    """
    criteria: list[Criterion] = []
    notes: list[str] = []
    inside = False
    for number, line in enumerate(cell.source.split("\n"), 1):
        match = CRITERION.fullmatch(line.rstrip())
        if match:
            criteria.append(Criterion(float(match["points"]), match["text"]))
        elif inside and line.startswith("  ") and line.strip():
            last = criteria.pop()
            criteria.append(Criterion(last.points, f"{last.text} {line.strip()}"))
            continue
        elif NEARLY.match(line):
            raise ValueError(f"{line.strip()!r} is not a criterion; write {FORM}", number)
        else:
            notes.append(line)
        inside = bool(match)
    return Rubric(tuple(criteria), "\n".join(notes).strip(), bool(cell.metadata.get("visible")))


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the written answers and their rubrics."""
    written = {cell.grade_id: cell for cell in lab.of(Role.WRITTEN)}
    seen: dict[str, Cell] = {}
    for cell in lab.of(Role.RUBRIC):
        name = cell.grade_id
        if name not in written:
            problems.add(cell, None, f"rubric={name!r}: this lab has no written answer with "
                         f"that name{nearest(name, written)}")
        elif name in seen:
            problems.add(cell, None, f"a second rubric; the first is in line {seen[name].line}")
        else:
            seen[name] = cell
            _criteria(cell, written[name], problems)
        if not isinstance(cell.metadata.get("visible", False), bool):
            problems.add(cell, None, "visible is true or false, in lowercase, without quotes")
    for index, cell in enumerate(lab.cells):
        if cell.role is not Role.WRITTEN:
            continue
        if cell.grade_id not in seen:
            problems.add(cell, None, "it has no rubric, and a person grades it: add a cell "
                         f'# %% [markdown] rubric="{cell.grade_id}" with lines such as "{FORM}"')
        if not _model(cell):
            problems.add(cell, None, "it is empty: write the model answer here; students do "
                         "not see it")
        if text_of(list(lab.cells), index) is None:
            problems.add(cell, None, "no text cell above asks the question")


def _criteria(cell: Cell, written: Cell, problems: Problems) -> None:
    try:
        rubric = read(cell)
    except ValueError as error:
        problems.add(cell, error.args[1], error.args[0])
        return
    if not rubric.criteria:
        problems.add(cell, None, f"it has no criteria; write them as {FORM}")
    elif not math.isclose(rubric.points, written.points):
        problems.add(cell, None, f"its criteria sum to {counted(rubric.points)}, but "
                     f"{written.title} is worth {written.points:g}")


def _model(written: Cell) -> str:
    """Return the model answer: the text between the markers, or the whole cell without markers."""
    lines, inside = written.source.split("\n"), BEGIN not in written.source
    kept = []
    for line in lines:
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside:
            kept.append(line)
    return "\n".join(kept).strip()


def for_graders(written: Cell, rubric: Rubric) -> str:
    """Return the source of the instructor's cell: model answer and rubric, between the markers
    that nbgrader clears."""
    source = written.source if BEGIN in written.source else f"{BEGIN}\n{written.source}\n{END}"
    before, _, after = source.rpartition(END)
    parts = [f"**Rubric** ({counted(rubric.points)})", "\n".join(map(str, rubric.criteria)),
             *([rubric.notes] if rubric.notes else [])]
    return before.rstrip("\n") + "\n\n" + "\n\n".join(parts) + f"\n{END}{after}"


def for_students(rubric: Rubric) -> str:
    """Return the text that a student's notebook adds to the question."""
    line = f"\n\n*A person grades this answer ({counted(rubric.points)})"
    if not rubric.visible:
        return f"{line}.*"
    return f"{line} by these criteria:*\n\n" + "\n".join(map(str, rubric.criteria))
