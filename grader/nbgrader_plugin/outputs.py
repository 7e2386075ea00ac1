"""Step 3: decide which of a check's outputs count. A check passes or raises; nothing else is a
verdict."""

from __future__ import annotations

from typing import Any

from nbformat import NotebookNode
from nbgrader import utils
from nbgrader.preprocessors import NbGraderPreprocessor


class CountErrorsOnly(NbGraderPreprocessor):
    """Keeps nbgrader from reading scores out of noise.

    nbgrader scores a check cell 0 when anything was written to stderr (a library's warning will
    do), and takes a number that its last line returns for partial credit. Both stay visible here,
    as ordinary output.
    """

    def preprocess_cell(self, cell: NotebookNode, resources: dict[str, Any], cell_index: int
                        ) -> tuple[NotebookNode, dict[str, Any]]:
        if cell.cell_type == "code" and utils.is_grade(cell):
            for output in cell.outputs:
                if output.output_type == "stream":
                    output.name = "stdout"
                elif output.output_type == "execute_result":
                    output.output_type = "display_data"
                    output.pop("execution_count", None)
        return cell, resources
