"""Students read labkit.check's message about a failed hidden test, and nothing else."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from grader.feedback.page import HideTests
from grader.run.lab_plan import planned
from grader.run.timing import Budget
from grader.run.trusted import TrustedNamespace, text_for_students, text_of
from labkit.check.checks import HIDDEN_FAILED
from tests.grader.run.test_trusted import remote, student
from tests.grader.small_lab import marks

SECRET = "41.5"
HEAD = "from labkit import check\nimport numpy as np\n"


def hidden(test: str) -> str:
    return f"### BEGIN HIDDEN TESTS\n{test}\n### END HIDDEN TESTS"


def checked(source: str):
    """A check of `one`, which is 1; its cell as it is graded, with the outputs."""
    cell = new_code_cell(HEAD + source, metadata=marks("a-test", grade=True, points=1))
    namespace = TrustedNamespace(remote(student()), frozenset({"one"}))
    verdict = namespace.check(planned(0, cell), Budget(30))
    assert verdict.failed is not None
    cell.outputs, cell.execution_count = verdict.outputs, 7
    return cell


def page(cell) -> str:
    """Return the part of its outputs that the feedback shows."""
    notebook, _ = HideTests()(new_notebook(cells=[cell]), {})
    return "\n".join(line for output in notebook.cells[0].outputs for line in output.traceback)


@pytest.mark.parametrize("test", [
    f"np.testing.assert_allclose([one], [{SECRET}])", f"assert one == {SECRET}, 'not {SECRET}'",
    f"def compare(x): np.testing.assert_equal(x, {SECRET})\ncompare(one)",
    f"raise KeyError({SECRET})", f"try:\n    1 / 0\nfinally:\n    raise ValueError('{SECRET}')"])
def test_a_hidden_tests_own_message_is_not_on_the_page(test):
    cell = checked(f"assert one == 1\n{hidden(test)}")
    assert SECRET in "\n".join(cell.outputs[-1].traceback)  # the instructor reads it in formgrader
    shown = page(cell)
    assert SECRET not in shown and HIDDEN_FAILED in shown


def test_hidden_lines_that_call_a_helper_in_view_are_hidden():
    helper = "def same(x, y): np.testing.assert_allclose(x, y)\n"
    assert SECRET not in page(checked(f"{helper}{hidden(f'same(one, {SECRET})')}"))


def test_what_lab_check_says_of_a_hidden_test_stays():
    shown = page(checked(hidden("check.that(one == 2, 'Count the other one, too.')")))
    assert "in a hidden test: Count the other one, too." in shown
    in_view = page(checked(f"check.that(one == 2, 'Count it.')\n{hidden('assert one')}"))
    assert "Count it." in in_view and "hidden" not in in_view


def test_a_test_in_view_says_what_it_says():
    shown = page(checked(f"np.testing.assert_allclose([one], [2.5])\n{hidden('assert one')}"))
    assert "2.5" in shown and HIDDEN_FAILED not in shown


@pytest.mark.parametrize("line, is_shown", [(3, True), (5, False)])
def test_a_kernels_traceback_is_read_by_its_lines(line, is_shown):
    """Make it as `nbgrader autograde` does, colors included."""
    cell = new_code_cell(f"{HEAD}assert one == 2.5\n{hidden('assert one')}", execution_count=7,
                         metadata=marks("a-test", grade=True, points=1))
    frames = [f"\x1b[36mCell\x1b[39m\x1b[36m \x1b[39mIn[7], line {line}\x1b[0m",
              "Cell In[3], line 5, in f(x)"]
    cell.outputs = [new_output("error", ename="AssertionError", evalue="not 2.5",
                               traceback=["Traceback", *frames, "AssertionError: not 2.5"])]
    assert ("not 2.5" in page(cell)) == is_shown


def test_an_error_from_an_unknown_place_is_taken_for_hidden():
    cell = checked(f"assert one\n{hidden(f'assert one == 2, {SECRET}')}")
    cell.outputs[-1].traceback = [f"AssertionError: {SECRET}"]
    assert SECRET not in page(cell)


def test_a_hidden_part_of_a_check_keeps_its_message():
    source = HEAD + "with check.parts():\n    with check.part(1, 'a'):\n        assert one\n" + (
        f"        ### BEGIN HIDDEN TESTS\n        np.testing.assert_equal(one, {SECRET})\n"
        "        ### END HIDDEN TESTS")
    cell = planned(0, new_code_cell(source, metadata=marks("a-test", grade=True, points=1)))
    part = cell.parts[0].cell
    verdict = TrustedNamespace(remote(student()), frozenset({"one"})).check(part, Budget(30))
    assert SECRET in text_of(verdict.failed)
    assert text_for_students(verdict.failed, part) == HIDDEN_FAILED
