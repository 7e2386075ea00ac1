"""The model answer and the rubric of a written answer, which graders see and students do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode, v4
from nbgrader import utils

from grader.course import Course
from labkit.build.stubs import BEGIN, END

BOX = """<div class="panel panel-info"><div class="panel-heading">For graders: the model answer and
the rubric of <code>{name}</code></div><div class="panel-body">

{text}

</div></div>"""


def is_written(cell: NotebookNode) -> bool:
    """Return whether a cell is a written answer that has points."""
    return cell.cell_type == "markdown" and utils.is_grade(cell) and utils.is_solution(cell)


def for_graders(course: Course, lab: str) -> dict[str, str]:
    """Return the model answers and rubrics of a lab's source as Markdown, by grade_id.

    Args:
        course: the course.
        lab: the lab's name.

    Empty if the source cannot be read.
    """
    try:
        source = nbformat.read(course.notebook("source", lab), as_version=4)
    except (OSError, ValueError):
        return {}
    return {cell.metadata.nbgrader["grade_id"]: between_markers(cell.source)
            for cell in source.cells if is_written(cell)}


def between_markers(source: str) -> str:
    """Return the text between the markers, which nbgrader removes for students; all of it without
    markers."""
    lines, inside = [], BEGIN not in source
    for line in source.split("\n"):
        if line.strip() in (BEGIN, END):
            inside = line.strip() == BEGIN
        elif inside:
            lines.append(line)
    return "\n".join(lines).strip()


class ShowRubrics(Preprocessor):
    """Shows the rubric below each written answer in formgrader.

    Students' pages are made by the same exporter and do not get it: only formgrader has a
    submission's id.
    """

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        if "submission_id" not in resources or "nbgrader" in resources:
            return nb, resources
        folder = Path(resources["metadata"]["path"])  # autograded/STUDENT/LAB
        rubrics = for_graders(Course(folder.parents[2]), str(resources["assignment_id"]))
        cells = []
        for cell in nb.cells:
            cells.append(cell)
            text = rubrics.get(cell.metadata.nbgrader["grade_id"]) if is_written(cell) else None
            if text:
                name = cell.metadata.nbgrader["grade_id"]
                cells.append(v4.new_markdown_cell(BOX.format(name=name, text=text)))
        nb.cells = cells
        return nb, resources
