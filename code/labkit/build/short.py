"""The short setting: what `make test` changes in a cell that would take too long.

`short={"--train-iters 100": "--train-iters 5"}` is one of a cell's marks, and appears in no
notebook.
"""

from __future__ import annotations

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems

MARK = "short"
ROLES = (Role.EXPLORE, Role.SETUP)  # other cells are graded exactly as written


def shortened(cell: Cell) -> str:
    """Return the cell's source in the short setting."""
    source = cell.source
    for old, new in cell.metadata.get(MARK, {}).items():
        source = source.replace(old, new)
    return source


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the short settings of `lab`'s cells."""
    for cell in lab.cells:
        changes = cell.metadata.get(MARK, {})
        if MARK in cell.metadata and cell.role not in ROLES:
            names = " and ".join(role.value for role in ROLES)
            problems.add(cell, None, f"only {names} cells have a short setting")
        elif not isinstance(changes, dict) or not all(
                isinstance(new, str) for new in changes.values()):
            problems.add(cell, None, 'its short setting must be {"text in the cell": '
                                     '"replacement"}')
        else:
            for old in changes:
                if (count := cell.source.count(old)) != 1:
                    problems.add(cell, None, f"the short setting changes {old!r}, which occurs "
                                 f"{count} times in the cell, not once")
