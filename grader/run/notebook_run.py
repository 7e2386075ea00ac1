"""Grade one submission cell by cell, in notebook order: the student's cells run in the sandbox, and
checks run on the trusted side."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NoReturn

from nbformat import NotebookNode

from grader import cleaning
from grader.run.lab_plan import GradingPlan, PlannedCell
from grader.run.measure import figures
from grader.run.remote import Remote
from grader.run.session import BudgetExhausted, SandboxFailed, Session
from grader.run.settings import Grading
from grader.run.trusted import TrustedNamespace, Verdict, text_for_students, text_of
from grader.sandbox.interface import Backend
from grader.sandbox.watchdog import SHORT_OF_MEMORY
from labcore.colors import bad, good
from labkit.cells import Role
from labkit.check.checks import Failed as Incorrect
from labkit.check.partial import PartResult, earned, report

MOST_OUTPUT = 10_000_000  # bytes of all outputs of a notebook, as JSON
LONGEST_REASON = 300
ON_RANKS = ("check.ranks(", "check.gpus(")


class CourseFailed(Exception):
    """Raised when one of the course's own cells failed, so that nothing can be said about the
    student."""


class NotebookRun:
    """Runs a rebuilt notebook and stores the outputs in it."""

    def __init__(self, plan: GradingPlan, notebook: NotebookNode, backend: Backend,
                 settings: Grading,
                 seed: str) -> None:
        self.plan, self.notebook = plan, notebook
        self.session = Session(backend, settings, plan.files, plan.masks, uses_ranks(plan))
        self.remote = Remote(_nothing_to_ask, seed, partial(figures, backend=backend))
        self.trusted = TrustedNamespace(self.remote, plan.answers)
        self.scores: dict[str, float] = {}
        self.unscored: dict[str, str] = {}  # by grade_id: why
        self.part_reports: dict[str, str] = {}  # by check with partial credit
        self.count, self.output_budget = 0, MOST_OUTPUT
        self.own_doing = True  # whether the student's code is why something is unscored

    def run(self) -> str:
        """Run all cells in order; return why the submission is ungraded, or an empty string."""
        at = None
        try:
            for at in self.plan.cells:
                self._cell(at)
        except CourseFailed as error:
            self.own_doing = False
            self.scores.clear()
            self.unscored.clear()
            self._leave_the_rest(str(error))
        except SandboxFailed as error:
            self.own_doing = False
            self._leave_the_rest(str(error))
        except BudgetExhausted:
            self._leave_the_rest(self.session.explain(None, at.name, 0) if at else "")
        finally:
            self.session.discard()
        if any(SHORT_OF_MEMORY in why for why in self.unscored.values()):
            self.own_doing = False  # perhaps: the next batch tries again
        for cell in self.plan.cells:
            if cell.grade_id in self.unscored:
                self._report_unscored(cell)
        return cleaning.line("; ".join(dict.fromkeys(self.unscored.values())), LONGEST_REASON)

    def _leave_the_rest(self, reason: str) -> None:
        for name in self.plan.points:
            if name not in self.scores or name in self.unscored:
                self.unscored[name] = self.unscored.get(name) or reason

    def _cell(self, cell: PlannedCell) -> None:
        if cell.role is Role.CHECK:
            self._check(cell)
        elif cell.role is Role.CHECK_SETUP:
            self._check_setup(cell)
        elif cell.role is not Role.EXPLORE:
            self._run_student_cell(cell)

    def _run_student_cell(self, cell: PlannedCell) -> None:
        """Run a cell in the sandbox."""
        answer = cell.role is Role.ANSWER
        result = self.session.run(cell, self.notebook.cells[cell.index].source if answer
                                  else cell.source)
        if cell.trusted is not None:
            self.trusted.define(cell, self.session.budget())
        if result is None:
            why = self.session.incidents[cell.name]
            if cell.required:
                raise CourseFailed(f"the course's own cell {cell.name}: {why}")
            self._put(cell, [cleaning.error("Skipped", why, [why])])
            return
        self._put(cell, result.outputs)
        if cell.required and result.raised:
            raise CourseFailed(_failed(cell, result.raised.names[0], result.raised.text))

    def _check_setup(self, cell: PlannedCell) -> None:
        self.remote.ask = _nothing_to_ask
        verdict = self.trusted.setup(cell, self.session.budget())
        self._put(cell, verdict.outputs)
        if verdict.lost:
            raise CourseFailed(f"the course's own cell {cell.name}: {verdict.lost}")
        if verdict.failed is not None:
            raise CourseFailed(_failed(cell, type(verdict.failed).__name__, str(verdict.failed)))

    def _check(self, cell: PlannedCell) -> None:
        if cell.parts:
            self._check_parts(cell)
            return
        verdict, why = self._judge(cell)
        self._put(cell, verdict.outputs)
        if why:
            self.unscored[cell.grade_id] = why
        else:
            self.scores[cell.grade_id] = cell.points if verdict.passed else 0.0

    def _judge(self, cell: PlannedCell) -> tuple[Verdict, str]:
        """Run a check or a part of one; return its verdict, and why it cannot be scored, if so.

        Raises SandboxFailed and BudgetExhausted.
        """
        self.session.ready()
        budget = self.session.budget()
        self.remote.ask = self.session.ask(budget)
        verdict = self.trusted.check(cell, budget)
        if verdict.lost:
            self.session.discard()  # after an alarm nobody knows what it was asked for
            return verdict, self._why_lost(cell, verdict, budget.seconds)
        if verdict.failed is not None and self.session.incidents:
            return verdict, "; ".join(self.session.incidents.values())
        return verdict, ""

    def _check_parts(self, cell: PlannedCell) -> None:
        """Run a check with partial credit, and decide its parts one by one.

        A part that hangs or ends the sandbox does not change the others' points; the check stays
        unscored until a person decides.
        """
        name, outputs, reasons = cell.grade_id, [], []
        outcomes = [PartResult(part.points, part.title, is_decided=False) for part in cell.parts]
        full = outcomes.copy()  # what an instructor reads
        self.unscored[name] = ""  # until all parts are decided; _leave_the_rest gives the reason
        try:
            for at, part in enumerate(cell.parts):
                verdict, why = self._judge(part.cell)
                outputs += [one for one in verdict.outputs if one.output_type == "stream"]
                reasons += [why] if why else []
                for results, text_from in ((outcomes, partial(text_for_students, cell=part.cell)),
                                           (full, text_of)):
                    text = None if verdict.passed else why or text_from(verdict.failed)
                    results[at] = PartResult(part.points, part.title, text, is_decided=not why)
        finally:
            text = self.part_reports[name] = report(outcomes)
            if any(one.is_decided for one in outcomes):
                self.scores[name] = min(earned(outcomes), cell.points)
            if all(one.is_decided for one in outcomes):
                del self.unscored[name]
                passed = all(one.error is None for one in outcomes)
                lines = [f"{good('✓') if passed else bad('✗')} {report(full)}"]
                outputs.append(cleaning.stream(lines[0] + "\n") if passed
                               else cleaning.error(Incorrect.__name__, text, lines))
            self._put(cell, outputs)
        if reasons:
            self.unscored[name] = "; ".join(dict.fromkeys(reasons))

    def _why_lost(self, cell: PlannedCell, verdict: Verdict, seconds: float) -> str:
        if self.remote.unmeasured:
            self.own_doing = False
        if self.remote.lost is None and not verdict.late:
            return f"{verdict.lost}, at cell {cell.name}"
        return self.session.explain(self.remote.lost, cell.name, seconds)

    def _put(self, cell: PlannedCell, outputs: list[NotebookNode]) -> None:
        self.count += 1
        self.output_budget -= len(json.dumps(outputs))
        if self.output_budget < 0:
            outputs = [cleaning.stream("[the outputs of this notebook were too long]\n")]
        self.notebook.cells[cell.index].outputs = outputs
        self.notebook.cells[cell.index].execution_count = self.count

    def _report_unscored(self, cell: PlannedCell) -> None:
        """Add an error output, so that no reader of the outputs takes the check for passed."""
        text = f"not scored: {self.unscored[cell.grade_id]}"
        if cell.grade_id in self.part_reports:
            text += f"\n{self.part_reports[cell.grade_id]}"
        graded = self.notebook.cells[cell.index]
        graded.outputs = [*[output for output in graded.outputs if output.output_type == "stream"],
                          cleaning.error("NotScored", text, [text])]


def uses_ranks(plan: GradingPlan) -> bool:
    """Return whether a check runs a driver on ranks or virtual GPUs."""
    return any(call in cell.source for cell in plan.of(Role.CHECK) for call in ON_RANKS)


def _failed(cell: PlannedCell, name: str, text: str) -> str:
    return f"the course's own cell {cell.name} failed: {name}: {cleaning.line(text, 200)}"


def _nothing_to_ask(*arguments: Any, **fields: Any) -> NoReturn:
    raise RuntimeError("a check-setup cell uses a student's name")
