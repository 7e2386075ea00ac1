"""What students see of a lab's checks: one line each. The rest goes into a file beside the lab.

A check cell becomes `check("NAME")`. Driver and check-setup cells disappear, except for the
statements whose names an explore cell uses: those move to just above it.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from nbformat import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor

from labkit.build import describing
from labkit.build.lab import Cell, Lab, Role
from labkit.build.stubs import unanswered
from labkit.build.visible import hidden_lines, without_hidden
from labkit.cells import HELPERS, SERVED, Code, role_of
from labkit.lab_checks import CheckInfo, NeededAnswer, ServedCell, is_shortened, line_of

HEADING = re.compile(r"^#{2,4} +(.+)$", re.MULTILINE)
IN_COMMANDS = re.compile(r"[{$](\w+)")  # a name in `!echo {name}`, which is no use in Python


class ShortenChecks(NbGraderPreprocessor):
    """nbgrader's step for a lab that `lab build` made; any other notebook stays as it is."""

    def preprocess(self, nb: NotebookNode, resources: Any) -> tuple[NotebookNode, Any]:
        if is_shortened(nb.metadata):
            nb.cells = shortened(nb.cells, [
                role_of(cell.metadata) if cell.cell_type == "code" else Role.TEXT
                for cell in nb.cells], nb.metadata["lab"]["name"])
        return nb, resources


def shortened(cells: Sequence[NotebookNode], roles: Sequence[Role], lab: str
              ) -> list[NotebookNode]:
    """Return the cells that students see; their sources are changed in place.

    Args:
        cells: the notebook's cells, without hidden tests.
        lab: the lab's name.
    """
    needed, kept, helpers, is_first = _needed(cells, roles), [], [], True
    for cell, role in zip(cells, roles, strict=True):
        code = Code(cell.source) if cell.cell_type == "code" else None
        if role is Role.CHECK:
            cell.source = line_of(cell.metadata.get("nbgrader", {}).get("grade_id", cell.id))
        elif role in HELPERS:
            cell.source = "\n".join(_pieces(cell.source, needed)).strip("\n")
            if is_first and "check" in code.names.binds:
                cell.source += f'\n\ncheck.lab("{lab}")'
                is_first = False
            elif cell.source:  # it comes just above the first cell that uses it
                helpers.append((cell, set(Code(cell.source).names.binds)))
                continue
        elif code is not None:
            used = _used(helpers, _uses(code))
            kept += [helper for helper, names in helpers if names & used]
            helpers = [(helper, names) for helper, names in helpers if not names & used]
        if cell.source or role not in HELPERS:
            kept.append(cell)
    return kept


def _used(helpers: Sequence[tuple[NotebookNode, set[str]]], uses: set[str]) -> set[str]:
    """Return these names, and those that the helpers which define them use."""
    for helper, names in reversed(helpers):  # each uses earlier ones only
        if names & uses:
            uses = uses | _uses(Code(helper.source))
    return uses


def _uses(code: Code) -> set[str]:
    return {use.name for use in code.names.uses} | set(IN_COMMANDS.findall(code.source))


def _needed(cells: Sequence[NotebookNode], roles: Sequence[Role]) -> set[str]:
    """Return the names that the lesson uses and does not define itself, and those that their
    definitions use."""
    needed, own = {"check"}, set()
    for cell, role in zip(cells, roles, strict=True):
        if role in (Role.EXPLORE, Role.SETUP, Role.ANSWER):
            code = Code(cell.source)
            needed |= _uses(code) - own
            own |= code.stub_names
    trees = [Code(cell.source).tree for cell, role in zip(cells, roles, strict=True)
             if role in HELPERS]
    while True:
        more = {use for tree in trees for statement in tree.body
                for names in [_names(statement)] if names[0] & needed for use in names[1]} - own
        if more <= needed:
            return needed
        needed |= more


def _names(statement: ast.stmt) -> tuple[frozenset[str], frozenset[str]]:
    from labkit.names import analyse

    names = analyse(ast.Module([statement], []))
    return frozenset(names.binds), frozenset(use.name for use in names.uses)


def _pieces(source: str, needed: set[str]) -> Iterator[str]:
    """Yield the statements of a cell that bind a needed name, with the comments above them."""
    lines, end = source.split("\n"), 0
    for statement in Code(source).tree.body:
        start, end = end, statement.end_lineno
        if _names(statement)[0] & needed:
            yield "\n".join(lines[start:end])


def version_of(lab: Lab) -> str:
    """Return a digest of what a student's notebook and the checks must agree on."""
    answers = [[cell.grade_id, unanswered(cell.source)] for cell in lab.of(Role.ANSWER)]
    text = json.dumps([answers, list(lab.checks)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def checks_text(lab: Lab, source: NotebookNode) -> str:
    """Return the text of the file with a lab's checks.

    Args:
        source: the lab's notebook for the instructor.
    """
    following, served = "", []
    for cell in reversed(source.cells):
        role = role_of(cell.metadata) if cell.cell_type == "code" else Role.TEXT
        if role in SERVED:
            grade_id = cell.metadata.nbgrader["grade_id"] if role is Role.CHECK else ""
            served.insert(0, ServedCell(cell.id, role.value, following,
                                        without_hidden(cell.source).strip("\n"), grade_id))
        else:
            following = cell.id
    drivers = {cell.source: cell.id for cell in source.cells if cell.cell_type == "code"}
    content = {"lab": lab.name, "version": version_of(lab),
               "cells": [{**asdict(cell), "source": cell.source.split("\n")} for cell in served],
               "checks": {name: asdict(_info(lab, check, drivers))
                          for name, check in lab.checks.items()}}
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _info(lab: Lab, check: Cell, ids: dict[str, str]) -> CheckInfo:
    drivers = [cell for cell in lab.of(Role.DRIVER) if cell.defines & check.uses]
    uses = frozenset(check.uses).union(*(driver.uses for driver in drivers))
    setup = frozenset().union(*(cell.defines for cell in lab.of(Role.SETUP)))
    tested = lab.answers_of(check)
    answers = [NeededAnswer(_title(lab, cell), tuple(sorted(cell.defines & uses)), cell.path or "")
               for cell in lab.of(Role.ANSWER) if cell.grade_id in tested]
    return CheckInfo(tuple(ids[driver.source] for driver in drivers), tuple(answers),
                     tuple(sorted(setup & uses)), tuple(describing.cases(check)),
                     bool(hidden_lines(check.source)))


def _title(lab: Lab, answer: Cell) -> str:
    """Return the last heading above an answer."""
    headings = [found for cell in lab.cells[:lab.cells.index(answer)] if cell.kind == "markdown"
                for found in HEADING.findall(cell.source)]
    return headings[-1].strip() if headings else answer.grade_id
