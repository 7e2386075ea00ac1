"""Read solutions/*.py into cells with their lines, roles, and names."""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from labcore.errors import LabError
from labkit.build.lab import Cell, Lab
from labkit.build.marks import SHORT, spelled_out
from labkit.build.problems import Problems, nearest
from labkit.cells import TAGGED, WRITEFILE, Role, python_of
from labkit.names import analyse

FORMAT = "py:percent"
TAGS = {**TAGGED, Role.MUTANT.value: Role.MUTANT}
MARKER = re.compile(r"^\s*#\s*%%(%*\s|\s*$)")
NUMBER = re.compile(r"\d{2}_[a-z0-9_]+")


def read(path: Path | str) -> Lab:
    """Return the lab in `path`. Raises LabError with all its errors, each as file:line: text."""
    path = Path(path).absolute()
    problems = Problems(path)
    lab = read_into(path, problems)
    problems.raise_any()
    return lab


def read_into(path: Path, problems: Problems) -> Lab:
    """Return the lab as far as it can be read, and add its errors to `problems`."""
    from labkit.build import (
        answers,
        given,
        masks,
        metadata,
        parts,
        prose,
        rubrics,
        rules,
        visible,
    )

    if not NUMBER.fullmatch(path.stem):
        problems.add_at(1, f"{path.name} is not a lab name; nearest: 03_multi_node.py")
    cells: list[Cell] = []
    for raw in _raw_cells(path, problems):
        cell = _cell(raw, problems)
        if cell.role is Role.MUTANT:
            cell = _expanded(cell, cells, problems)
        has_names = cell.kind != "markdown" and cell.role is not Role.TEXT
        cells.append(_with_names(cell, problems) if has_names else cell)
    lab = Lab(path, tuple(cells))
    metadata.check(lab, problems)
    rules.check(lab, problems)
    answers.check(lab, problems)
    rubrics.check(lab, problems)
    masks.check(lab, problems)
    visible.check(lab, problems)
    parts.check(lab, problems)
    prose.check(lab, problems)
    given.check(lab, problems)
    return replace(given.with_given(lab, problems), draft=bool(problems.missing))


def _raw_cells(path: Path, problems: Problems) -> list[tuple[Any, int, list[str]]]:
    """Return jupytext's cell, the line of its marker, and its lines in the file, for each cell.

    Args:
        path: the lab's solution.
        problems: takes the errors.
    """
    import jupytext

    try:
        text = path.read_text(encoding="utf-8")
        cells = jupytext.reads(text, FORMAT).cells
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"cannot read {path}: {error}") from error
    except Exception as error:  # jupytext has no exception of its own
        raise LabError(f"{path}: jupytext cannot read it: {error}") from error
    lines = text.splitlines()
    starts = _markers(lines)
    if len(cells) != len(starts) or not starts:
        problems.add_at(starts[0] if starts else 1, f"{len(starts)} lines begin with `# %%`, but "
                        f"there are {len(cells)} cells: every cell, including the first, must "
                        "begin with such a line, and no other line may look like one")
        return []
    ends = [*starts[1:], len(lines) + 1]
    return [(cell, start, lines[start:end - 1])
            for cell, start, end in zip(cells, starts, ends, strict=True)]


def _markers(lines: list[str]) -> list[int]:
    """Return the lines, from 1, that begin a cell; lines within strings do not."""
    from jupytext.stringparser import StringParser

    line_numbers, parser = [], StringParser("python")
    for number, line in enumerate(lines, 1):
        if not parser.is_quoted() and MARKER.match(line):
            line_numbers.append(number)
            parser = StringParser("python")
        parser.read_line(line)
    return line_numbers


def _cell(raw: tuple[Any, int, list[str]], problems: Problems) -> Cell:
    raw_cell, marker, lines = raw
    metadata, wrong = dict(raw_cell.metadata), ""
    try:
        metadata = spelled_out(raw_cell.cell_type, metadata)
    except ValueError as error:
        wrong = str(error)
    # A cell in triple quotes begins one line later.
    line = marker + 1 + ("cell_marker" in metadata and len(metadata["cell_marker"]) >= 3)
    source = _uncommented(lines) if raw_cell.cell_type == "raw" else raw_cell.source
    blank = len(source) - len(source.lstrip("\n"))
    nbgrader = metadata.get("nbgrader")
    nbgrader = nbgrader if isinstance(nbgrader, dict) else {}
    cell = Cell(Role.TEXT, raw_cell.cell_type, source.strip("\n"), line + blank, metadata,
                grade_id=str(nbgrader.get("grade_id") or metadata.get("answer")
                             or metadata.get("rubric", "")),
                hint=str(metadata.get("hint", "")))
    if wrong:
        problems.add(cell, None, wrong)
        return cell
    cell = replace(cell, role=_role(cell, nbgrader, problems))
    points = nbgrader.get("points", 0)
    if cell.role in (Role.CHECK, Role.WRITTEN) and isinstance(points, int | float):
        cell = replace(cell, points=points)
    return cell


def _expanded(mutant: Cell, before: list[Cell], problems: Problems) -> Cell:
    """Return a mutant as a complete cell, even if it is written as an edit of its answer."""
    answers = [cell for cell in before
               if cell.role is Role.ANSWER and cell.grade_id == mutant.grade_id]
    if not (is_edit(mutant.source) and answers):
        return mutant
    try:
        return replace(mutant, source=edited(answers[0].source, mutant.source))
    except ValueError as error:
        problems.add(mutant, 1, str(error))
        return replace(mutant, role=Role.TEXT)  # without a role, so that no further rule reports it


