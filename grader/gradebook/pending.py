"""Written answers that still need manual grading: they have no score, not a score of 0."""

from __future__ import annotations

import html
from typing import Any

from nbformat import NotebookNode, v4
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor

from grader.gradebook.records import gradebook, submission_of

NOT_GRADED = ("**Not graded yet.** A person grades this answer. The score of this lab is "
              "incomplete until then.")


def is_written(cell: NotebookNode) -> bool:
    """Return whether a cell is a written answer that has points."""
    return cell.cell_type == "markdown" and utils.is_grade(cell) and utils.is_solution(cell)


def pending(submission: Any) -> dict[str, float]:
    """Return the cells of a submission that still need a manual score, with their points.

    A cell that needs only another look has a score and is not among them.
    """
    return {grade.name: float(grade.max_score) for notebook in submission.notebooks
            for grade in notebook.grades if grade.needs_manual_grade
            and grade.manual_score is None and grade.auto_score is None}


def incomplete(cells: dict[str, float]) -> str:
    """Describe what is missing in a submission's score; empty if nothing is."""
    if not cells:
        return ""
    names = ", ".join(f"{name} ({points:g} points)" for name, points in sorted(cells.items()))
    return f"incomplete: {names} to grade by hand"


class MarkPending(NbGraderPreprocessor):
    """Removes the 0 from answers that nobody has graded, and marks them as not graded."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        pending_cells = self._pending(resources)
        cells = []
        for cell in nb.cells:
            cells.append(cell)
            marks = cell.metadata.get("nbgrader", {})
            if marks.get("grade") and marks.get("grade_id") in pending_cells:
                marks["grade"] = False  # for the page's template: then it writes no score
                cells.append(v4.new_markdown_cell(NOT_GRADED))
        nb.cells = cells
        if text := incomplete(pending_cells):
            title = resources["nbgrader"]["notebook"]
            resources["nbgrader"]["notebook"] = f"{title}: {html.escape(text)}"
        return nb, resources

    def _pending(self, resources: dict[str, Any]) -> dict[str, float]:
        given = resources["nbgrader"].get("given")
        if given is not None:
            return given["pending"]
        submission = submission_of(self, resources)
        with gradebook(submission.course) as book:
            return pending(book.find_submission(*submission.key))
