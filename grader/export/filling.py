"""Compute the cells to write, and report everything that is not written.

A cell is written for a score or for an excused student. For ungraded students the LMS keeps its
value: an empty cell has no effect there, and a grade that was entered in the LMS by hand is not
ours to remove.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grader.export.layout import Column, Entry, LmsFile, number_in, written
from grader.export.matching import Matches
from grader.gradebook.decisions import EXCUSED
from grader.gradebook.records import NOTHING_SUBMITTED
from grader.report.grades import NEEDS_REVIEW
from labcore.errors import LabError
from labcore.terminal import visible

NEAR = 5e-6  # two scores closer than this are one, since five decimals are written
SHOWN = 0.005  # both LMSs round to two decimals in their files


@dataclass
class FilledColumn:
    """The outcome for one lab. Each list has one line of text per student.

    Attributes:
        kept: ungraded students, for whom the LMS's cell stays.
        absent: number of students who submitted nothing and have no grade in the LMS.
        lost: students whose score could not be written.
        provisional: students whose score is not final.
        overwritten: every entry of the LMS that is replaced, with its old and its new value.
    """

    lab: str
    column: Column
    cells: dict[tuple[int, int], str] = field(default_factory=dict)
    new: int = 0
    changed: int = 0
    same: int = 0
    excused: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    absent: int = 0
    lost: list[str] = field(default_factory=list)
    provisional: list[str] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)


def fill(layout: LmsFile, matches: Matches, lab: str, column: Column, rows: Sequence[Any],
         scale: bool) -> FilledColumn:
    """Compute the cells of one lab.

    Args:
        layout: the LMS's file.
        matches: the rows of our students in it.
        lab: the lab.
        column: where its scores go.
        rows: the lab's rows of grades.csv (grader.report.grades.GradeRow).
        scale: multiply scores so that the lab's maximum becomes the column's.

    Raises:
        LabError: the maximum points differ, and `scale` is off or not possible.
    """
    filled = FilledColumn(lab, column)
    factor = _factor(layout, lab, column, rows, scale)
    for row in rows:
        entry = matches.entries.get(row.student)
        if row.state == EXCUSED:
            _excuse(layout, filled, row.student, entry)
        elif row.state == "graded" and row.score is not None:
            _score(layout, filled, row, entry, factor)
        elif entry:
            _keep(layout, filled, row, entry)
    return filled


def _keep(layout: LmsFile, filled: FilledColumn, row: Any, entry: Entry) -> None:
    current = layout.sheet.cell(entry.row, filled.column.index).strip("- ")
    if current and current != layout.not_assigned:
        filled.kept.append(f"{visible(row.student)}: {visible(row.reason)}; {layout.lms} has "
                           f"{visible(current)}")
    elif row.reason == NOTHING_SUBMITTED:
        filled.absent += 1
    else:
        filled.kept.append(f"{visible(row.student)}: {visible(row.reason)}")


def _factor(layout: LmsFile, lab: str, column: Column, rows: Sequence[Any], scale: bool) -> float:
    ours: Mapping[float, None] = dict.fromkeys(row.max_score for row in rows)
    if not ours:
        return 1.0
    most = next(iter(ours))
    if column.most is None:
        if scale:
            raise LabError(f"--scale: {layout.sheet.path} does not tell the maximum points of "
                           f"{visible(column.heading)!r}")
        return 1.0
    if column.most == most:
        return 1.0
    if not scale or not most or not column.most:
        raise LabError(f"{lab} has {most:g} points, but {visible(column.heading)!r} in "
                       f"{layout.sheet.path} has {column.most:g}: set {most:g} in {layout.lms} and "
                       "download the file again, or pass --scale to multiply the scores by "
                       f"{column.most:g}/{most:g}")
    return column.most / most


def _score(layout: LmsFile, filled: FilledColumn, row: Any, entry: Entry | None,
           factor: float) -> None:
    who, score = visible(row.student), row.score * factor
    problem = _problem(layout, filled.column, entry, score)
    if problem:
        filled.lost.append(f"{who} ({written(score)}): {problem}")
        return
    if NEEDS_REVIEW in row.reason:
        filled.provisional.append(who)
    current = layout.sheet.cell(entry.row, filled.column.index).strip()
    before = number_in(current)
    if before is None or abs(before - score) >= NEAR:
        filled.cells[entry.row, filled.column.index] = written(score)
    if before is not None and abs(before - score) <= SHOWN:
        filled.same += 1
    elif current.strip("- "):
        filled.changed += 1
        filled.overwritten.append(f"{who}: {visible(current)} -> {written(score)}")
    else:
        filled.new += 1


def _problem(layout: LmsFile, column: Column, entry: Entry | None, score: float = 0.0) -> str:
    """Return why a cell cannot be written; empty if it can."""
    if entry is None:
        return f"not in {layout.sheet.path.name}"
    if column.index >= len(layout.sheet.rows[entry.row]):
        return f"line {layout.sheet.lines[entry.row]} of {layout.sheet.path.name} is too short"
    current = layout.sheet.cell(entry.row, column.index).strip()
    if layout.not_assigned and current == layout.not_assigned:
        return f"{layout.lms} has {current}: not assigned to this student"
    if entry.locked:
        return entry.locked
    if layout.one_assignment and column.most is not None and score > column.most + NEAR:
        return f"{layout.lms} ignores more than the maximum of {column.most:g}"
    return ""


def _excuse(layout: LmsFile, filled: FilledColumn, student: str, entry: Entry | None) -> None:
    who = visible(student)
    problem = _problem(layout, filled.column, entry)
    if problem:
        filled.lost.append(f"{who} (excused): {problem}")
        return
    filled.excused.append(who)
    current = layout.sheet.cell(entry.row, filled.column.index).strip()
    if layout.excused and current.upper() != layout.excused:
        if current.strip("- "):
            filled.overwritten.append(f"{who}: {visible(current)} -> {layout.excused}")
        filled.cells[entry.row, filled.column.index] = layout.excused
