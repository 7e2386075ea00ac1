"""Rules for nbgrader's metadata, for its markers in the source, and for the short setting.

The short setting is what `make test` changes in a cell that would take too long:
`short={"--train-iters 100": "--train-iters 5"}` is one of a cell's marks, and appears in no
notebook.
"""

from __future__ import annotations

import re

from labkit.build.lab import Cell, Lab, Role
from labkit.build.problems import Problems
from labkit.lab_checks import line_of, name_of

GRADE_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
SHORT = "short"
SHORT_ROLES = (Role.EXPLORE, Role.SETUP)  # other cells are graded exactly as written
REGIONS = {"SOLUTION": (Role.ANSWER, Role.WRITTEN), "HIDDEN TESTS": (Role.CHECK,)}


def check(lab: Lab, problems: Problems) -> None:
    """Report errors in the metadata and the markers of `lab`'s cells."""
    ids: dict[str, Cell] = {}
    names: dict[str, Cell] = {}  # of checks, as the notebook calls them
    for cell in lab.cells:
        if cell.role in (Role.ANSWER, Role.CHECK, Role.WRITTEN):
            _nbgrader(cell, problems)
            if cell.grade_id in ids:
                problems.add(cell, None, f"grade_id {cell.grade_id} is taken by the cell in line "
                             f"{ids[cell.grade_id].line - 1}: choose another")
            ids.setdefault(cell.grade_id, cell)
        if cell.role is Role.CHECK:
            other = names.setdefault(name_of(cell.grade_id), cell)
            if other.grade_id != cell.grade_id:
                problems.add(cell, None, f"{line_of(cell.grade_id)} would also run "
                             f"{other.grade_id}, in line {other.line - 1}: choose another grade_id")
        if cell.role is not Role.MUTANT:
            _markers(cell, problems)
        _short(cell, problems)
    if not lab.of(Role.CHECK, Role.WRITTEN) and lab.cells:
        problems.add_at(1, "no cell of this lab is a check: give it one")


def _nbgrader(cell: Cell, problems: Problems) -> None:
    from jsonschema import ValidationError
    from nbformat.v4 import new_code_cell, new_markdown_cell
    from nbgrader.nbgraderformat import MetadataValidator
    from nbgrader.nbgraderformat.common import SchemaMismatchError

    given = dict(cell.metadata["nbgrader"])
    try:
        new_cell = new_code_cell if cell.kind == "code" else new_markdown_cell
        MetadataValidator().validate_cell(new_cell(cell.source, metadata={"nbgrader": given}))
    except (ValidationError, SchemaMismatchError) as error:
        problems.add(cell, None, f"nbgrader reports: {getattr(error, 'message', error)}")
        return
    if not GRADE_ID.fullmatch(cell.grade_id):
        nearest = re.sub("[^a-z0-9]+", "-", cell.grade_id.lower()).strip("-")
        problems.add(cell, None, f"grade_id {cell.grade_id!r}: lowercase letters, digits, and "
                                 "single -, "
                     f"for example {nearest or 'global-batch'}")
    if given["locked"] is not (cell.role is Role.CHECK):
        problems.add(cell, None, f"\"locked\": {str(given['locked']).lower()}: it must be false "
                                 "for "
                     "an answer and true for a check")
    if cell.role is not Role.ANSWER and cell.points <= 0:
        problems.add(cell, None, f"points {given['points']}: a {cell.role.value} needs more than 0")


def _markers(cell: Cell, problems: Problems) -> None:
    for word, roles in REGIONS.items():
        inside, seen = False, 0
        for number, line in enumerate(cell.source.split("\n"), 1):
            if f"BEGIN {word}" in line or f"END {word}" in line:
                if line.strip() not in (f"### BEGIN {word}", f"### END {word}"):
                    problems.add(cell, number, f"write ### BEGIN {word} or ### END {word} alone on "
                                               "the line")
                if cell.role not in roles:
                    problems.add(cell, number, f"{word} markers belong in {roles[0].value} cells")
                if inside is ("BEGIN" in line):
                    problems.add(cell, number, f"{line.strip()} has no matching marker")
                inside = "BEGIN" in line
                seen += 1
        if inside:
            problems.add(cell, None, f"### BEGIN {word} has no ### END {word}")
        if word == "SOLUTION" and cell.role is Role.ANSWER and not seen:
            problems.add(cell, None, "put what the student writes between ### BEGIN SOLUTION and "
                         "### END SOLUTION")


def _short(cell: Cell, problems: Problems) -> None:
    changes = cell.metadata.get(SHORT, {})
    if SHORT in cell.metadata and cell.role not in SHORT_ROLES:
        names = " and ".join(role.value for role in SHORT_ROLES)
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


def shortened(cell: Cell) -> str:
    """Return the cell's source in the short setting."""
    source = cell.source
    for old, new in cell.metadata.get(SHORT, {}).items():
        source = source.replace(old, new)
    return source
