"""Read the stored results of a lab: scores from the gradebook, and messages of checks from the
notebooks in autograded/, which only the trusted side writes."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.api import Assignment, BaseCell, Grade, Gradebook, SubmittedAssignment
from nbgrader.api import SubmittedNotebook as Submitted

from grader.course import Course, Submission
from grader.gradebook.decisions import EXCUSED, SCORE, current
from grader.gradebook.records import gradebook, state
from grader.stats.hints import AuthoredHint, first_fired, hints_in
from labcore.errors import LabError

LARGEST = 64_000_000  # bytes of a graded notebook


@dataclass(frozen=True)
class Check:
    """One graded cell of the lab."""

    name: str  # its grade_id
    points: float
    answers: Sequence[str]  # the grade_ids of the answers before it
    hints: Sequence[AuthoredHint]


@dataclass
class StoredResults:
    """The stored results of a lab's submissions. Each list has one item per submission.

    Attributes:
        scores: the scores of checks that have one.
        tried: answers that differ from the release.
        without_hint: failed checks whose message has no known hint.
    """

    lab: str
    checks: Sequence[Check]
    scores: list[Mapping[str, float]] = field(default_factory=list)
    graded: list[bool] = field(default_factory=list)
    tried: list[frozenset[str]] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    excused: int = 0
    fired: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    without_hint: Counter[str] = field(default_factory=Counter)


def read(course: Course, lab: str) -> StoredResults:
    """Return the stored results. Raises LabError if the lab was never released.

    Args:
        course: the course.
        lab: the lab's name.
    """
    source, release = _notebook(course, "source", lab), _notebook(course, "release", lab)
    results = StoredResults(lab, checks_of(source))
    given = {cell.metadata.nbgrader.grade_id: cell.source for cell in release.cells
             if utils.is_solution(cell)}
    excused = {decision.student for decision in current(course, SCORE).values()
               if decision.lab == lab and decision.value == EXCUSED}
    results.excused = len(excused)
    with gradebook(course) as book:
        scores = _scores(book, lab)
        for student in course.students(lab):
            if student in excused:
                continue
            submission = Submission(course, lab, student)
            verdict, record = state(submission, book)[0], submission.record
            partly = (record is not None and record.state == "ungraded" and record.unscored
                      and record.digest == submission.digest)
            counts = verdict == "graded" or partly
            results.graded.append(verdict == "graded")
            results.scores.append(scores.get(student, {}) if counts else {})
            results.attempts.append(max(1, len(record.history)) if record else 0)
            notebook = _graded_notebook(submission) if counts else {}
            _messages(results, results.scores[-1], notebook)
            results.tried.append(frozenset(
                name for name, text in _sources(notebook).items() if text != given.get(name)))
    return results


def checks_of(source: NotebookNode) -> list[Check]:
    """Return the graded cells of a lab, each with the answers since the one before it."""
    checks: list[Check] = []
    answers: list[str] = []
    checked = True
    for cell in source.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        if utils.is_solution(cell):
            answers = [name] if checked else [*answers, name]
            checked = False
        if utils.is_grade(cell):
            checked = True
            checks.append(Check(name, float(cell.metadata.nbgrader.get("points", 0)),
                                tuple(answers), hints_in(cell.source)))
    return checks


def _notebook(course: Course, step: str, lab: str) -> NotebookNode:
    path = course.notebook(step, lab)
    if not path.is_file():
        raise LabError(f"{path} does not exist yet: `lab grade {lab}` creates it")
    return nbformat.read(path, as_version=4)


def _scores(book: Gradebook, lab: str) -> dict[str, dict[str, float]]:
    """Return points by student and check; a person's score takes precedence over the grader's."""
    query = (book.db.query(SubmittedAssignment.student_id, BaseCell.name, Grade.auto_score,
                           Grade.manual_score, Grade.extra_credit)
             .join(Submitted, Submitted.assignment_id == SubmittedAssignment.id)
             .join(Grade, Grade.notebook_id == Submitted.id)
             .join(BaseCell, BaseCell.id == Grade.cell_id)
             .join(Assignment, Assignment.id == SubmittedAssignment.assignment_id)
             .filter(Assignment.name == lab))
    points: dict[str, dict[str, float]] = defaultdict(dict)
    for student, name, auto, manual, extra in query:
        score = auto if manual is None else manual
        if score is not None and math.isfinite(total := score + (extra or 0.0)):
            points[student][name] = total
    return points


def _graded_notebook(submission: Submission) -> dict[str, Any]:
    """Return the graded notebook; empty if it cannot be read, so its messages are not counted."""
    path = submission.notebook("autograded")
    try:
        if path.stat().st_size > LARGEST:
            return {}
        notebook = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    is_notebook = isinstance(notebook, dict) and isinstance(notebook.get("cells"), list)
    return notebook if is_notebook else {}


def _sources(notebook: Mapping[str, Any]) -> dict[str, str]:
    """Return the answers by grade_id."""
    return {name: "".join(cell.get("source", "")) for name, cell in _cells(notebook).items()
            if cell["metadata"]["nbgrader"].get("solution")}


def _cells(notebook: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["metadata"]["nbgrader"].get("grade_id", ""): cell
            for cell in notebook.get("cells", ())
            if isinstance(cell.get("metadata", {}).get("nbgrader"), dict)}


def _messages(results: StoredResults, scores: Mapping[str, float],
              notebook: Mapping[str, Any]) -> None:
    """Count the hints that one submission received.

    Args:
        results: the results, to which the counts are added.
        scores: the submission's points by check.
        notebook: its graded notebook.
    """
    cells = _cells(notebook)
    for check in results.checks:
        if check.name not in scores or check.name not in cells:
            continue
        for output in cells[check.name].get("outputs", ()):
            if output.get("output_type") == "error":
                hint = first_fired(check.hints, str(output.get("evalue", "")))
                if hint:
                    results.fired[check.name][hint.text] += 1
                else:
                    results.without_hint[check.name] += 1
                break
