"""The feedback page for a student: harmless, self-contained, and without the hidden tests."""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from pathlib import Path
from typing import Any

from nbconvert.preprocessors import Preprocessor
from nbformat import NotebookNode, v4
from nbgrader.preprocessors import ClearHiddenTests, NbGraderPreprocessor

from grader.gradebook.notices import insert_notices
from grader.gradebook.records import state, submission_of
from grader.nbgrader_plugin import mathjax
from grader.nbgrader_plugin.exporter import Sanitized
from grader.run.lab_plan import heading
from labcore import own_labs
from labcore.colors import bad
from labcore.errors import LabError
from labcore.html import render
from labcore.workspace import CHECKOUT
from labkit.build.visible import hidden_lines
from labkit.cells import Role, role_of
from labkit.check.checks import HIDDEN_FAILED
from labkit.lab_checks import is_shortened

IMAGES = CHECKOUT / "images"
PICTURE = re.compile(r"\.\./images/([\w./-]+\.(?:png|svg|jpe?g|gif|webp))")
NOTEBOOK_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\([\w./-]+\.ipynb(?:#[^)\s]*)?\)")

# The page is read from a disk or a course site. Only MathJax may run, which brings its own styles
# and fonts.
POLICY = (f"default-src 'none'; img-src data:; style-src 'unsafe-inline' {mathjax.FOLDER}; "
          f"font-src data: {mathjax.FOLDER}; script-src {mathjax.HASH} {mathjax.FOLDER}; "
          "base-uri 'none'; form-action 'none'")
# What the grader and labkit.check write themselves.
OWN_ERRORS = ("Failed", "NotScored", "Skipped")
FRAME = re.compile(r'(?:File "<cell [^"\n]*>"|Cell In\[(\d+)\]), line (\d+)')
ESCAPE = re.compile("\x1b\\[[0-9;]*m")
FIRST_IN_HEAD = "<head>"
LARGEST_CELL = 200_000  # characters of text outputs that a page shows of one cell
LARGEST_PICTURE = 3_000_000  # characters of one output that is no plain text, as HTML or an image
LARGEST_PAGE = 10_000_000  # characters of all of a notebook's outputs
TRUNCATED = "\n... the rest is not shown ...\n"


class FeedbackPage(Sanitized):
    """nbgrader's page, with a policy that keeps every script of a student from running."""

    def from_notebook_node(self, nb: NotebookNode, resources: Any = None, **more: Any
                           ) -> tuple[str, dict[str, Any]]:
        text, resources = super().from_notebook_node(nb, resources, **more)
        if FIRST_IN_HEAD not in text:
            raise LabError(f"nbgrader's template for feedback has no {FIRST_IN_HEAD}")
        head = render("grader/feedback/head.html.j2", policy=POLICY)  # begins with the same tag
        text = text.replace(FIRST_IN_HEAD, head, 1)
        text = name_exercises(text, nb)
        return insert_notices(text, resources), resources


def name_exercises(page: str, notebook: NotebookNode) -> str:
    """Name each exercise in the list at the top of a page, where nbgrader writes "Test cell" for
    every one."""
    for index, cell in enumerate(notebook.cells):
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name and cell.metadata.nbgrader.get("grade"):
            link = re.compile(rf'(<a href="#{re.escape(name)}">)[\w -]+(</a>)')
            title = html.escape(heading(notebook, index))
            page = link.sub(lambda match, title=title: match[1] + title + match[2], page, count=1)
    return page


class LimitOutputSize(Preprocessor):
    """Shortens long outputs, so that no page is too large to open."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        left = LARGEST_PAGE
        for cell in nb.cells:
            kept, left_of_cell = [], min(LARGEST_CELL, left)
            for output in cell.get("outputs", []):
                output, size = shortened(output, left_of_cell)
                is_text = output.output_type in ("stream", "error")
                left_of_cell -= size if is_text else 0
                left -= size
                if left < 0:
                    break
                kept.append(output)
            if "outputs" in cell:
                cell.outputs = kept
        return nb, resources


def shortened(output: NotebookNode, left: int) -> tuple[NotebookNode, int]:
    """Return an output with at most `left` characters of text, and its length.

    Args:
        output: the output.
        left: the characters that are left for the cell.
    """
    if output.output_type == "stream":
        if len(output.text) > left:
            output.text = output.text[:max(0, left)] + TRUNCATED
        return output, len(output.text)
    if output.output_type == "error":
        if sum(map(len, output.traceback)) > max(left, 20_000):
            output.traceback = [f"{output.ename}: {output.evalue}"[:2000] + TRUNCATED]
        return output, sum(map(len, output.traceback))
    data = output.get("data", {})
    for kind, content in list(data.items()):
        if len(str(content)) > (LARGEST_PICTURE if kind != "text/plain" else max(0, left)):
            del data[kind]
            data.setdefault("text/plain", TRUNCATED)
    return output, sum(len(str(content)) for content in data.values())


class MarkUnscored(NbGraderPreprocessor):
    """Marks checks that could not be decided as unscored, which is not 0, and the submission as
    ungraded."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        submission = submission_of(self, resources)
        record, (verdict, reason) = submission.record, state(submission)
        if verdict != "graded":
            resources["nbgrader"]["notebook"] = html.escape(
                f"{submission.lab}: not graded: {reason}")
        for cell in nb.cells if record else []:
            if cell.metadata.get("nbgrader", {}).get("grade_id") in record.unscored:
                text = (f"This check could not be scored: {record.reason}. The 0 shown here is "
                        "not a score: only a score that your instructor enters counts.\n")
                text += "".join(f"{line}\n" for output in cell.outputs
                                if output.output_type == "error" and output.ename == "NotScored"
                                for line in output.evalue.splitlines()[1:])
                cell.outputs = [v4.new_output("stream", name="stdout", text=text)]
        return nb, resources


class HideTests(ClearHiddenTests):
    """Removes hidden tests from the page: their text, tracebacks that quote it, their output, and
    messages not from labkit.check. For example, `np.testing` prints the array it expected."""

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        nb, resources = super().preprocess(nb, resources)
        for cell in nb.cells if is_shortened(nb.metadata) else ():
            if cell.cell_type == "code" and role_of(cell.metadata) is Role.CHECK:
                for output in cell.outputs:  # a traceback quotes the check
                    if output.output_type == "error" and output.ename not in OWN_ERRORS:
                        output.traceback = [f"{output.ename}: {output.evalue}"]
        return nb, resources

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        hidden = self.begin_test_delimeter in cell.source
        lines = hidden_lines(cell.source)
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        if hidden and cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.output_type == "error"]
            for output in cell.outputs:
                seen = failing_lines(output, cell.execution_count)
                in_view = seen and lines and seen.isdisjoint(lines)
                if output.ename not in OWN_ERRORS and not in_view:
                    output.ename, output.evalue = "Failed", HIDDEN_FAILED
                output.traceback = [f"{bad('✗')} {output.evalue}" if output.ename == "Failed"
                                    else f"{output.ename}: {output.evalue}"]
        return cell, resources


def failing_lines(error: NotebookNode, number: int | None) -> set[int]:
    """Return the lines of a check that an error passed through, of its own traceback.

    Args:
        error: the output, from the grader or from a kernel.
        number: the cell's execution count; a kernel's frames name their cells by it.
    """
    text = ESCAPE.sub("", "\n".join(error.traceback))
    return {int(line) for cell, line in FRAME.findall(text) if cell in ("", str(number))}


class EmbedImages(Preprocessor):
    """Embeds the labs' pictures, and turns links to notebooks into text. Reads files in images/
    only."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        if cell.cell_type == "markdown":
            text = NOTEBOOK_LINK.sub(r"\1", cell.source)
            cell.source = PICTURE.sub(lambda match: data_uri(match) or match[0], text)
        return cell, resources


def data_uri(match: re.Match[str], folder: Path | None = None) -> str | None:
    """Return the picture as `data:...;base64,...`; None if it does not exist.

    Args:
        match: a match of the picture's path.
        folder: where to look; by default the author's and the course's images/.
    """
    own = own_labs.folder()
    if folder is None and own and (picture := data_uri(match, own / "images")):
        return picture
    folder = (folder or IMAGES).resolve()
    path = (folder / match[1]).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    kind = mimetypes.guess_type(path.name)[0]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