def is_edit(source: str) -> bool:
    """Return whether a mutant is written as an edit of a long answer: all its lines begin with - or
    +, and the - lines are replaced by the + lines that follow them."""
    lines = source.splitlines()
    return source.startswith("-") and all(line[:1] in ("-", "+") for line in lines)


def edited(reference: str, edit: str) -> str:
    """Return the complete mutant.

    Raises ValueError unless each group of - lines occurs in the answer exactly once.
    """
    text = f"\n{reference}\n"
    groups = [(sign, [line[1:] for line in lines])
              for sign, lines in itertools.groupby(edit.splitlines(), key=lambda line: line[0])]
    for number, (sign, lines) in enumerate(groups):
        if sign == "+":
            continue
        old = "\n".join(["", *lines, ""])
        if text.count(old) != 1:
            raise ValueError(f"{lines[0]!r} occurs {text.count(old)} times in the answer, not once")
        follows = groups[number + 1][1] if number + 1 < len(groups) else []
        text = text.replace(old, "\n".join(["", *follows, ""]))
    return text[1:-1]


def _uncommented(lines: list[str]) -> str:
    """Return a raw cell's text. (jupytext would strip the # of `#!/bin/bash`, too.)"""
    if all(line.startswith("#") for line in lines if line.strip()):
        lines = [re.sub("^# ?", "", line) for line in lines]
    return "\n".join(lines).rstrip()


def _role(cell: Cell, nbgrader: dict[str, Any], problems: Problems) -> Role:
    if "incorrectly_encoded_metadata" in cell.metadata:
        problems.add(cell, None, "its marks cannot be read: "
                     f"{cell.metadata['incorrectly_encoded_metadata']} (strings in \"...\", "
                     "true and false in lowercase)")
        return Role.TEXT
    tags = cell.metadata.get("tags", [])
    marks = [TAGS[tag] for tag in tags if tag in TAGS]
    marks += [Role.RUBRIC] if "rubric" in cell.metadata else []
    if cell.kind == "markdown" and nbgrader.get("solution") and nbgrader.get("grade"):
        marks.append(Role.WRITTEN)
    else:
        marks += [Role.ANSWER] if nbgrader.get("solution") else []
        marks += [Role.CHECK] if nbgrader.get("grade") else []
    texts = (Role.WRITTEN, Role.RUBRIC)
    kinds = {"raw": (Role.MUTANT,), "markdown": texts}.get(
        cell.kind, tuple(role for role in Role if role not in (Role.MUTANT, Role.TEXT, *texts)))
    if cell.kind == "markdown":
        if (marks or nbgrader) and (len(marks) != 1 or marks[0] not in texts):
            problems.add(cell, None, "a Markdown cell is either plain text, without marks, or a "
                         f"written answer ({SHORT['written'][1]}), or its rubric")
    elif cell.kind != "markdown" and (len(marks) != 1 or marks[0] not in kinds):
        names = ", ".join(role.value for role in kinds)
        close = "".join([*(nearest(tag, TAGS) for tag in tags if tag not in TAGS),
                         *(nearest(key, SHORT) for key in cell.metadata if key not in SHORT)])
        problems.add(cell, None, f"this {cell.kind} cell's roles: "
                     f"{' and '.join(role.value for role in marks) or 'none'}{close}; "
                     f"give it exactly one of: {names}")
    return marks[0] if len(marks) == 1 and marks[0] in kinds else Role.TEXT


def _with_names(cell: Cell, problems: Problems) -> Cell:
    if cell.source.startswith("%%writefile") and cell.role in (Role.ANSWER, Role.MUTANT):
        match = WRITEFILE.match(cell.source)
        path = match["rest"].strip() if match else ""
        if not _is_workspace_path(path):
            problems.add(cell, 1, f"%%writefile {path or '(nothing)'}: give one path, literal and "
                         "relative to the workspace, for example code/mine.sh")
            return cell
        return replace(cell, path=path)
    tree = _parsed(cell, problems)
    if tree is None:
        return cell
    names = analyse(tree)
    for line in names.stars:
        problems.add(cell, line, "import * hides which names it binds: name them")
    return replace(cell, tree=tree, names=names)


def _is_workspace_path(path: str) -> bool:
    return bool(re.fullmatch(r"[\w.-]+(/[\w.-]+)*", path)) and not path.startswith("-") \
        and ".." not in path.split("/")


def _parsed(cell: Cell, problems: Problems) -> ast.Module | None:
    source = cell.source
    explore = cell.role is Role.EXPLORE
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if explore else 0
    try:
        tree = ast.parse(python_of(source) if explore else source)
        compile(tree, "cell", "exec", flags=flags, dont_inherit=True)
        return tree
    except SyntaxError as error:
        line = error.lineno or 1
        if not explore and _has_magics(source):
            problems.add(cell, line, "magics and ! commands belong in explore cells "
                         "(%%writefile in answers)")
        else:
            problems.add(cell, line, f"not Python: {error.msg}")
    except ValueError as error:  # null bytes
        problems.add(cell, 1, f"not Python: {error}")
    return None


def _has_magics(source: str) -> bool:
    try:
        return "get_ipython()" in python_of(source) and "get_ipython()" not in source
    except SyntaxError:
        return False
