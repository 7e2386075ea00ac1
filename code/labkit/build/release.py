"""Make a student's notebook from the instructor's, with nbgrader's own steps and our stubs.

This is the only place for these settings. A course's nbgrader_config.py has

    from labkit.build import release
    c.merge(release.CONFIG)

so that `nbgrader generate_assignment` makes the same notebook as `lab build`.
"""

from __future__ import annotations

from nbformat import NotebookNode
from nbgrader.converters.generate_assignment import GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, SaveCells
from traitlets.config import Config

from labkit.build.stubs import BEGIN, unanswered


class ClearAnswers(ClearSolutions):
    """nbgrader's step, with a stub that says what to do, in the language of the cell."""

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        before, cell.source = cell.source, unanswered(cell.source, cell.cell_type)
        if BEGIN.lstrip("# ") in cell.source:
            raise RuntimeError(f"a solution without its end, or not on a line of its own: {before}")
        return cell.source != before


PREPROCESSORS = [ClearAnswers if step is ClearSolutions else step
                 for step in GenerateAssignment.preprocessors.default()]
CONFIG = Config({"GenerateAssignment": {"preprocessors": PREPROCESSORS}})


def release(source: NotebookNode) -> NotebookNode:
    """The student's notebook, from the instructor's (which is not changed). All that nbgrader does,
    but for writing into a gradebook."""
    import copy

    notebook, resources = copy.deepcopy(source), {}
    for step in PREPROCESSORS:
        if step is not SaveCells:
            notebook, resources = step(config=CONFIG).preprocess(notebook, resources)
    return notebook
