"""Warn under a check in a notebook about everything that it relies on and grading will not have.

The kernel tells this module about each cell that runs; labkit.provenance does the rest.
"""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from labcore import own_labs, workspace
from labcore.colors import bad
from labkit.cells import Code, Release, ReleasedCell, Role, read_release
from labkit.check import checks, running
from labkit.check.rewritten import StudentModules
from labkit.check.sides import NOTEBOOK
from labkit.provenance import Provenance, RunCell

# What IPython itself binds while a cell runs.
IPYTHONS = re.compile(r"In|Out|exit|quit|get_ipython|_+|_i+\d*|_\d+|_[iod]h|_exit_code")


class CellHistory:
    """The cells that ran in this kernel. `register` connects it."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        # Cells that ran before this one imported the checks.
        self.runs = [RunCell(Code(source))
                     for source in shell.history_manager.input_hist_raw[1:-1] if source]
        self.before: dict[str, int] | None = None

    def _values(self) -> dict[str, int]:
        return {name: id(value) for name, value in self.shell.user_ns.items()
                if not IPYTHONS.fullmatch(name)}

    def before_cell(self, info: Any) -> None:
        checks.begin()
        self.before = self._values()

    def after_cell(self, result: Any) -> None:
        """Remember a cell; if it is a check, print the warnings."""
        info = result.info
        if info is None or not info.store_history:
            return
        bound = None
        if self.before is not None:
            before = self.before
            bound = frozenset(name for name, value in self._values().items()
                              if before.get(name) != value)
        cell_id = info.cell_id or ""
        run = RunCell(Code(info.raw_cell), cell_id, saved_grade_ids().get(cell_id, ""), bound)
        self.runs.append(run)
        found = self._check(run)
        if result.success:
            checks.conclude(is_check=found is not None)
        for problem in self.problems(run, *found) if found else ():
            print(f"{bad('!')} {problem}")

    def _check(self, run: RunCell) -> tuple[Release, ReleasedCell] | None:
        """Return the released check that a cell is, and the notebook that it is in."""
        found = [(release, cell) for release in releases() if (cell := _check_of(release, run))]
        # Labs share names of checks, such as check("loop"), and nbclient sends no cell IDs.
        return max(found, default=None, key=lambda pair: (
            pair[0].name == running.chosen_lab(),
            len({cell.id for cell in self.runs} & pair[0].by_id.keys())))

    def problems(self, run: RunCell, release: Release, check: ReleasedCell) -> list[str]:
        """Return the warnings for a check that just ran."""
        problems = Provenance(release, self.runs, workspace.home()).problems(check)
        if not check.has_source(run.code.source):
            problems.insert(0, "this check is not the original, and grading runs the original: "
                            "restore it from a new copy of the notebook")
        return problems


def _check_of(release: Release, run: RunCell) -> ReleasedCell | None:
    cell = release.by_id.get(run.id) or release.by_source.get(run.code.source)
    return cell if cell is not None and cell.role is Role.CHECK else None


def releases() -> list[Release]:
    """Return the notebooks that students get: the course's, and an author's own."""
    folders = [workspace.CHECKOUT, *filter(None, [own_labs.folder()])]
    return [read_release(path) for folder in folders
            for path in sorted((folder / "notebooks").glob("*.ipynb"))]


def saved_grade_ids() -> dict[str, str]:
    """Return the grade_id of each cell by its ID, in the notebook as it was last saved. A student
    who copies or splits an answer cell makes cells with other IDs."""
    path = Path(os.environ.get(NOTEBOOK, ""))
    try:
        return _grade_ids(path, path.stat().st_mtime_ns) if path.suffix == ".ipynb" else {}
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return {}  # it was never saved here: then the IDs of the release must do


@lru_cache(maxsize=1)
def _grade_ids(path: Path, changed: int) -> dict[str, str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {cell["id"]: cell["metadata"]["nbgrader"].get("grade_id", "") for cell in cells
            if "nbgrader" in cell.get("metadata", {}) and "id" in cell}


def watch() -> None:
    """Watch this notebook's cells from now on. Does nothing outside a Jupyter kernel."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None and hasattr(shell, "kernel"):
        register(shell)


def register(shell: Any) -> None:
    """Register this module's hooks, and the reimport of rewritten modules, around each cell."""
    history, modules = CellHistory(shell), StudentModules(workspace.home())
    for event, react in (("pre_run_cell", modules.drop_rewritten),
                         ("pre_run_cell", history.before_cell),
                         ("post_run_cell", history.after_cell),
                         ("post_run_cell", modules.remember)):
        shell.events.register(event, react)
