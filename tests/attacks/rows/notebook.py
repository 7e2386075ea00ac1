"""Files that are submitted in place of a notebook."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from tests.attacks.attack import Notebook, attack
from tests.attacks.course import LAB, RIGHT_DOUBLE, RIGHT_TRIPLE, find

RIGHT = {"double": RIGHT_DOUBLE, "triple": RIGHT_TRIPLE}


def duplicate(notebook: Notebook) -> None:
    """Copy a cell as JupyterLab's copy and paste does: another id, the same grade_id."""
    twin = copy.deepcopy(find(notebook, "double-check"))
    twin["id"] = "0123abcd"
    notebook["cells"].append(twin)


def old_schema(notebook: Notebook) -> None:
    for number, name in enumerate(("double", "double-check", "triple", "triple-check")):
        marks = find(notebook, name)["metadata"]["nbgrader"]
        if number % 2:
            marks.pop("schema_version")
        else:
            marks["schema_version"] = 99


def more_points(notebook: Notebook) -> None:
    find(notebook, "double-check")["metadata"]["nbgrader"]["points"] = 1000
    find(notebook, "triple-check")["metadata"]["nbgrader"]["points"] = -1000


def other_marks(notebook: Notebook) -> None:
    find(notebook, "double-check")["metadata"]["nbgrader"].update(grade=False, solution=True)
    twin = copy.deepcopy(find(notebook, "triple-check"))
    twin["metadata"]["nbgrader"]["grade_id"] = "nobody-knows-this"
    twin["id"] = "4567abcd"
    notebook["cells"].append(twin)


def no_test(notebook: Notebook) -> None:
    notebook["cells"].remove(find(notebook, "double-check"))


def as_text(notebook: Notebook) -> None:
    for name, kind in (("double-check", "raw"), ("triple-check", "markdown")):
        cell = find(notebook, name)
        cell["cell_type"] = kind
        cell.pop("outputs", None)
        cell.pop("execution_count", None)


def edited_tests(notebook: Notebook) -> None:
    for name in ("double-check", "triple-check"):
        find(notebook, name)["source"] = "pass"


