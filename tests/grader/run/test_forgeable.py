"""Messages to the instructor of an untagged assignment about its tests."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from grader.run import forgeable
from grader.run.lab_plan import GradingPlan, bound_by_answers, planned
from tests.grader.small_lab import marks


def told(setup: str, test: str, answer: str = "f = 1", tags: tuple[str, ...] = ()) -> list[str]:
    notebook = new_notebook(cells=[
        new_code_cell(setup, metadata={"tags": list(tags)}),
        new_code_cell(answer, metadata=marks("a", solution=True)),
        new_code_cell(test, metadata=marks("a-test", grade=True, points=1))])
    return forgeable.warnings_of(GradingPlan("mine", "", notebook, tuple(
        planned(*one) for one in enumerate(notebook.cells)), bound_by_answers(notebook)))


@pytest.mark.parametrize(("setup", "test"), [
    ("data = load()", "assert f == sum(data)"),
    ("data = [1]\nif data: data, more = load()", "assert more"),
    ("data = load()\ndef total(): return sum(data)", "assert f == total()"),
    ("data = [open('x').read()]", "assert f in data"),
    ("import numpy as np\ndata = np.loadtxt('x')", "assert f in data"),
])
def test_a_test_that_rests_on_a_value_from_the_sandbox_is_named(setup, test):
    (line,) = told(setup, test)
    assert line.startswith("mine: the test a-test uses ") and "check-setup" in line


@pytest.mark.parametrize(("setup", "test", "answer"), [
    ("data = [1, 2]", "assert f == sum(data)", "f = 3"),  # made on the trusted side
    ("data = load()", "assert f == 1", "f = 1"),  # not used
    ("data = load()", "data = [3]\nassert f == sum(data)", "f = 3"),  # made in the test
    ("data = load()", "assert data == 1", "data = 1"),  # what the answer is
    ("%%bash\nls", "assert f == 1", "f = 1"),
])
def test_of_others_nothing_is_said(setup, test, answer):
    assert told(setup, test, answer) == []


def test_a_tagged_lab_has_none():
    assert told("data = load()", "assert f == data", tags=("setup",)) == []


def test_a_test_that_runs_a_text_is_named():
    (line,) = told("", "assert eval(f) == 4", "f = '2 + 2'")
    assert line.startswith("mine: the test a-test uses eval: ") and "outside the sandbox" in line


HIDDEN = "### BEGIN HIDDEN TESTS\n{}\n### END HIDDEN TESTS"


@pytest.mark.parametrize("call", [
    "np.testing.assert_allclose(f, [1.5])", "assert np.allclose(f, 2)", "assert allclose(f, 1)",
    "testing.assert_equal(f, 1)", "torch.testing.assert_close(f, 1)"])
def test_a_hidden_comparison_without_words_for_students_is_named(call):
    setup = "import numpy as np, torch\nfrom numpy import allclose, testing"
    (line,) = told(setup, HIDDEN.format(call), tags=("check-setup",))
    assert line.startswith("mine: the hidden test a-test calls ") and "check.value" in line
    assert told(setup, f"{call}\n{HIDDEN.format('assert f')}", tags=("check-setup",)) == []


def test_a_hidden_check_of_labs_is_not():
    assert told("from labkit import check", HIDDEN.format("check.value(f, 1)")) == []
