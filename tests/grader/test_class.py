"""A whole class in one batch: honest students, unlucky ones, and some that try things."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest

from grader.course import Course, digest_of_folder
from tests.grader import small_lab
from tests.grader.conftest import new_course, run, submit, table
from tests.grader.small_lab import RIGHT, WRONG, answered, find, pasted

pytestmark = pytest.mark.slow

MISCHIEF = """from IPython.display import HTML, Javascript, display
display(HTML("<b>bold</b><script>alert(1)</script><img src=x onerror=alert(2)>"))
display(Javascript("alert(3)"))
""" + RIGHT
SCORES = {"ada": 5, "blank": 0, "constant": 2, "noisy": 5, "number": 5, "copied": 5, "draft": 5,
          "deleted": 5, "tampered": 0, "tidy": 5, "syntax": 2, "mischief": 5}
REASONS = {"crash": "its code ended the sandbox at cell batch: exit code 1",
           "eternal": "out of time at cell batch-check (5 s)", "broken": "is no notebook",
           "deep": "is no notebook", "list": "no list of cells", "linked": "link",
           "empty": "no 90_small.ipynb in it; there is other.ipynb", "wrong": "another lab's"}


def honest(release: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    yield "ada", answered(release)
    yield "blank", release
    yield "constant", answered(release, WRONG)
    yield "syntax", answered(release, "def global_batch(:")
    yield "eternal", answered(release, RIGHT.replace("return", "while True: pass\n    return"))
    yield "crash", answered(release, f"import os; os._exit(1)\n{RIGHT}")
    noise = 'import sys; print("W: no NNPACK", file=sys.stderr)'
    yield "noisy", answered(release, RIGHT.replace("return", f"{noise}\n    return"))
    yield "number", answered(release, RIGHT + "\n0.5")
    copied = answered(release)
    copied.cells.append(pasted(find(copied, "batch-check")))
    yield "copied", copied
    draft = answered(release)
    draft.cells.append(pasted(find(release, "batch")))
    yield "draft", draft
    tidy = answered(release)
    tidy.cells = [cell for cell in tidy.cells if "nbgrader" in cell.metadata]
    yield "tidy", tidy


def tricky(release: nbformat.NotebookNode) -> Iterator[tuple[str, nbformat.NotebookNode]]:
    deleted = answered(release)
    deleted.cells = [cell for cell in deleted.cells if not cell.metadata.get("nbgrader", {})
                     .get("grade")]
    yield "deleted", deleted
    tampered = copy.deepcopy(release)
    for cell in tampered.cells:
        marks = cell.metadata.get("nbgrader", {})
        if marks.get("grade"):
            marks.update(points=100, locked=False, schema_version=99, solution=True)
            cell.source = "pass"
    yield "tampered", tampered
    yield "mischief", answered(release, MISCHIEF)
    wrong = copy.deepcopy(release)
    for cell in wrong.cells:
        cell.metadata.pop("nbgrader", None)
    yield "wrong", wrong


def unreadable(course: Course) -> None:
    texts = {"broken": "{", "deep": "[" * 200_000, "list": "[]"}
    for student, text in texts.items():
        path = course.notebook("submitted", small_lab.NAME, student)
        path.parent.mkdir(parents=True)
        path.write_text(text)
    other = course.notebook("submitted", small_lab.NAME, "empty")
    other.parent.mkdir(parents=True)
    other.with_name("other.ipynb").write_text("{}")
    link = course.notebook("submitted", small_lab.NAME, "linked")
    link.parent.mkdir(parents=True)
    link.symlink_to(course.notebook("source", small_lab.NAME))


@dataclass
class Graded:
    course: Course
    rows: dict[str, dict[str, str]]
    before: str  # digest of submitted/
    output: str

    def feedback(self, student: str) -> str:
        return (self.course.root / "feedback" / student / small_lab.NAME
                / f"{small_lab.NAME}.html").read_text()


@pytest.fixture(scope="module")
def graded(tmp_path_factory, released) -> Graded:
    course = new_course(tmp_path_factory.mktemp("class"))
    for student, notebook in [*honest(released), *tricky(released)]:
        submit(course, student, notebook)
    unreadable(course)
    before = digest_of_folder(course.root / "submitted")
    done = run(course, "grade", "--all")
    assert done.returncode == 0, done.stderr
    return Graded(course, table(course.root / "grades.csv"), before, done.stdout)


@pytest.mark.parametrize("student", SCORES)
def test_every_submission_that_can_be_graded_gets_its_score(graded, student):
    row = graded.rows[student]
    assert (row["state"], row["reason"], float(row["score"]), float(row["max_score"])) == (
        "graded", "", SCORES[student], small_lab.MOST)


@pytest.mark.parametrize("student", REASONS)
def test_what_cannot_be_graded_is_ungraded_with_the_reason_and_no_score(graded, student):
    row = graded.rows[student]
    assert (row["state"], row["score"]) == ("ungraded", "")
    assert REASONS[student] in row["reason"]
    assert f"ungraded: {student}, {small_lab.NAME}: " in graded.output


def test_the_table_counts_everybody(graded):
    assert set(graded.rows) == {*SCORES, *REASONS}
    line = next(line for line in graded.output.splitlines() if small_lab.NAME in line)
    assert [int(word) for word in line.split() if word.isdigit()][:2] == [len(SCORES),
                                                                         len(REASONS)]


def test_no_submitted_file_is_changed(graded):
    assert digest_of_folder(graded.course.root / "submitted") == graded.before


def test_duplicates_are_reported(graded):
    assert graded.rows["copied"]["notes"] == "batch-check is there 2 times"
    assert "batch is there 2 times" in graded.rows["draft"]["notes"]


def test_feedback_shows_the_score_and_no_hidden_test(graded):
    text = graded.feedback("constant")
    assert "Score: 2.0 / 5.0" in text
    for secret in ("HIDDEN", "check.draw", "range(1"):
        assert secret not in text
    stored = graded.course.notebook("autograded", small_lab.NAME, "constant").read_text()
    assert "check.draw" in stored  # it was there to be hidden


def test_no_script_of_a_student_is_in_the_feedback(graded):
    text = graded.feedback("mischief")
    page = text[text.index('id="notebook"'):]
    assert "<b>bold</b>" in page
    assert "<script" not in page and "onerror=" not in page.replace("onerror=alert(2)&gt;", "")
    stored = graded.course.notebook("autograded", small_lab.NAME, "mischief").read_text()
    assert "onerror" in stored  # it was there to be cleaned


def test_explore_cells_do_not_run(graded):
    notebook = json.loads(
        graded.course.notebook("autograded", small_lab.NAME, "ada").read_text())
    explore = next(cell for cell in notebook["cells"]
                   if cell["metadata"].get("tags") == ["explore"])
    assert explore["outputs"] == []
    assert not list(Path(graded.course.root).rglob("explored"))


def test_typed_by_hand_nbgrader_grades_and_exports_the_same(graded):
    done = run(graded.course, "autograde", small_lab.NAME, "--force", "--student", "copied",
               program="nbgrader")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("without isolation") == 1
    done = run(graded.course, "export", "--to", "mine.csv", program="nbgrader")
    assert done.returncode == 0, done.stderr
    mine = table(graded.course.root / "mine.csv")
    assert {name: row["score"] for name, row in mine.items()} == {
        name: row["score"] for name, row in graded.rows.items()}
