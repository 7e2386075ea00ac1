"""Step 1: rebuild the notebook to grade from the release and the sources of the student's answers.

Everything else in a submission (other cells, outputs, metadata, the text of the checks) is ignored,
so it cannot change points, turn checks off, or stop a batch. The submitted file is only read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from grader.cleaning import line
from grader.course.reasons import NotANotebook, Unusable
from grader.course.submitted import parse, read
from grader.run.copies import merged

LONGEST = 500_000  # characters of an answer
MOST_COPIES = 50  # cells with one grade_id
MOST_PICTURES = 3_000_000  # characters of the pictures in a written answer
PICTURES = ("image/png", "image/jpeg", "image/gif")
BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")


def read_submitted(path: Path) -> Any:
    """Return the submitted JSON, whatever its structure. Raises Unusable."""
    return parse(read(path), path.name)


def require_notebook(submitted: Any) -> list[Any]:
    """Return the notebook's cells, whatever they contain. Raises NotANotebook."""
    cells = submitted.get("cells") if isinstance(submitted, dict) else None
    if not isinstance(cells, list):
        raise NotANotebook("it has no list of cells (notebook format 4)")
    return cells


def answers(submitted: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (grade_id, cell type, source) of each cell with a grade_id. Raises NotANotebook."""
    for cell in require_notebook(submitted):
        metadata = cell.get("metadata") if isinstance(cell, dict) else None
        marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
        name = marks.get("grade_id") if isinstance(marks, dict) else None
        source = cell.get("source") if isinstance(cell, dict) else None
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if isinstance(name, str) and isinstance(source, str):
            text = source.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
            yield name, str(cell.get("cell_type")), text


def attached(submitted: Any, name: str) -> dict[str, dict[str, str]]:
    """Return the pictures pasted into a written answer, up to a size limit, and no other
    attachments.

    Args:
        submitted: the submitted notebook.
        name: the answer's grade_id.
    """
    pictures: dict[str, dict[str, str]] = {}
    left = MOST_PICTURES
    for cell in require_notebook(submitted):
        if not (isinstance(cell, dict) and isinstance(cell.get("attachments"), dict)
                and any(marked == name for marked, *_ in answers({"cells": [cell]}))):
            continue
        for file, kinds in cell["attachments"].items():
            for kind, content in kinds.items() if isinstance(kinds, dict) else ():
                if kind in PICTURES and isinstance(content, str) and len(content) <= left \
                        and BASE64.fullmatch(content):
                    pictures[line(file, 200)] = {kind: content}
                    left -= len(content)
    return pictures


def _require_few(name: str, sources: list[str]) -> None:
    """Raise Unusable for more copies of a cell than are merged."""
    length = sum(map(len, sources))
    if len(set(sources)) > MOST_COPIES or length > LONGEST:
        raise Unusable(f"{name} occurs {len(sources)} times with {length:,} characters: at most "
                       f"{MOST_COPIES} times and {LONGEST:,} are read")


def rebuild(release: NotebookNode, submitted: Any) -> tuple[NotebookNode, list[str]]:
    """Return the notebook to grade, and notes on the submission for the instructor.

    Of several cells with one grade_id, those that equal the release are ignored, and copies.py
    merges the others.

    Args:
        release: the lab's notebook with hidden tests.
        submitted: the submitted JSON.

    Raises NotANotebook when the submission has none of the release's answer cells.
    """
    given: dict[str, list[tuple[str, str]]] = {}
    for name, kind, source in answers(submitted):
        given.setdefault(name, []).append((kind, source))
    result, notes, answered = deepcopy(release), [], 0
    for cell in result.cells:
        marks = cell.metadata.get("nbgrader", {})
        name, is_answer = marks.get("grade_id"), bool(marks.get("solution"))
        copies = given.get(name, [])
        if len(copies) > 1:
            notes.append(f"{name} occurs {len(copies)} times" + (
                ": graded as if run from top to bottom" if is_answer else ""))
        if not is_answer:
            continue
        right = [source for kind, source in copies if kind == cell.cell_type]
        _require_few(name, right)
        answered += bool(right)
        if not right:
            notes.append(f"{name} is missing" if not copies else
                         f"{name} is no longer a {cell.cell_type} cell, so it counts as unanswered")
        changed = [source for source in right if source != cell.source]
        if changed:
            cell.source = merged(changed, cell.cell_type)
        if cell.cell_type == "markdown" and (pictures := attached(submitted, name)):
            cell.attachments = pictures
    if not answered:
        raise NotANotebook("it has none of the lab's answer cells, so it may be another lab's")
    result.metadata["grader"] = {"notes": notes}
    return result, notes


