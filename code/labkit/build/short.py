"""The short setting: what `make test` changes in a cell that would run for long.

`short={"--train-iters 100": "--train-iters 5"}` among a cell's marks. It is in no notebook.
"""

from __future__ import annotations

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems

MARK = "short"
ROLES = (Role.EXPLORE, Role.SETUP)  # the others are graded, as they are written


def shortened(cell: Cell) -> str:
    """The cell's source in the short setting."""
    source = cell.source
    for old, new in cell.metadata.get(MARK, {}).items():
        source = source.replace(old, new)
    return source


def check(lab: Lab, problems: Problems) -> None:
    """Add what is wrong with the short settings of `lab`'s cells."""
    for cell in lab.cells:
        changes = cell.metadata.get(MARK, {})
        if MARK in cell.metadata and cell.role not in ROLES:
            names = " and ".join(role.value for role in ROLES)
            problems.add(cell, None, f"only {names} cells have a short setting")
        elif not isinstance(changes, dict) or not all(
                isinstance(new, str) for new in changes.values()):
            problems.add(cell, None, 'its short setting is no {"what is there": "what runs"}')
        else:
            for old in changes:
                if (count := cell.source.count(old)) != 1:
                    problems.add(cell, None, f"the short setting changes {old!r}, which stands "
                                 f"{count} times in the cell, not once")
