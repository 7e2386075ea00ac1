"""The three notebooks of a lab, its checks, and the worked files of its answers in mytrainer/."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from labcore.shipping import WORKED_LINK
from labkit import lab_checks
from labkit.build import outputs, prose, rubrics
from labkit.build.lab import Cell, Lab, Role
from labkit.build.stubs import answered
from labkit.build.visible import without_hidden

FOLDER = "mytrainer"
# A lab that extends a file which an earlier one has students write has them write it here, so that
# the earlier one keeps working until theirs is right.
FOLDERS = (FOLDER, f"{FOLDER}/new")
WORKED = f"notebooks/worked/{FOLDER}"  # `lab mytrainer --worked` copies from here
IN_NO_NOTEBOOK = (Role.MUTANT, Role.RUBRIC)
METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python",
                           "name": "python3"},
            "language_info": {"name": "python"}}


def notebooks(lab: Lab, worked: bool = True, stored: outputs.LabOutputs | None = None
              ) -> dict[str, str]:
    """Return the text of every notebook generated from `lab`, and of its checks, by path in the
    checkout.

    Args:
        worked: whether to make the worked notebook and the links to it.
        stored: the outputs of the worked notebook, if it ever ran.
    """
    from labkit.build.release import release
    from labkit.build.shown import checks_text

    source = _notebook(lab, _additions(lab, worked))
    texts = {release_path(lab.name): _text(release(source)), source_path(lab.name): _text(source),
             checks_path(lab.name): checks_text(lab, source)}
    if worked:
        made, sources = worked_notebook(lab)
        outputs.merge(made, sources, stored)
        texts[worked_path(lab.name)] = _text(made)
    return texts


def release_path(name: str) -> str:
    return f"notebooks/{name}.ipynb"


def checks_path(name: str) -> str:
    return str(lab_checks.path_of(PurePosixPath(release_path(name))))


def worked_path(name: str) -> str:
    return f"notebooks/worked/{name}.ipynb"


def source_path(name: str) -> str:
    return f"grader/source/{name}/{name}.ipynb"


def _text(notebook: Any) -> str:
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _additions(lab: Lab, worked: bool) -> dict[int, str]:
    """Return the text to append to the cell above each exercise, by that cell's index.

    It explains how a written answer is graded, and links to the worked notebook.
    """
    cells = list(lab.cells)
    graded: dict[int, str] = {}
    links: dict[int, str] = {}
    for index, cell in enumerate(cells):
        place = prose.text_of(cells, index)
        if place is None:
            continue
        if cell.role is Role.WRITTEN:
            rubric = rubrics.read(lab.rubrics[cell.grade_id])
            graded[place] = graded.get(place, "") + rubrics.for_students(rubric)
        if worked and (cell.role is Role.WRITTEN or (
                cell.role is Role.ANSWER and lab.tested_by[cell.grade_id])):
            # JupyterLab's own kind of fragment: it scrolls to the cell with this id.
            address = f"worked/{lab.name}.ipynb#cell-id={cell.grade_id}"
            links[place] = WORKED_LINK.format(address)
    return {place: graded.get(place, "") + links.get(place, "") for place in {**graded, **links}}


def _notebook(lab: Lab, added: dict[int, str]) -> Any:
    """Return all cells but mutants and rubrics, as a notebook; `added` maps cells to text."""
    from nbformat.v4 import new_notebook

    ids, cells = _Ids(), []
    for index, cell in enumerate(lab.cells):
        if cell.role not in IN_NO_NOTEBOOK:
            source = cell.source + added.get(index, "")
            if cell.role is Role.WRITTEN:
                rubric = rubrics.read(lab.rubrics[cell.grade_id])
                source = rubrics.for_graders(cell, rubric)
            cells.append(_cell(cell, source, ids, ("nbgrader", "tags")))
    return new_notebook(cells=cells, metadata=_metadata(lab))


def worked_notebook(lab: Lab) -> tuple[Any, dict[str, outputs.Source]]:
    """Return the notebook for self-learners, without outputs: answers and one line for each check,
    without nbgrader's metadata. Also return the source of each code cell, by its ID.
    """
    from nbformat.v4 import new_notebook

    from labkit.build.shown import shortened

    ids, cells, roles, lines = _Ids(), [], [], {}
    for cell in lab.cells:
        if cell.role in IN_NO_NOTEBOOK:
            continue
        source = cell.source
        if cell.role in (Role.ANSWER, Role.WRITTEN):
            source = answered(source)
        if cell.kind == "markdown":
            source = prose.moved_down(source)
        elif cell.role is Role.CHECK:
            source = without_hidden(source)
        cells.append(_cell(cell, source, ids, ("tags",)))
        roles.append(cell.role)
        lines[cells[-1].id] = cell.line
    cells = shortened(cells, roles, lab.name)
    cells[0].source += (f"\n\n*This is the worked notebook of [the lab](../{lab.name}.ipynb): "
                        "it shows one way to solve it.*")
    sources = {cell.id: outputs.Source(outputs.digest_of(cell.source), lines[cell.id])
               for cell in cells if cell.cell_type == "code"}
    return new_notebook(cells=cells, metadata=_metadata(lab)), sources


def _metadata(lab: Lab) -> dict[str, Any]:
    from labkit.build.shown import version_of

    marks = {"name": lab.name, "version": version_of(lab)}
    return {**METADATA, "lab": {**marks, "draft": True} if lab.draft else marks}


def is_draft(notebook: Any) -> bool:
    """Return whether `lab build --draft` made this notebook from an unfinished lab."""
    marks = notebook.metadata.get("lab")
    return isinstance(marks, dict) and marks.get("draft") is True


class _Ids:
    """Assign cell IDs that depend only on the cell, so that they are the same in every build."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def of(self, cell: Cell) -> str:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        base = cell.grade_id or f"{cell.role.value}-{digest}"
        number, name = 1, base
        while name in self.taken:
            number += 1
            name = f"{base}-{number}"
        self.taken.add(name)
        return name


def _cell(cell: Cell, source: str, ids: _Ids, keep: tuple[str, ...]) -> Any:
    import copy

    import nbformat

    # Not v4.new_code_cell, which validates each cell: the notebook is validated as a whole.
    metadata = {key: copy.deepcopy(cell.metadata[key]) for key in keep if key in cell.metadata}
    made = {"cell_type": cell.kind, "id": ids.of(cell), "metadata": metadata, "source": source}
    if cell.kind == "code":
        made |= {"execution_count": None, "outputs": []}
    return nbformat.from_dict(made)


def worked_pieces(lab: Lab) -> dict[str, str]:
    """Return the text of each worked file, by its path in the checkout."""
    texts = {}
    for answer in lab.of(Role.ANSWER):
        path = PurePosixPath(answer.path or "")
        if str(path.parent) in FOLDERS:
            _, _, text = answered(answer.source).partition("\n")  # the first line is %%writefile
            texts[f"{WORKED}/{path.relative_to(FOLDER)}"] = text.strip("\n") + "\n"
    return texts


def written_twice(labs: Sequence[Lab]) -> list[str]:
    """Return an error for each file of mytrainer/ that two labs write: which one is worked?"""
    lab_of: dict[str, Lab] = {}
    errors = []
    for lab in labs:
        for path in worked_pieces(lab):
            if path in lab_of:
                name = PurePosixPath(path).relative_to(WORKED)
                errors.append(f"solutions/{lab.path.name}: {FOLDER}/{name} is already an answer of "
                              f"solutions/{lab_of[path].path.name}; give it another name")
            lab_of[path] = lab
    return errors
