"""A notebook's checks, which are one line each: what a student reads below them."""

from __future__ import annotations

import json
import re
import traceback

import pytest

from labcore import own_labs
from labkit import check
from labkit.build.cli import build
from labkit.check import running
from labkit.check.checks import Failed
from labkit.check.sides import is_check_file
from labkit.lab_checks import BESIDE, path_of

COLORS = re.compile("\033\\[[0-9;]*m")
LAB = '''# %% [markdown]
# # A small lab

# %% tags=["setup"]
import torch
import torch.distributed as dist

# %% tags=["check-setup"]
from labkit import check

ANSWER = 30.0


def doubled(x):
    return 2 * x

# %% [markdown]
# ## Exercise 1: add up

# %% answer="total"
def total(x):
    ### BEGIN SOLUTION
    dist.all_reduce(x)
    return x
    ### END SOLUTION

# %% tags=["driver"]
def totals(value):
    """Return the sum over all ranks."""
    from mytrainer.factor import FACTOR

    return float(total(torch.tensor(value))) * FACTOR

# %% check="total" points=2
values = [10.0, 20.0]
check.ranks(totals, ranks=2, cases=[{"value": check.by_rank(values)}], expected=[[30.0, 30.0]],
            hints={"Each rank has only its own.": [[10.0, 20.0]]})
check.that(ANSWER == 30.0, "The course is wrong.")

# %% [markdown]
# ## Exercise 2: a file

# %% answer="factor"
# %%writefile mytrainer/factor.py
### BEGIN SOLUTION
FACTOR = 1
### END SOLUTION

# %% [markdown]
# ## Exercise 3: halve

# %% answer="halve"
def halve(x):
    ### BEGIN SOLUTION
    return x / 2
    ### END SOLUTION

# %% check="halve" points=2
check.function(halve, cases=[(8,), {"x": 3}], expected=[4.0, 1.5],
               hints={"Half of it is less than all of it.": [8, 3]})
check.raises(halve, TypeError, ("a",))
result = check.call(halve, doubled(8))
check.that(result + 1 == 9.0, "Halve it after it was doubled.")
### BEGIN HIDDEN TESTS
check.function(halve, cases=check.draw(3, x=range(99)), expected=lambda x: x / 2)
### END HIDDEN TESTS
'''


@pytest.fixture(scope="module")
def labs(tmp_path_factory):
    root = tmp_path_factory.mktemp("labs")
    (root / "solutions").mkdir()
    (root / "solutions" / "90_small.py").write_text(LAB)
    build(root, missing=[])
    return root


