"""The three notebooks of a lab."""

from __future__ import annotations

import hashlib
from typing import Any

from lab.build import prose
from lab.build.lab import Cell, Lab, Role
from lab.build.stubs import answered
from lab.build.visible import without_hidden
from lab.shipping import WAY_OUT

METADATA = {"kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python",
                           "name": "python3"},
            "language_info": {"name": "python"}}


def notebooks(lab: Lab, worked: bool = True) -> dict[str, str]:
    """The text of every file that is made from `lab`, by its path in the checkout. Without
    `worked`: no worked notebook, and no link to it."""
    from lab.build.release import release

    source = _notebook(lab, _with_links(lab) if worked else {})
    made = {release_path(lab.name): _text(release(source)), source_path(lab.name): _text(source)}
    if worked:
        made[worked_path(lab.name)] = _text(_worked(lab))
    return made


def release_path(name: str) -> str:
    return f"notebooks/{name}.ipynb"


def worked_path(name: str) -> str:
    return f"notebooks/worked/{name}.ipynb"


def source_path(name: str) -> str:
    return f"grader/source/{name}/{name}.ipynb"


def _text(notebook: Any) -> str:
    import nbformat

    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def _with_links(lab: Lab) -> dict[int, str]:
    """The text cells that lead to an exercise with a check, by index, with the link at the end."""
    cells, changed = list(lab.cells), {}
    for index, cell in enumerate(cells):
        if cell.role is Role.ANSWER and lab.tested_by[cell.grade_id]:
            place = prose.text_of(cells, index)
            if place is not None:
                # JupyterLab's own kind of fragment: it scrolls to the cell with this id.
                address = f"worked/{lab.name}.ipynb#cell-id={cell.grade_id}"
                changed[place] = cells[place].source + WAY_OUT.format(address)
    return changed


def _notebook(lab: Lab, changed: dict[int, str]) -> Any:
    """All cells but the mutants, with `changed` sources by index."""
    from nbformat.v4 import new_notebook

    ids, made = _Ids(), []
    for index, cell in enumerate(lab.cells):
        if cell.role is not Role.MUTANT:
            source = changed.get(index, cell.source)
            made.append(_cell(cell, source, ids, ("nbgrader", "tags")))
    return new_notebook(cells=made, metadata=METADATA)


def _worked(lab: Lab) -> Any:
    """To be read by self-learners: answers, visible tests, nothing of nbgrader's."""
    from nbformat.v4 import new_notebook

    ids, made = _Ids(), []
    for cell in lab.cells:
        if cell.role is Role.MUTANT:
            continue
        source = cell.source
        if cell.kind == "markdown":
            source = prose.moved_down(source)
        elif cell.role is Role.ANSWER:
            source = answered(source)
        elif cell.role is Role.CHECK:
            source = without_hidden(source)
        made.append(_cell(cell, source, ids, ("tags",)))
    made[0].source += (f"\n\n*This is the worked notebook of [the lab](../{lab.name}.ipynb): "
                       "it shows one way to solve it.*")
    return new_notebook(cells=made, metadata=METADATA)


class _Ids:
    """Ids of cells: the same at every build, and changed by nothing but the cell itself."""

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

    from nbformat import v4

    make = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
    metadata = {key: copy.deepcopy(cell.metadata[key]) for key in keep if key in cell.metadata}
    return make(source, id=ids.of(cell), metadata=metadata)