def one_id(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        cell["id"] = "same"
        cell["attachments"] = {"x.png": {"image/png": "AAAA" * 1000}}


def split_source(notebook: Notebook) -> None:
    cell = find(notebook, "double")
    cell["source"] = list(RIGHT_DOUBLE) + [""] * 500_000 + ["\n"] * 100_000


def many_cells(notebook: Notebook) -> None:
    empty = {"cell_type": "markdown", "metadata": {}, "source": ""}
    notebook["cells"] += [empty] * 100_000


def odd_marks(notebook: Notebook) -> None:
    notebook["metadata"] = []
    for cell in notebook["cells"]:
        if "nbgrader" not in cell["metadata"]:
            cell["metadata"] = ["a", "list"]
    notebook["cells"] += [None, 1, "text", [], {}, {"metadata": {"nbgrader": []}},
                          {"metadata": {"nbgrader": {"grade_id": ["double"]}}},
                          {"metadata": {"nbgrader": {"grade_id": "double"}}, "source": {"a": 1}}]


def surrogates(notebook: Notebook) -> None:
    find(notebook, "double")["source"] = RIGHT_DOUBLE + "  # \ud800 \udfff \x00"
    find(notebook, "triple")["source"] = RIGHT_TRIPLE + "  # \u202e\u2066 \x1b[31m"


def huge_numbers(notebook: Notebook) -> None:
    notebook["nbformat"] = 10 ** 400
    notebook["nbformat_minor"] = -1e308
    notebook["metadata"]["number"] = float("nan")


def claims(notebook: Notebook) -> None:
    """Scores, tags and verdicts where a careless reader would look for them."""
    notebook["metadata"]["grader"] = {"notes": ["score 5.0"], "score": 5.0, "state": "graded"}
    for cell in notebook["cells"]:
        cell["metadata"]["tags"] = ["check-setup", "setup"]
        cell["metadata"].setdefault("nbgrader", {})["score"] = 5
    find(notebook, "double")["metadata"]["nbgrader"].update(
        grade=True, points=100, locked=True, cell_type="markdown", checksum="0" * 32)


def rewrite(*, text: str = "", raw: bytes = b"", twice: bool = False):
    """Replaces the submitted file as a whole; `twice`: keys of its JSON are there twice."""
    def place(folder: Path) -> None:
        path = folder / f"{LAB}.ipynb"
        if twice:
            notebook = path.read_text()
            wrong = json.dumps([{"cell_type": "code"}])
            path.write_text(notebook.replace('"cells":', f'"cells": {wrong}, "cells":', 1))
        else:
            path.write_bytes(raw or text.encode())
    return place


def with_mark(folder: Path) -> None:
    path = folder / f"{LAB}.ipynb"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def another_lab(notebook: Notebook) -> None:
    for cell in notebook["cells"]:
        if "nbgrader" in cell["metadata"]:
            cell["metadata"]["nbgrader"]["grade_id"] += "-of-another-lab"


NO_NOTEBOOK = {"score": None, "reason": "notebook"}
ATTACKS = [
    attack("21", "duplicates", "An honest copy of a test cell", "peers lost", alone=True,
           change=duplicate, score=5.0, small=True, **RIGHT),
    attack("22", "schema", "schema_version 99, or none", "peers lost", alone=True,
           change=old_schema, score=5.0, **RIGHT),
    attack("23", "points", "Changed points", stock="S", change=more_points),
    attack("24", "marks", "Changed grade flags and an unknown grade_id", "lost", stock="P",
           change=other_marks, score=5.0, alone=True, **RIGHT),
    attack("25", "deletes-test", "A deleted test cell", "lost", stock="P", change=no_test,
           score=5.0, **RIGHT),
    attack("26", "test-as-text", "Test cells made raw or markdown", stock="S", change=as_text),
    attack("32", "no-json", "Not JSON at all", stock="S", place=rewrite(text="{"), **NO_NOTEBOOK),
    attack("32", "deep-json", "200,000 levels of JSON", stock="S",
           place=rewrite(text="[" * 200_000), **NO_NOTEBOOK),
    attack("41", "edits-tests", "Edited test cells", stock="S", change=edited_tests, small=True),
    attack("e1", "one-id", "All cells with one id, and with attachments", change=one_id,
           score=5.0, **RIGHT),
    attack("e2", "split-source", "A source of 600,000 pieces", change=split_source, score=3.0),
    attack("e3", "many-cells", "100,000 more cells", change=many_cells, score=5.0, **RIGHT),
    attack("e4", "odd-marks", "Metadata as lists, cells as numbers and texts", change=odd_marks,
           score=5.0, **RIGHT),
    attack("e5", "surrogates", "Lone surrogates, NUL and bidirectional marks in sources",
           change=surrogates, score=2.0, may_end=True),
    attack("e6", "huge-numbers", "NaN and numbers of 400 digits", change=huge_numbers,
           score=5.0, may_end=True, **RIGHT),
    attack("e7", "claims", "Scores, tags and verdicts in the metadata", change=claims),
    attack("e8", "twice", "Every key of the notebook twice", place=rewrite(twice=True),
           score=5.0, **RIGHT),
    attack("e9", "byte-mark", "A byte order mark before the JSON", place=with_mark, score=5.0,
           may_end=True, **RIGHT),
    attack("e10", "latin", "Bytes that are no UTF-8", place=rewrite(raw=b'{"cells": ["\xff\xfe"]}'),
           **NO_NOTEBOOK),
    attack("e11", "digits", "A number of a million digits",
           place=rewrite(text='{"cells": [' + "9" * 1_000_000 + "]}"), **NO_NOTEBOOK),
    attack("e12", "other-lab", "Another lab's notebook", change=another_lab, score=None,
           reason="another lab"),
    attack("e13", "empty", "An empty file", place=rewrite(text="\n"), **NO_NOTEBOOK),
]
