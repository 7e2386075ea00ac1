"""The model answer and the rubric of a written answer, which graders see and students do not."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import nbformat
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode, v4

from grader.course import Course, Submission
from grader.gradebook.byhand import COMMENT
from grader.gradebook.pending import is_written
from labkit.build.stubs import BEGIN, END

BOX = """<div class="panel panel-info"><div class="panel-heading">For graders: the model answer and
the rubric of <code>{name}</code></div><div class="panel-body">

{text}

</div></div>"""


DECIDE = """<div class="panel panel-warning"><div class="panel-body">To decide: an earlier version
of <code>{name}</code> was given {text}. Score this version, or run <code>lab review</code>.</div>
</div>
"""


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


def _to_decide(name: str, held: dict[str, Any]) -> str:
    """Return a box about what a person entered for an earlier version of a cell; empty if nothing
    waits.

    Args:
        name: the cell's name.
        held: what is set aside, keyed as in `byhand.entered_by_hand`.
    """
    scores = zip(held.get(name) or (), ("points", "extra points"), strict=False)
    parts = [f"{score:g} {what}" for score, what in scores if score is not None]
    if comment := held.get(COMMENT + name):
        parts.append("the comment " + html.escape(json.dumps(str(comment), ensure_ascii=False)))
    return DECIDE.format(name=html.escape(name), text=" and ".join(parts)) if parts else ""


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
        course, lab = Course(folder.parents[2]), str(resources["assignment_id"])
        rubrics = for_graders(course, lab)
        record = Submission(course, lab, folder.parent.name).record
        held = record.set_aside if record else {}
        cells = []
        for cell in nb.cells:
            cells.append(cell)
            text = rubrics.get(cell.metadata.nbgrader["grade_id"]) if is_written(cell) else None
            if text:
                name = cell.metadata.nbgrader["grade_id"]
                cells.append(v4.new_markdown_cell(BOX.format(name=name, text=text)))
            if box := _to_decide(str(cell.metadata.get("nbgrader", {}).get("grade_id")), held):
                cells.append(v4.new_markdown_cell(box))
        nb.cells = cells
        return nb, resources
