"""A small lab in nbgrader's format, and what students make of it."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
from nbformat import v4

NAME = "90_small"
MOST = 5.0

SETUP = "import os\nos.chdir(os.environ['LAB_HOME'])"
ANSWER = """def global_batch(micro_batch, ranks):
    ### BEGIN SOLUTION
    return micro_batch * ranks
    ### END SOLUTION"""
CHECK = """check.function(global_batch, cases=[{"micro_batch": 4, "ranks": 4}],
               expected=lambda micro_batch, ranks: micro_batch * ranks)
### BEGIN HIDDEN TESTS
check.function(global_batch, cases=check.draw(20, micro_batch=range(1, 65), ranks=[1, 2, 4, 8]),
               expected=lambda micro_batch, ranks: micro_batch * ranks)
### END HIDDEN TESTS"""
SCRIPT = """%%writefile code/mine.sh
### BEGIN SOLUTION
#!/bin/bash
echo mine
### END SOLUTION"""
DRIVER = """def written():
    with open("code/mine.sh") as file:
        return file.read()"""
SCRIPT_CHECK = 'check.that("echo mine" in check.call(written), "Say echo mine.")'
RIGHT = "def global_batch(micro_batch, ranks):\n    return micro_batch * ranks"
WRONG = "def global_batch(micro_batch, ranks):\n    return 16"  # what the visible case wants


def marks(name: str, **more: object) -> dict:
    return {"nbgrader": {"grade_id": name, "grade": False, "solution": False, "locked": True,
                         "task": False, "schema_version": 3, **more}}


def cell(source: str, tags: list[str] | None = None, **metadata: object) -> nbformat.NotebookNode:
    return v4.new_code_cell(source, metadata={**({"tags": tags} if tags else {}), **metadata})


def source(setup: str = SETUP) -> nbformat.NotebookNode:
    """The notebook that `lab build` writes for instructors."""
    picture = "![a](../images/small.png) and ![not ours](../images/../pyproject.toml)"
    notebook = v4.new_notebook(cells=[
        v4.new_markdown_cell(f"# A small lab\n{picture}"),
        cell(setup, ["setup"]),
        cell("open('explored', 'w')\nraise SystemError('explore cells do not run')", ["explore"]),
        cell("from labkit import check", ["check-setup"]),
        cell(ANSWER, **marks("batch", solution=True, locked=False)),
        cell(CHECK, **marks("batch-check", grade=True, points=3)),
        cell(SCRIPT, **marks("script", solution=True, locked=False)),
        cell(DRIVER, ["driver"]),
        cell(SCRIPT_CHECK, **marks("script-check", grade=True, points=2)),
    ])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3",
                                    "language": "python"}
    return notebook


def put(notebook: nbformat.NotebookNode, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)
    return path


def find(notebook: nbformat.NotebookNode, name: str) -> nbformat.NotebookNode:
    """The cell of that grade_id."""
    return next(cell for cell in notebook.cells
                if cell.metadata.get("nbgrader", {}).get("grade_id") == name)


def pasted(cell: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A copy of a cell as JupyterLab makes it: with an id of its own."""
    return nbformat.from_dict({**copy.deepcopy(cell), "id": v4.new_code_cell().id})


def answered(release: nbformat.NotebookNode, batch: str = RIGHT,
             script: str = "%%writefile code/mine.sh\necho mine") -> nbformat.NotebookNode:
    """The released notebook, with a student's answers in it."""
    notebook = copy.deepcopy(release)
    find(notebook, "batch").source = batch
    find(notebook, "script").source = script
    return notebook
