"""nbconvert's HTML exporter, which sanitizes what students wrote after it is rendered.

nbconvert sanitizes the sources of Markdown cells before rendering: `[x](javascript:...)` holds no
HTML yet, and survives. Its templates also paste some values between others that are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from jinja2 import BytecodeCache, DictLoader, Environment, pass_context
from jinja2.bccache import Bucket
from jinja2.runtime import Context
from nbconvert.exporters import HTMLExporter
from nbconvert.exporters.templateexporter import TemplateExporter
from nbconvert.filters import Highlight2HTML, ansi2html
from nbconvert.filters.widgetsdatatypefilter import WidgetsDataTypeFilter
from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode
from nbgrader import utils

from grader.cleaning import TEXTS
from grader.nbgrader_plugin import mathjax
from grader.nbgrader_plugin.bounds import PICTURES, TOO_LARGE, PageBudget, as_text
from grader.nbgrader_plugin.clean import student_html
from labcore.errors import LabError

WITHOUT_ALT = re.compile(r"<img (?![^>]*\balt=)")
ALT = '<img alt="No description has been provided for this image" '


class CompiledTemplates(BytecodeCache):
    """Compiled templates of this process. Compiling them takes longer than rendering a page."""

    def __init__(self) -> None:
        self.codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self.codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.codes[bucket.key, bucket.checksum] = bucket.code


class Sanitized(HTMLExporter):
    """A page in which students' answers and all outputs are sanitized, whatever the settings say.

    The course's own text is not a student's, and stays.
    """

    templates = mathjax.TEMPLATES  # take the place of nbconvert's and nbgrader's
    compiled = CompiledTemplates()

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.extra_loaders = [DictLoader(self.templates)]
        self.budget = PageBudget()

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.bytecode_cache = self.compiled
        return environment

    def default_filters(self) -> Iterator[tuple[str, Any]]:
        yield from super().default_filters()
        yield "clean_html", self.clean_html
        yield "ansi2html", lambda text: self.budget.colored(text, ansi2html)
        # nbconvert takes "files/" from the front of an address that is already sanitized.
        yield "strip_files_prefix", unchanged

    def _init_resources(self, resources: Any) -> Any:
        return super()._init_resources(resources) | {"should_sanitize_html": True}

    def from_notebook_node(self, nb: NotebookNode, resources: Any = None, **more: Any
                           ) -> tuple[str, dict[str, Any]]:
        """Return the page. If a renderer fails, all answers on the page are shown as text."""
        self.budget = PageBudget()
        try:
            return self._page(nb, resources, **more)
        except LabError:
            raise
        except Exception as error:
            self.log.warning("Shown as text, since it cannot be rendered: %r", error)
            self.budget = PageBudget.spent()
            return self._page(nb, resources, **more)

    def _page(self, nb: NotebookNode, resources: Any, **more: Any) -> tuple[str, dict[str, Any]]:
        """Render the page. nbconvert's own method would parse it again, which takes minutes for
        some outputs."""
        language = nb.metadata.get("language_info", {})
        highlight = Highlight2HTML(parent=self, pygments_lexer=language.get(
            "pygments_lexer", language.get("name")))
        resources = self._init_resources(resources)
        self.register_filter("highlight_code", lambda source, *arguments, **keywords: (
            highlight(source, *arguments, **keywords) if self.budget.takes_code(source)
            else as_text(source)))
        self.register_filter("filter_data_type", WidgetsDataTypeFilter(
            notebook_metadata=self._nb_metadata, parent=self, resources=resources))
        text, resources = TemplateExporter.from_notebook_node(self, nb, resources, **more)
        return WITHOUT_ALT.sub(ALT, text), resources

    def clean_html(self, text: object) -> str:
        """Return the harmless part of HTML, or its source if sanitizing would take too long."""
        source = str(text)
        return self._laid_out(student_html(source), source) if self.budget.takes_html(source) \
            else as_text(source)

    def _laid_out(self, cleaned: str, source: str) -> str:
        """Return sanitized HTML, or its source if a browser could not lay it out."""
        return cleaned if self.budget.takes_layout(cleaned) else as_text(source)

    @pass_context
    def markdown2html(self, context: Context, source: str) -> str:
        """Render Markdown, and sanitize it unless the cell is the course's own.

        Args:
            context: the template's context.
            source: the Markdown.
        """
        foreign = by_student(context.get("cell", {}))
        if foreign and not self.budget.takes_markdown(source):
            return as_text(source)
        self.exclude_anchor_links = foreign
        rendered = super().markdown2html(context, source)
        return self._laid_out(student_html(rendered), source) if foreign else rendered


def unchanged(text: str) -> str:
    """Return the text: the filter in place of one that would undo the sanitizing."""
    return text


def by_student(cell: NotebookNode) -> bool:
    """Return whether a student wrote a cell's text or produced its outputs."""
    return cell.get("cell_type") != "markdown" or utils.is_solution(cell)


class Harmless(Preprocessor):
    """Keep only those outputs and attachments that a page can show without running code."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        nb.metadata.pop("widgets", None)
        self.budget = PageBudget()
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        for output in cell.get("outputs", []):
            if "data" in output:
                output.data = self._shown(output.data)
            if "metadata" in output:  # the templates write sizes without quotation marks
                output.metadata = NotebookNode()
        if cell.cell_type == "markdown":
            given = cell.get("attachments", {})
            if by_student(cell):
                given = {name: pictures for name, kinds in given.items()
                         if (pictures := {one: kinds[one] for one in PICTURES if one in kinds
                                          and self.budget.takes_picture(kinds[one])})}
            cell["attachments"] = Attached(given)
        return cell, resources

    def _shown(self, data: NotebookNode) -> NotebookNode:
        """Return the kinds of an output that a page can show, without pictures that are too
        large."""
        kept = {kind: content for kind, content in data.items() if kind in TEXTS}
        for kind in PICTURES.keys() & kept.keys():
            if not self.budget.takes_picture(kept[kind]):
                del kept[kind]
                kept["text/plain"] = TOO_LARGE + kept.get("text/plain", "")
        return NotebookNode(kept)


class Attached(NotebookNode):
    """Pictures of a written answer. A missing one is empty; nbconvert would fail on it."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> dict[str, str]:
        return {"image/png": ""}
