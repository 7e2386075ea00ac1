"""A class: honest students, unlucky ones, some that try things, and fifteen kinds of submissions
that cannot be graded. Each kind says what must come of it."""

from __future__ import annotations

import copy
import io
import itertools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat

from grader.course import Course
from tests.grader import small_lab
from tests.grader.conftest import submit
from tests.grader.small_lab import RIGHT, WRONG, answered, find, pasted

NAME = small_lab.NAME
Notebook = nbformat.NotebookNode
SETTINGS = "c.Grading.memory_mb = 500\n"  # so that a memory bomb is a small one

MISCHIEF = """from IPython.display import HTML, Javascript, display
display(HTML("<b>bold</b><script>alert(1)</script><img src=x onerror=alert(2)>"))
display(Javascript("alert(3)"))
""" + RIGHT
NOISE = 'import sys; print("W: no NNPACK", file=sys.stderr)'


def within(statement: str) -> str:
    """The right answer, which does something more when it is called."""
    return RIGHT.replace("return", f"{statement}\n    return")


def copied(release: Notebook) -> Notebook:
    notebook = answered(release)
    notebook.cells.append(pasted(find(notebook, "batch-check")))
    return notebook


def draft(release: Notebook) -> Notebook:
    notebook = answered(release)
    notebook.cells.append(pasted(find(release, "batch")))
    return notebook


def tidy(release: Notebook) -> Notebook:
    notebook = answered(release)
    notebook.cells = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return notebook


def deleted(release: Notebook) -> Notebook:
    """Without the checks."""
    notebook = answered(release)
    notebook.cells = [cell for cell in notebook.cells
                      if not cell.metadata.get("nbgrader", {}).get("grade")]
    return notebook


def tampered(release: Notebook) -> Notebook:
    """No answer, and checks that say yes for 100 points each."""
    notebook = copy.deepcopy(release)
    for cell in notebook.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            marks.update(points=100, locked=False, schema_version=99, solution=True)
            cell.source = "pass"
    return notebook


# By kind: the submission, and its score.
GRADED: dict[str, tuple[Callable[[Notebook], Notebook], float]] = {
    "ada": (answered, 5), "blank": (copy.deepcopy, 0),
    "constant": (lambda release: answered(release, WRONG), 2),
    "syntax": (lambda release: answered(release, "def global_batch(:"), 2),
    "noisy": (lambda release: answered(release, within(NOISE)), 5),
    "number": (lambda release: answered(release, RIGHT + "\n0.5"), 5),
    "raises": (lambda release: answered(release, within("raise SystemExit(0)")), 2),
    "copied": (copied, 5), "draft": (draft, 5), "tidy": (tidy, 5), "deleted": (deleted, 5),
    "tampered": (tampered, 0), "mischief": (lambda release: answered(release, MISCHIEF), 5),
}


def stripped(release: Notebook) -> Notebook:
    """Another lab's: no cell with a name that is known."""
    notebook = copy.deepcopy(release)
    for cell in notebook.cells:
        cell.metadata.pop("nbgrader", None)
    return notebook


def emptied(release: Notebook) -> Notebook:
    notebook = copy.deepcopy(release)
    notebook.cells = []
    return notebook


def text(content: str | bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content.encode() if isinstance(content, str) else content)


def bomb() -> bytes:
    """An archive of 30 MB of blanks in a few bytes, under a notebook's name."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{NAME}.ipynb", b" " * 30_000_000)
    return file.getvalue()


def linked_beside(path: Path) -> None:
    path.write_text("{}")
    path.with_name("data").symlink_to("/etc")


# By kind: how its file comes about (of a notebook, or by hand), and a part of the reason.
NOTEBOOKS: dict[str, tuple[Callable[[Notebook], Notebook], str]] = {
    "crash": (lambda release: answered(release, f"import os; os._exit(1)\n{RIGHT}"),
              "its code ended the sandbox at cell batch: exit code 1"),
    "killed": (lambda release: answered(release, within("import os; os.kill(os.getpid(), 9)")),
               "its code ended the sandbox at cell batch-check: ended by signal 9"),
    "eternal": (lambda release: answered(release, within("import time; time.sleep(999)")),
                "out of time at cell batch-check (5 s)"),
    "greedy": (lambda release: answered(release, within("held = [b'x' * 10**7] * 1\n    while True:"
                                                        " held.append(bytes(10**7) + b'1')")),
               "at cell batch-check: its memory passed "),
    "wrong": (stripped, "another lab's"), "emptied": (emptied, "another lab's"),
}
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "broken": (text("{"), "is not a notebook"), "deep": (text("[" * 200_000), "is not a notebook"),
    "list": (text("[]"), "no list of cells"), "bomb": (text(bomb()), "is not a notebook"),
    "binary": (text(bytes(range(256)) * 40), "is not a notebook"),
    "huge": (lambda path: (path.touch(), os.truncate(path, 21_000_000)), "has 21 MB"),
    "linked": (lambda path: path.symlink_to("/etc/passwd"), "link"),
    "beside": (linked_beside, "data is a link"),
    "empty": (lambda path: path.with_name("other.ipynb").write_text("{}"),
              f"no {NAME}.ipynb in it; there is other.ipynb"),
}
UNGRADED = {**NOTEBOOKS, **FILES}
assert len(UNGRADED) == 15


def fill(course: Course, release: Notebook, graded: int = len(GRADED)
         ) -> tuple[dict[str, float], dict[str, str]]:
    """Have the class submit: `graded` students whose submissions can be graded, and one of every
    kind that cannot. (scores, reasons) by student."""
    with course.config_file.open("a") as file:
        file.write(SETTINGS)
    scores, reasons = {}, {}
    for number, (kind, (make, score)) in zip(range(graded), itertools.cycle(GRADED.items()),
                                             strict=False):
        student = kind if number < len(GRADED) else f"{kind}-{number}"
        submit(course, student, make(release))
        scores[student] = float(score)
    for student, (make, reason) in NOTEBOOKS.items():
        submit(course, student, make(release))
        reasons[student] = reason
    for student, (write, reason) in FILES.items():
        path = course.notebook("submitted", NAME, student)
        path.parent.mkdir(parents=True)
        write(path)
        reasons[student] = reason
    return scores, reasons
