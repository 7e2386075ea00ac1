"""Make feedback pages in a worker, with nbgrader's exporter, which is set up once."""

from __future__ import annotations

import os
from typing import Any

import nbformat
from nbformat import NotebookNode
from nbgrader.converters import GenerateFeedback
from nbgrader.coursedir import CourseDirectory
from nbgrader.preprocessors import GetGrades
from traitlets.config import Config

from grader.course import Course, Submission
from labcore.atomic import write_atomic


class GivenGrades(GetGrades):
    """nbgrader's step, with scores and comments from the parent, because only it has the
    gradebook."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        given = self.given = resources["nbgrader"]["given"]
        resources["nbgrader"].update(late_penalty=given["late_penalty"],
                                     max_score=given["max_score"],
                                     score=given["score"] - given["late_penalty"])
        for index, cell in enumerate(nb.cells):
            nb.cells[index], resources = self.preprocess_cell(cell, resources, index)
        return nb, resources

    def _get_comment(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        marks = cell.metadata.nbgrader
        marks["comment"] = self.given["comments"].get(marks["grade_id"])

    def _get_score(self, cell: NotebookNode, resources: dict[str, Any]) -> None:
        marks = cell.metadata.nbgrader
        marks["score"], marks["points"] = self.given["scores"][marks["grade_id"]]


class FeedbackPages:
    """Makes feedback/STUDENT/LAB/LAB.html from the notebook in autograded/."""

    def __init__(self, course: Course, settings: Config) -> None:
        self.course = course
        converter = GenerateFeedback(coursedir=CourseDirectory(config=settings), config=settings)
        self.exporter = converter.exporter_class(parent=converter, config=converter.config)
        for step in converter.preprocessors:
            self.exporter.register_preprocessor(GivenGrades if step is GetGrades else step,
                                                enabled=True)

    def make(self, submission: Submission, given: dict[str, Any], member: str = "") -> None:
        """Make one page.

        Args:
            submission: the submission.
            given: the result of grader.batch.merge.feedback_values, and the notices.
            member: another member of the submission's group, whose page this is.
        """
        notebook = nbformat.read(submission.notebook("autograded"), as_version=4)
        lab, student = submission.key
        resources = {"unique_key": lab, "output_files_dir": f"{lab}_files", "nbgrader": {
            "student": student, "assignment": lab, "notebook": lab, "given": given}}
        before = os.getcwd()
        os.chdir(self.course.root)  # as nbgrader does
        try:
            text, _ = self.exporter.from_notebook_node(notebook, resources)
        finally:
            os.chdir(before)
        page = Submission(self.course, lab, member).page if member else submission.page
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(page, text.encode(errors="backslashreplace"))
