"""The checks of a lab, which lie in a file beside its notebook.

Students see one line for each check, such as `check("shift")`. What that line runs (check-setup
cells, drivers, cases, expected values, and hints) is in notebooks/checks/NN_name.json, which
`lab build` writes. This module reads that file, and puts the cells back where the author has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from labcore import own_labs, workspace

FOLDER = "checks"  # below notebooks/
BESIDE = ".checks.json"  # how the file's name ends where it is beside a student's notebook
SUFFIX = "-check"  # of the grade_id of most checks


@dataclass(frozen=True)
class ServedCell:
    """A cell that the released notebook shows as one line, in part, or not at all.

    Attributes:
        id: its cell ID.
        role: the value of its labkit.cells.Role.
        before: the ID of the next cell that is in the notebook as its author has it, in front of
            which this one belongs; empty at the end.
        source: the whole cell, without hidden tests.
    """

    id: str
    role: str
    before: str
    source: str
    grade_id: str = ""


@dataclass(frozen=True)
class NeededAnswer:
    """An answer that a check tests.

    Attributes:
        title: the exercise's heading.
        names: the names that the check or its drivers use.
        path: the file that the answer writes, relative to the workspace; empty if none.
    """

    title: str
    names: tuple[str, ...] = ()
    path: str = ""


@dataclass(frozen=True)
class CheckInfo:
    """What the notebook's side needs to know of a check.

    Attributes:
        drivers: the IDs of the driver cells that it uses.
        answers: the answers that it tests.
        uses: the names that its drivers take from setup cells.
        cases: a description of what it tries, one line per case.
        has_hidden: whether grading also runs hidden tests.
    """

    drivers: tuple[str, ...] = ()
    answers: tuple[NeededAnswer, ...] = ()
    uses: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    has_hidden: bool = False


@dataclass(frozen=True)
class LabChecks:
    """The checks of one lab; `version` changes when an answer cell or a check's name does."""

    lab: str
    version: str
    cells: tuple[ServedCell, ...]
    checks: Mapping[str, CheckInfo] = field(default_factory=dict)  # by grade_id

    @cached_property
    def by_id(self) -> dict[str, ServedCell]:
        return {cell.id: cell for cell in self.cells}

    @cached_property
    def by_name(self) -> dict[str, ServedCell]:
        """The check cells by the name that `check(...)` takes."""
        return {name_of(cell.grade_id): cell for cell in self.cells if cell.grade_id}


def name_of(grade_id: str) -> str:
    """Return the name of a check in the notebook: "shift" for the grade_id "shift-check"."""
    return grade_id.removesuffix(SUFFIX)


def line_of(grade_id: str) -> str:
    """Return a check cell as students see it."""
    return f'check("{name_of(grade_id)}")'


def is_shortened(metadata: Mapping[str, Any]) -> bool:
    """Return whether a notebook is that of a lab whose checks students see as one line each, given
    its metadata."""
    marks = metadata.get("lab")
    return isinstance(marks, Mapping) and "name" in marks


def path_of(notebook: Path) -> Path:
    """Return where the checks of a released notebook in notebooks/ are."""
    return notebook.parent / FOLDER / f"{notebook.stem}.json"


def find(lab: str) -> Path | None:
    """Return the file with a lab's checks: an installed one, or one beside the notebook that runs
    here; None if there is none."""
    folders = [workspace.CHECKOUT, *filter(None, [own_labs.folder()])]
    places = [*(path_of(folder / "notebooks" / f"{lab}.ipynb") for folder in folders),
              Path.cwd() / f"{lab}{BESIDE}"]
    return next((path for path in places if path.is_file()), None)


def installed() -> list[str]:
    """Return the names of the labs whose checks are installed."""
    folders = [workspace.CHECKOUT, *filter(None, [own_labs.folder()])]
    return sorted(path.stem for folder in folders
                  for path in (folder / "notebooks" / FOLDER).glob("*.json"))


def of_notebook(path: Path) -> LabChecks | None:
    """Return the checks of a released notebook in notebooks/; None if it has its checks itself.

    Raises OSError and ValueError.
    """
    file = path_of(path)
    return read(file) if file.is_file() else None


def read(path: Path) -> LabChecks:
    """Return the checks in a file that `lab build` wrote. Raises OSError and ValueError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        cells = tuple(ServedCell(**{**cell, "source": "\n".join(cell["source"])})
                      for cell in data["cells"])
        return LabChecks(data["lab"], data["version"], cells,
                         {name: _info(info) for name, info in data["checks"].items()})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file that `lab build` wrote: {error}") from error


def _info(data: Mapping[str, Any]) -> CheckInfo:
    answers = tuple(NeededAnswer(one["title"], tuple(one["names"]), one["path"])
                    for one in data["answers"])
    return CheckInfo(tuple(data["drivers"]), answers, tuple(data["uses"]), tuple(data["cases"]),
                     data["has_hidden"])


def complete_order(ids: Sequence[str], served: Iterable[tuple[str, str]]) -> list[str]:
    """Return the IDs of a notebook's cells with the served cells in their places.

    Args:
        ids: those of the released notebook.
        served: in the lab's order, the ID of each served cell and that of the notebook's next cell.
    """
    before: dict[str, list[str]] = {}
    moved = dict(served)
    kept = [name for name in ids if name not in moved]
    for name, following in moved.items():
        before.setdefault(following if following in kept else "", []).append(name)
    return [one for name in kept for one in (*before.get(name, ()), name)] + before.get("", [])