@pytest.fixture
def student(labs, tmp_path, monkeypatch):
    """The names of a notebook in a workspace, in which the first cell of its checks has run."""
    monkeypatch.setenv(own_labs.VARIABLE, str(labs))
    monkeypatch.setenv("LAB_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(running, "_loaded", None)
    (tmp_path / "mytrainer").mkdir()
    (tmp_path / "mytrainer" / "factor.py").write_text("FACTOR = 1\n")
    names = {"__name__": "__main__", "check": check}
    exec("import torch\nimport torch.distributed as dist\ncheck.lab('90_small')", names)
    return names


def said(student, line):
    """What a failed check says."""
    with pytest.raises(Failed) as failed:
        exec(line, student)
    shown = [] if failed.value.__suppress_context__ else [failed.value.__context__]
    frames = traceback.extract_tb(failed.value.__traceback__)
    assert shown in ([], [None]) and not any(is_check_file(frame.filename) for frame in frames)
    return COLORS.sub("", str(failed.value))


def test_a_right_answer_passes_and_the_check_leaves_no_names(student, capsys):
    exec("def halve(x):\n    return x / 2", student)
    before = dict(student)
    exec('check("halve")', student)
    assert "✓ halve: right in 2 cases" in COLORS.sub("", capsys.readouterr().out)
    assert student == before


def test_a_wrong_answer_gets_its_hint_and_an_error_the_students_line(student):
    exec("def halve(x):\n    return x", student)
    assert "Half of it is less than all of it." in said(student, 'check("halve")')
    exec("def halve(x):\n    return None", student)
    assert "4.0" not in said(student, 'check("halve")')
    exec("def halve(x):\n    return 1 / 0", student)
    text = said(student, 'check("halve")')
    assert "ZeroDivisionError" in text and "line 2 of the cell, in halve" in text


def test_a_check_that_breaks_on_an_answer_does_not_quote_itself(student):
    exec("class Odd(float):\n    pass\n\ndef halve(x):\n"
         "    if x == 16:\n        return 'eight'\n    return x / 2", student)
    text = said(student, 'check("halve")')
    assert "the check ended with TypeError" in text and "9.0" not in text


@pytest.mark.slow
def test_a_driver_on_ranks_has_the_students_names_and_files(student, capsys):
    exec("def total(x):\n    dist.all_reduce(x)\n    return x", student)
    exec('check("total")', student)
    assert "✓ totals: right on 2 ranks" in COLORS.sub("", capsys.readouterr().out)
    exec("def total(x):\n    return x", student)
    text = said(student, 'check("total")')
    assert "Each rank has only its own." in text
    assert text.endswith('\n`check.show("total")` shows `totals`.')


@pytest.mark.slow
def test_a_traceback_of_ranks_has_no_line_of_the_driver_unless_it_ends_there(student):
    exec("def total(x):\n    return x.sum(7)", student)
    text = said(student, 'check("total")')
    assert "in total" in text and "in totals" not in text
    exec("def total(x):\n    return None", student)
    text = said(student, 'check("total")')
    assert "in totals\n    return float(total(torch.tensor(value))) * FACTOR" in text


@pytest.mark.parametrize(("line", "text"), [
    ('check("total")', '`total` is not defined. Run the answer cell of "Exercise 1: add up"'),
    ('check("halv")', '90_small has no check \'halv\'; the nearest is check("halve")'),
    ('check(3)', '90_small has no check 3; its checks: "total", "halve"'),
    ('check.show("totl")', 'the nearest is check("total")'),
    ('check.lab("90_smal")', "the checks of 90_smal are not installed; nearest: 90_small")])
def test_what_is_missing_is_named(student, line, text):
    assert text in said(student, line)


def test_a_file_and_a_setup_cell_that_are_missing_are_named(student, tmp_path):
    exec("def total(x):\n    return x", student)
    del student["torch"]
    text = said(student, 'check("total")')
    assert "`torch` is not defined. Run the notebook's cells from" in text
    (tmp_path / "mytrainer" / "factor.py").unlink()
    text = said(student, 'check("total")')
    assert text.startswith('mytrainer/factor.py does not exist. Run the answer cell of "Exercise 2')


def test_show_prints_drivers_and_cases(student, capsys):
    exec('check.show("total")\ncheck.show("halve")', student)
    shown = COLORS.sub("", capsys.readouterr().out)
    assert 'def totals(value):\n    """Return the sum over all ranks."""' in shown
    assert "  totals(value=by_rank([10.0, 20.0])) on 2 ranks" in shown
    assert "  halve(8)\n  halve(x=3)\n  halve('a'), which is not valid input" in shown
    assert "Grading also runs hidden tests, with other cases." in shown
    for secret in ("30.0", "1.5", "Half of it", "Each rank", "Halve it", "ANSWER"):
        assert secret not in shown


def test_a_notebook_of_another_version_is_told_so(student, labs, tmp_path, monkeypatch, capsys):
    notebook = json.loads((labs / "notebooks" / "90_small.ipynb").read_text())
    saved = tmp_path / "90_small.ipynb"
    for version, is_older in ((notebook["metadata"]["lab"]["version"], False), ("older", True)):
        notebook["metadata"]["lab"]["version"] = version
        saved.write_text(json.dumps(notebook))
        monkeypatch.setenv(running.NOTEBOOK, str(saved))
        exec('check.lab("90_small")', student)
        assert ("from another version of 90_small" in capsys.readouterr().out) == is_older
    assert "from another version" in said(student, 'check("gone")')


def test_an_instructors_own_lab_has_its_checks_beside_the_notebook(student, labs, tmp_path,
                                                                   monkeypatch):
    monkeypatch.delenv(own_labs.VARIABLE)
    assert f"put 90_small{BESIDE} beside this notebook" in said(student, 'check.lab("90_small")')
    text = path_of(labs / "notebooks" / "90_small.ipynb").read_text()
    (tmp_path / f"90_small{BESIDE}").write_text(text)
    exec('check.lab("90_small")\ncheck.show("halve")', student)


def test_without_a_lab_the_line_to_run_is_named(student, monkeypatch):
    monkeypatch.setattr(running, "_loaded", None)
    assert "Run the cell at the top with `from labkit import check`" in said(
        student, 'check("halve")')
