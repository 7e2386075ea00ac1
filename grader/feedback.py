"""The page that a student gets back: harmless, alone in one file, without the hidden tests."""

from __future__ import annotations

import base64
import mimetypes
import re
from pathlib import Path
from typing import Any

from bleach import ALLOWED_TAGS
from nbconvert.preprocessors import Preprocessor
from nbconvert.preprocessors.sanitize import SanitizeHTML
from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.preprocessors import ClearHiddenTests

from lab.workspace import CHECKOUT

IMAGES = CHECKOUT / "images"
PICTURE = re.compile(r"\.\./images/([\w./-]+\.(?:png|svg|jpe?g|gif|webp))")
NOTEBOOK_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\([\w./-]+\.ipynb(?:#[^)\s]*)?\)")
TAGS = sorted({*ALLOWED_TAGS, "br", "div", "h1", "h2", "h3", "h4", "hr", "p", "pre", "span",
               "table", "tbody", "td", "th", "thead", "tr"})


class HideTests(ClearHiddenTests):
    """Takes hidden tests out of the page: the text itself, and tracebacks that quote it."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        hidden = self.begin_test_delimeter in cell.source
        cell, resources = super().preprocess_cell(cell, resources, cell_index)
        for output in cell.get("outputs", []) if hidden else []:
            if output.output_type == "error" and len(output.traceback) > 1:
                output.traceback = [f"{output.ename}: {output.evalue}"]
        return cell, resources


class Harmless(SanitizeHTML):
    """No script of a student runs in the page of whoever reads it.

    Outputs and written answers are cleaned; the course's own text is not the student's and stays.
    """

    def __init__(self, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.tags, self.strip = TAGS, True

    def preprocess(self, nb: NotebookNode, resources: dict[str, Any]
                   ) -> tuple[NotebookNode, dict[str, Any]]:
        nb.metadata.pop("widgets", None)
        return super().preprocess(nb, resources)

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        if cell.cell_type == "code" or utils.is_solution(cell):
            return super().preprocess_cell(cell, resources, cell_index)
        return cell, resources


class EmbedImages(Preprocessor):
    """Puts the labs' pictures into the page; links to notebooks, which are not beside it, become
    text. Reads from images/ only, whatever a path says."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        if cell.cell_type == "markdown":
            text = NOTEBOOK_LINK.sub(r"\1", cell.source)
            cell.source = PICTURE.sub(lambda found: data_uri(found) or found[0], text)
        return cell, resources


def data_uri(found: re.Match[str], folder: Path | None = None) -> str | None:
    """The picture as `data:...;base64,...`, or None when there is none of that name."""
    folder = (folder or IMAGES).resolve()
    path = (folder / found[1]).resolve()
    if not path.is_relative_to(folder) or not path.is_file():
        return None
    kind = mimetypes.guess_type(path.name)[0]
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
