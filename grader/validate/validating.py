"""Run a notebook as grading will, and give a verdict on each exercise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from grader.cleaning import COLORS
from grader.course.reasons import Unusable
from grader.course.submitted import LARGEST, parse
from grader.run import lab_plan
from grader.run.lab_plan import GradingPlan, PlannedCell, heading
from grader.run.notebook_run import NotebookRun
from grader.run.rebuild import answers, rebuild, require_notebook
from grader.run.settings import Grading
from grader.sandbox.interface import Backend
from labcore import own_labs
from labcore.errors import LabError
from labcore.workspace import CHECKOUT
from labkit.cells import Code, Role
from labkit.cells import read_release as released_cells
from labkit.provenance import Provenance, RunCell

SEED = "notebook"  # the notebook's own: the same cases as in its checks
NO_ANSWER, STUB = "it has no answer yet", "Your turn: "  # labkit.build.stubs writes the latter
PASSED, FAILED, UNDECIDED, BY_HAND = "passed", "failed", "undecided", "by hand"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one exercise.

    Attributes:
        exercise: its heading.
        state: PASSED, FAILED, UNDECIDED, or BY_HAND.
        points: earned; None for an answer that a person grades.
        most: the points that it is worth.
        text: why it is not passed.
        warnings: what its answer relies on and grading will not have.
    """

    exercise: str
    state: str
    points: float | None
    most: float
    text: str = ""
    warnings: tuple[str, ...] = ()


def read(path: Path) -> Any:
    """Return a student's notebook, as grading reads it. Raises LabError."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise LabError(f"{path} is larger than {LARGEST / 1e6:.0f} MB, the most that "
                           "grading reads: clear its outputs (Edit > Clear Outputs of All "
                           "Cells), and save it")
        submitted = parse(content, path.name)
        require_notebook(submitted)
    except Unusable as error:
        raise LabError(f"{path}: {error}") from error
    return submitted


def release_of(submitted: Any, name: str) -> Path:
    """Return the lab that a notebook belongs to, whatever its name: the released notebook with the
    most of its answer cells.

    Args:
        submitted: the student's notebook.
        name: the file's name without its ending, which decides between two such labs.

    Raises LabError.
    """
    marks = {grade_id for grade_id, *_ in answers(submitted)}
    folders = [CHECKOUT, *filter(None, [own_labs.folder()])]
    paths = [path for folder in folders for path in sorted((folder / "notebooks").glob("*.ipynb"))]

    def matches(path: Path) -> tuple[int, bool]:
        return len(marks & released_cells(path).by_grade_id.keys()), path.stem == name

    best = max(paths, key=matches, default=None)
    if best is None or not matches(best)[0]:
        raise LabError(f"{name} has none of a lab's answer cells; the labs are "
                       f"{', '.join(path.stem for path in paths) or 'not here'}")
    return best


class Validation(NotebookRun):
    """The run of a notebook that grading does, which reports each exercise when it ends."""

    def __init__(self, plan: GradingPlan, notebook: NotebookNode, backend: Backend,
                 provenance: Provenance, done: Callable[[Verdict], None]) -> None:
        """Args:
            plan: the lab's plan, without hidden tests.
            notebook: the rebuilt notebook.
            backend: runs the student's code.
            provenance: where the names in the student's notebook come from.
            done: called with each verdict.
        """
        super().__init__(plan, notebook, backend, Grading(), SEED)
        self.provenance, self.done = provenance, done
        self.reported: set[str] = set()
        self.answer_errors: list[str] = []  # since the last check

    def _run_student_cell(self, cell: PlannedCell) -> None:
        super()._run_student_cell(cell)
        if cell.role is Role.ANSWER:
            self.answer_errors += [
                f"the answer cell {cell.name} raised {output.ename}: {output.evalue}"
                for output in self.notebook.cells[cell.index].outputs
                if output.output_type == "error" and output.ename != "NotImplementedError"]

    def _check(self, cell: PlannedCell) -> None:
        super()._check(cell)
        self.report(cell)
        self.answer_errors.clear()

    def report(self, cell: PlannedCell) -> None:
        """Report the verdict on a check, once."""
        if cell.grade_id in self.reported:
            return
        self.reported.add(cell.grade_id)
        points = self.scores.get(cell.grade_id, 0.0)
        state = (UNDECIDED if cell.grade_id in self.unscored else
                 PASSED if points == cell.points else FAILED)
        text, warnings = "", ()
        if state is not PASSED:
            text = self.unscored.get(cell.grade_id) or "\n".join(
                COLORS.sub("", output.evalue) for output in self.notebook.cells[cell.index].outputs
                if output.output_type == "error")
            text = NO_ANSWER if STUB in text else "\n".join([text, *self.answer_errors])
            warnings = tuple(self.provenance.problems(
                self.provenance.release.by_grade_id[cell.grade_id]))
        self.done(Verdict(heading(self.notebook, cell.index), state, points, cell.points, text,
                          warnings))


def validate(submitted: Any, release: Path, backend: Backend,
             done: Callable[[Verdict], None]) -> None:
    """Run a notebook as grading will, with the visible tests only.

    Args:
        submitted: the student's notebook.
        release: the lab's notebook, as students get it.
        backend: runs the student's code.
        done: called with the verdict on each exercise.

    Raises LabError.
    """
    plan = lab_plan.read_release(release)
    try:
        notebook, _ = rebuild(plan.skeleton, submitted)
    except Unusable as error:
        raise LabError(str(error)) from error
    provenance = Provenance(released_cells(release), list(_cells(submitted)))
    run = Validation(plan, notebook, backend, provenance, done)
    run.run()
    for cell in plan.of(Role.CHECK):  # those that were never reached
        run.report(cell)
    for verdict in _written(plan, notebook):
        done(verdict)


def _cells(submitted: Any) -> Iterator[RunCell]:
    """Yield the code cells of a student's notebook, in its order."""
    for cell in require_notebook(submitted):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source")
        source = "".join(map(str, source)) if isinstance(source, list) else str(source)
        marked = [grade_id for grade_id, *_ in answers({"cells": [cell]})]
        yield RunCell(Code(source), str(cell.get("id", "")), *marked)


def _written(plan: GradingPlan, notebook: NotebookNode) -> Iterator[Verdict]:
    """Yield the verdicts on the answers that a person grades."""
    for index, cell in enumerate(notebook.cells):
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("solution") and marks.get("grade"):
            is_answered = cell.source.strip() != plan.skeleton.cells[index].source.strip()
            yield Verdict(heading(notebook, index), BY_HAND if is_answered else FAILED, None,
                          float(marks["points"]), "" if is_answered else NO_ANSWER)

