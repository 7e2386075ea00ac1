"""`lab validate`: what grading will say, before a student submits, on any machine."""

from __future__ import annotations

import copy
import subprocess
import sys

import nbformat
import pytest
from nbformat import v4

from grader.cleaning import COLORS
from grader.sandbox import choice
from grader.sandbox.interface import Unavailable
from grader.sandbox.unisolated import Unisolated
from lab import cli
from labcore.errors import LabError
from tests.grader import small_lab
from tests.grader.small_lab import RIGHT, answered, find

pytestmark = pytest.mark.slow  # each starts a process
WRITTEN = v4.new_markdown_cell("*Your turn*", metadata={"nbgrader": {
    "grade_id": "why", "grade": True, "solution": True, "locked": False, "points": 2,
    "task": False, "schema_version": 3}})


@pytest.fixture
def release(released: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The small lab as students get it, with exercises, a mask, and a written answer."""
    notebook = copy.deepcopy(released)
    notebook.cells.insert(4, v4.new_markdown_cell("### Exercise 1: the global batch"))
    notebook.cells.append(v4.new_markdown_cell("### Discuss: why?"))
    notebook.cells.append(copy.deepcopy(WRITTEN))
    setup = next(cell for cell in notebook.cells if cell.source == "from labkit import check")
    setup.source += '\ncheck.mask("minimegatron.formulas")'
    return notebook


@pytest.fixture
def validate(release, tmp_path, monkeypatch, capsys):
    """Runs `lab validate` on a notebook without a sandbox; returns its exit code and lines."""
    labs, home = tmp_path / "labs", tmp_path / "workspace"
    small_lab.put(release, labs / "notebooks" / f"{small_lab.NAME}.ipynb")
    (home / "notebooks").mkdir(parents=True)
    monkeypatch.setenv("LAB_LABS", str(labs))
    monkeypatch.setenv("LAB_HOME", str(home))

    def unavailable(name=None):
        raise Unavailable("nothing here")

    def run(notebook, *words: str, name: str = "mine", sandbox: bool = False):
        if not sandbox:
            monkeypatch.setattr(choice, "choose", unavailable)
        if notebook is not None:
            small_lab.put(notebook, home / "notebooks" / f"{name}.ipynb")
        code = cli.main(["validate", *words])
        done = capsys.readouterr()
        return code, COLORS.sub("", done.out + done.err).splitlines()

    return run


def with_written(notebook, text="Because."):
    find(notebook, "why").source = text
    return notebook


def test_right_answers_pass_and_the_verdict_says_what_it_covers(validate, release):
    code, lines = validate(with_written(answered(release)))
    assert code == 0
    assert "as saved at" in lines[0] and lines[0].endswith("answers to 90_small, run as in grading")
    assert lines[1:4] == ["✓ Exercise 1: the global batch: 3 of 3 points",
                          "✓ Exercise 1: the global batch: 2 of 2 points",
                          "- Discuss: why?: 2 points, graded by a person"]
    assert lines[4].startswith("3 of 3 exercises are ready. Grading also runs hidden tests")
    assert "without grading's sandbox" in lines[5]


def test_what_works_in_the_notebook_only_fails_here_with_the_reason(validate, release):
    notebook = answered(release, "def global_batch(micro_batch, ranks):\n    "
                        "return times(micro_batch, ranks)")
    notebook.cells.insert(2, v4.new_code_cell("def times(a, b):\n    return a * b"))
    code, lines = validate(notebook)
    assert code == 1
    assert lines[1] == "✗ Exercise 1: the global batch: 0 of 3 points"
    assert "name 'times' is not defined" in lines[2]
    assert lines[3].strip() == ("line 2 of the cell, in global_batch: "
                                "return times(micro_batch, ranks)")
    assert lines[4].strip().startswith("! `times` is defined in a cell of your own; grading will")
    assert "✗ Discuss: why?: 2 points" in lines[6]
    assert lines[7].strip() == "it has no answer yet"
    assert lines[8].startswith("1 of 3 exercises are ready")


@pytest.mark.parametrize("answer", [
    "from minimegatron.formulas import bubble_fraction\n" + RIGHT,
    RIGHT.replace("return", "import minimegatron.formulas\n    return")])
def test_what_grading_masks_is_masked_without_a_sandbox_too(validate, release, answer):
    code, lines = validate(with_written(answered(release, answer)))
    assert code == 1 and "✗ Exercise 1" in lines[1]
    assert "minimegatron.formulas" in "".join(lines[2:4])


def test_an_error_in_the_answer_s_own_cell_is_shown(validate, release):
    _, lines = validate(answered(release, f"x = 1 / 0\n{RIGHT}"))
    assert "the answer cell batch raised ZeroDivisionError: division by zero" in lines[3]


def test_where_there_is_a_sandbox_it_is_used(validate, release):
    code, lines = validate(with_written(answered(release)), sandbox=True)
    assert code == 0 and "without grading's sandbox" not in "".join(lines)


@pytest.mark.parametrize(("words", "said"), [
    (["min"], "min: no such notebook, here or in {home}/notebooks; nearest: mine"),
    ([], "mine has none of a lab's answer cells; the labs are"),
])
def test_a_notebook_that_is_not_there_or_not_a_lab_is_refused(validate, tmp_path, words, said):
    code, lines = validate(v4.new_notebook(), *words)
    assert code == 1 and lines[0].startswith(
        "lab: error: " + said.format(home=tmp_path / "workspace"))


def test_a_file_that_is_no_notebook_is_refused(validate, tmp_path):
    path = tmp_path / "mine.ipynb"
    path.write_text("%PDF-1.4")
    code, lines = validate(None, str(path))
    assert code == 1 and lines[0].startswith(f"lab: error: {path}: mine.ipynb is not a notebook")
    code, lines = validate(None)
    assert code == 1 and "there is no notebook in" in lines[0]


def test_students_need_neither_nbgrader_nor_the_rest_of_the_grader():
    """Their images have what docker/Dockerfile copies, and no nbgrader."""
    text = """
import sys
absent = ["nbgrader", "nh3", "grader.batch", "grader.collect", "grader.config", "grader.contest",
          "grader.decide", "grader.export", "grader.feedback", "grader.gradebook",
          "grader.nbgrader_plugin", "grader.report", "grader.similarity", "grader.stats",
          "grader.written"]
sys.modules |= dict.fromkeys(absent)
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "nbgrader" else find(name, *rest)
from lab import cli
arguments = cli.build_parser("validate").parse_args(["validate", "x"])
import grader.validate.validating, grader.sandbox.choice, grader.sandbox.unisolated
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_grading_itself_never_runs_without_isolation():
    assert Unisolated not in choice.BACKENDS.values()
    with pytest.raises(LabError, match=r"none.*nearest"):
        choice.choose(Unisolated.name)
