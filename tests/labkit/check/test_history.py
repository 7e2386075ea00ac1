"""A check in a notebook warns at once about what grading will not have."""

from __future__ import annotations

import json
import re

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labcore.workspace import CHECKOUT
from labkit.cells import Role, read_release
from labkit.check import history
from labkit.check.history import CellHistory

COLORS = re.compile("\033\\[[0-9;]*m")
LAB = CHECKOUT / "notebooks" / "00_welcome.ipynb"
RIGHT = """def steps_for(tokens, global_batch, sequence_length):
    return -(-tokens // (global_batch * sequence_length))"""
CHECK_SETUP = next(cell.id for cell in read_release(LAB).cells if cell.role is Role.CHECK_SETUP)
HELPER = "def up(a, b):\n    return -(-a // b)"
WITH_HELPER = """def steps_for(tokens, global_batch, sequence_length):
    return up(tokens, global_batch * sequence_length)"""


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs cells by the ID or the source, as JupyterLab does; returns what the last one printed."""
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    released = read_release(LAB).by_id
    shell.run_cell("import math", store_history=True)
    watched = CellHistory(shell)
    shell.events.register("pre_run_cell", watched.before_cell)
    shell.events.register("post_run_cell", watched.after_cell)

    def run(*cells: str | tuple[str, str]) -> str:
        for cell in cells:
            name, source = cell if isinstance(cell, tuple) else (cell, None)
            if source is None and name in released:
                source = released[name].text
            capsys.readouterr()
            shell.run_cell(source or name, store_history=True,
                           cell_id=name if source else "3b1c-uuid")
        return capsys.readouterr().out

    yield run
    InteractiveShell.clear_instance()


def test_a_helper_in_a_cell_of_one_s_own_is_named_below_the_verdict(run):
    said = run(CHECK_SETUP, HELPER, ("steps-for", WITH_HELPER), "steps-for-check")
    verdict, warning = said.splitlines()
    assert "steps_for: right in" in verdict
    assert warning.endswith("`up` is defined in a cell of your own; grading will not have it: move "
                            "it into your answer")
    moved = run(("steps-for", f"{HELPER}\n{WITH_HELPER}"), "steps-for-check")
    assert len(moved.splitlines()) == 1


def test_an_answer_on_its_own_gives_no_warning(run):
    said = run(CHECK_SETUP, ("steps-for", RIGHT), "import math", "x = 3",
               "steps-for-check")
    assert len(said.splitlines()) == 1 and "right in" in said


def test_a_name_from_import_star_and_a_changed_check_are_named(run, tmp_path, monkeypatch):
    (tmp_path / "helpers.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    said = run(CHECK_SETUP, "from helpers import *", ("steps-for", WITH_HELPER),
               ("steps-for-check", "check.call(steps_for, 1, 1, 1)"))
    assert "this check is not the original" in said
    assert "`up` is defined in a cell of your own" in said


def test_half_an_answer_has_the_grade_id_in_the_saved_notebook(run, tmp_path, monkeypatch):
    notebook = tmp_path / "my copy.ipynb"
    notebook.write_text(json.dumps({"cells": [
        {"id": "half-uuid", "metadata": {"nbgrader": {"grade_id": "steps-for"}}},
        {"id": "other-uuid", "metadata": {}}]}))
    cells = (CHECK_SETUP, ("half-uuid", HELPER), ("steps-for", WITH_HELPER),
             "steps-for-check")
    assert "`up`" in run(*cells)
    monkeypatch.setenv(history.NOTEBOOK, str(notebook))
    assert "`up`" not in run(*cells)


@pytest.mark.parametrize(("source", "verdict"), [
    ("check.that(check.call(steps_for, 8, 4, 2) == 1, 'no')", "✓ steps_for: passed 1 test"),
    ("check.function(steps_for, [(8, 4, 2)], [1])", "✓ steps_for: right in 1 case"),
    ("for n in range(8, 11):\n    check.that(check.call(steps_for, n, 1, 1) == n, 'no')",
     "✓ steps_for: passed 3 tests"),
    ("check.function(steps_for, [(8, 4, 2)], [1])\ncheck.that(1 == 1, 'no')",
     "✓ steps_for: passed 1 test"),
    ("assert steps_for(8, 4, 2) == 1", "✓ this check: passed")])
def test_a_check_ends_with_a_verdict_whatever_it_uses(run, source, verdict):
    said = run(CHECK_SETUP, ("steps-for", RIGHT), ("steps-for-check", source))
    lines = COLORS.sub("", said).splitlines()
    assert next(line for line in reversed(lines) if not line.startswith("!")) == verdict


def test_a_check_that_fails_and_a_cell_that_is_no_check_have_no_verdict_of_their_own(run):
    said = run(CHECK_SETUP, ("steps-for", RIGHT),
               ("steps-for-check", "check.that(True, 'no')\ncheck.that(False, 'a hint')"))
    assert "✓" not in said and "a hint" in said
    assert run("x = 1") == ""


def test_a_check_that_a_student_runs_in_a_cell_of_their_own_warns_too(run):
    said = run(CHECK_SETUP, HELPER, ("steps-for", WITH_HELPER), 'check("steps-for")')
    assert "steps_for: right in" in said and "`up` is defined in a cell of your own" in said
