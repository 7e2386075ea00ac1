"""Generate a student's notebook from the instructor's, with nbgrader's own steps and our stubs.

This is the only place for these settings. A course's nbgrader_config.py has

    from labkit.build import release
    c.merge(release.CONFIG)

so that `nbgrader generate_assignment` makes the same notebook as `lab build`.
"""

from __future__ import annotations

from nbformat import NotebookNode
from nbgrader.converters.generate_assignment import GenerateAssignment
from nbgrader.preprocessors import ClearHiddenTests, ClearSolutions, SaveCells
from traitlets.config import Config

from labkit.build.shown import ShortenChecks
from labkit.build.stubs import BEGIN, unanswered


class ClearAnswers(ClearSolutions):
    """nbgrader's step, with a stub that tells students what to do, in the cell's language."""

    def _replace_solution_region(self, cell: NotebookNode, language: str) -> bool:
        before, cell.source = cell.source, unanswered(cell.source, cell.cell_type)
        if BEGIN.lstrip("# ") in cell.source:
            raise RuntimeError("a solution marker has no end, or is not alone on its line: "
                               f"{before}")
        return cell.source != before


STEPS = {ClearSolutions: [ClearAnswers], ClearHiddenTests: [ClearHiddenTests, ShortenChecks]}
PREPROCESSORS = [ours for step in GenerateAssignment.preprocessors.default()
                 for ours in STEPS.get(step, [step])]
CONFIG = Config({"GenerateAssignment": {"preprocessors": PREPROCESSORS}})


def release(source: NotebookNode) -> NotebookNode:
    """Return the student's notebook; the instructor's `source` is not changed.

    All of nbgrader's steps run, except the one that writes into a gradebook.
    """
    import copy

    notebook, resources = copy.deepcopy(source), {}
    for step in PREPROCESSORS:
        if step is not SaveCells:
            notebook, resources = step(config=CONFIG).preprocess(notebook, resources)
    return notebook
