"""A check in a notebook warns at once about what grading will not have."""

from __future__ import annotations

import json
import re
import sys

import pytest
from IPython.core.interactiveshell import InteractiveShell

from labcore import own_labs
from labkit.build.cli import build
from labkit.cells import Role, read_release
from labkit.check import history, running
from labkit.check.sides import current_side
from tests.labkit.check.test_running import LAB, labs  # noqa: F401  a fixture

COLORS = re.compile("\033\\[[0-9;]*m")
RIGHT = "def halve(x):\n    return x / 2"
HELPER = "def up(a, b):\n    return a / b"
WITH_HELPER = "def halve(x):\n    return up(x, 2)"
CHECK_SETUP = "check-setup"  # stands for the ID of the small lab's cell


@pytest.fixture
def linked():
    """Whether LAB_HOME is a symbolic link."""
    return False


@pytest.fixture
def home(tmp_path, linked):
    if not linked:
        return tmp_path
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    return tmp_path / "link"


@pytest.fixture
def run(monkeypatch, home, capsys, labs):  # noqa: F811
    """Runs cells by the ID or the source, as JupyterLab does; returns what the last one printed."""
    monkeypatch.setenv("LAB_HOME", str(home))
    monkeypatch.setenv(own_labs.VARIABLE, str(labs))
    monkeypatch.setattr(running, "_loaded", None)
    monkeypatch.setattr(current_side(), "masks", current_side().masks)  # the lab's end here
    monkeypatch.chdir(home)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    lab = read_release(labs / "notebooks" / "90_small.ipynb")
    setup = next(cell.id for cell in lab.cells if cell.role is Role.CHECK_SETUP)
    released = lab.by_id
    shell.run_cell("import math", store_history=True)
    history.register(shell)

    def run(*cells: str | tuple[str, str]) -> str:
        for cell in cells:
            name, source = cell if isinstance(cell, tuple) else (cell, None)
            name = setup if name == CHECK_SETUP else name
            if source is None and name in released:
                source = released[name].text
            capsys.readouterr()
            shell.run_cell(source or name, store_history=True,
                           cell_id=name if source else "3b1c-uuid")
        return capsys.readouterr().out

    yield run
    InteractiveShell.clear_instance()


def test_a_helper_in_a_cell_of_one_s_own_is_named_below_the_verdict(run):
    said = run(CHECK_SETUP, HELPER, ("halve", WITH_HELPER), "halve-check")
    *verdicts, warning = said.splitlines()
    assert "halve: right in" in verdicts[0]
    assert warning.endswith("`up` is defined in a cell of your own; grading will not have it: move "
                            "it into your answer")
    moved = run(("halve", f"{HELPER}\n{WITH_HELPER}"), "halve-check")
    assert moved.splitlines() == verdicts


def test_an_answer_on_its_own_gives_no_warning(run):
    said = run(CHECK_SETUP, ("halve", RIGHT), "import math", "x = 3",
               "halve-check")
    assert all("✓" in line for line in said.splitlines()) and "right in" in said


@pytest.mark.parametrize("imported", ["from mytrainer_ import ring; ring.STEPS",
                                      "import mytrainer_.ring; mytrainer_.ring.STEPS",
                                      "from mytrainer_ import both; both.ring.STEPS"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_rewritten_file_is_reimported(run, home, monkeypatch, imported):
    (home / "mytrainer_").mkdir()
    (home / "mytrainer_" / "both.py").write_text("from mytrainer_ import ring")
    monkeypatch.syspath_prepend(home)
    writing, use = "%%writefile mytrainer_/ring.py\nSTEPS = {}", imported.replace("; ", "\nprint(")
    assert run(writing.format("3"), f"{use})") == "3\n"
    assert run(f"kept = {imported.partition('; ')[2].rpartition('.')[0]}", f"{use}, kept.STEPS)",
               writing.format("1024"), f"{use}, kept.STEPS)") == "1024 3\n"
    for name in [name for name in sys.modules if name.startswith("mytrainer_")]:
        del sys.modules[name]


def test_a_name_from_import_star_and_a_changed_check_are_named(run, tmp_path, monkeypatch):
    (tmp_path / "helpers.py").write_text(HELPER)
    monkeypatch.syspath_prepend(tmp_path)
    said = run(CHECK_SETUP, "from helpers import *", ("halve", WITH_HELPER),
               ("halve-check", "check.call(halve, 1)"))
    assert "this check is not the original" in said
    assert "`up` is defined in a cell of your own" in said


def test_half_an_answer_has_the_grade_id_in_the_saved_notebook(run, tmp_path, monkeypatch):
    notebook = tmp_path / "my copy.ipynb"
    notebook.write_text(json.dumps({"cells": [
        {"id": "half-uuid", "metadata": {"nbgrader": {"grade_id": "halve"}}},
        {"id": "other-uuid", "metadata": {}}]}))
    cells = (CHECK_SETUP, ("half-uuid", HELPER), ("halve", WITH_HELPER),
             "halve-check")
    assert "`up`" in run(*cells)
    monkeypatch.setenv(history.NOTEBOOK, str(notebook))
    assert "`up`" not in run(*cells)


@pytest.mark.parametrize(("source", "verdict"), [
    ("check.that(check.call(halve, 8) == 4, 'no')", "✓ halve: passed 1 test"),
    ("check.function(halve, [(8,)], [4.0])", "✓ halve: right in 1 case"),
    ("for n in range(8, 11):\n    check.that(check.call(halve, 2 * n) == n, 'no')",
     "✓ halve: passed 3 tests"),
    ("check.function(halve, [(8,)], [4.0])\ncheck.that(1 == 1, 'no')",
     "✓ halve: passed 1 test"),
    ("assert halve(8) == 4", "✓ this check: passed")])
def test_a_check_ends_with_a_verdict_whatever_it_uses(run, source, verdict):
    said = run(CHECK_SETUP, ("halve", RIGHT), ("halve-check", source))
    lines = COLORS.sub("", said).splitlines()
    assert next(line for line in reversed(lines) if not line.startswith("!")) == verdict


def test_a_check_that_fails_and_a_cell_that_is_no_check_have_no_verdict_of_their_own(run):
    said = run(CHECK_SETUP, ("halve", RIGHT),
               ("halve-check", "check.that(True, 'no')\ncheck.that(False, 'a hint')"))
    assert "✓" not in said and "a hint" in said
    assert run("x = 1") == ""


def test_a_check_that_a_student_runs_in_a_cell_of_their_own_warns_too(run):
    said = run(CHECK_SETUP, HELPER, ("halve", WITH_HELPER), 'check("halve")')
    assert "halve: right in" in said and "`up` is defined in a cell of your own" in said


def test_without_cell_ids_a_check_is_that_of_the_lab_that_was_chosen(run, tmp_path, monkeypatch):
    # The lab that comes first has a check of this name, too, and another setup cell.
    other = LAB.replace("import torch\n", "import os\n\nimport torch\n", 1).replace(
        "mytrainer/factor", "mytrainer/other")
    (tmp_path / "two" / "solutions").mkdir(parents=True)
    for name, source in (("80_other", other), ("90_small", LAB)):
        (tmp_path / "two" / "solutions" / f"{name}.py").write_text(source)
    build(tmp_path / "two", missing=[])
    monkeypatch.setenv(own_labs.VARIABLE, str(tmp_path / "two"))
    said = run("import torch\nimport torch.distributed as dist",
               "from labkit import check\n\ncheck.lab('90_small')",
               ("halve", "def halve(x):\n    return x / (2 if torch else 1)"), 'check("halve")')
    assert "halve: right in" in said and "cell of your own" not in said
