"""nbconvert's HTML exporter, which sanitizes what students wrote after it is rendered.

nbconvert sanitizes the sources of Markdown cells before rendering: `[x](javascript:...)` holds no
HTML yet, and survives. Its templates also paste some values between others that are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import DictLoader, pass_context
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbgrader import utils

from grader.cleaning import TEXTS
from grader.nbgrader_plugin import mathjax
from grader.nbgrader_plugin.clean import student_html

PICTURES = ("image/png", "image/jpeg", "image/gif")


class Sanitized(HTMLExporter):
    """A page in which students' answers and all outputs are sanitized, whatever the settings say.

    The course's own text is not a student's, and stays.
    """

    templates = mathjax.TEMPLATES  # take the place of nbconvert's and nbgrader's

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.extra_loaders = [DictLoader(self.templates)]

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        yield "clean_html", student_html
        # nbconvert takes "files/" from the front of an address that is already sanitized.
        yield "strip_files_prefix", unchanged

    def _init_resources(self, resources: Any) -> Any:
        return super()._init_resources(resources) | {"should_sanitize_html": True}

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Render Markdown, and sanitize it unless the cell is the course's own."""
        foreign = by_student(context.get("cell", {}))
        self.exclude_anchor_links = foreign
        rendered = super().markdown2html(context, source)
        return student_html(rendered) if foreign else rendered


def unchanged(text: str) -> str:
    """Return the text: the filter in place of one that would undo the sanitizing."""
    return text


def by_student(cell: NotebookNode) -> bool:
    """Return whether a cell's text or outputs are a student's."""
    return cell.get("cell_type") != "markdown" or utils.is_solution(cell)


class Harmless(Preprocessor):
    """Keeps of outputs and attachments only what a page can show without running anything."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        nb.metadata.pop("widgets", None)
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = NotebookNode({kind: content for kind, content in output.data.items()
                                            if kind in TEXTS})
            if "metadata" in output:  # the templates write sizes without quotation marks
                output.metadata = NotebookNode()
        if cell.cell_type == "markdown":
            given = cell.get("attachments", {})
            if by_student(cell):
                given = {name: pictures for name, kinds in given.items()
                         if (pictures := {one: kinds[one] for one in PICTURES if one in kinds})}
            cell["attachments"] = Attached(given)
        return cell, resources


class Attached(NotebookNode):
    """Pictures of a written answer. nbconvert makes no page where one is named that is not there;
    here it is an empty one."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> dict[str, str]:
        return {"image/png": ""}
