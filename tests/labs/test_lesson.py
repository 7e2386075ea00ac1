"""A released notebook shows the lesson: each check is one line, without hints and expected values.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import itertools
import json

import pytest

from labcore import shipping
from labkit.build import calls
from labkit.build.lab import Role
from labkit.build.stubs import unanswered
from labkit.build.visible import EXPECTED, without_hidden
from labkit.cells import read_release, role_of
from labkit.check import Failed, running
from labkit.check.kernel import KernelSide
from labkit.check.sides import checking_on
from labkit.lab_checks import name_of, path_of
from labkit.lab_checks import read as read_checks
from labkit.names import analyse
from tests.labs import graded
from tests.labs.test_labs import ROOT, SOLUTIONS, lab_of, sample_labs

pytestmark = pytest.mark.slow
NOTEBOOK_ONLY = {"get_ipython", "display"}
SHORTEST = 20  # characters of an expected value that occurs nowhere by accident


@pytest.fixture(params=SOLUTIONS, ids=lambda path: path.stem, scope="module")
def lab(request):
    return lab_of(request.param)


@pytest.fixture
def notebook(lab):
    return json.loads((ROOT / "notebooks" / f"{lab.name}.ipynb").read_text())


def code_of(notebook):
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def secrets(lab):
    """Yield every hint and every expected value of a lab's checks, as they are in the source."""
    for check in lab.of(Role.CHECK):
        for hint in calls.hints(check.tree):
            yield from hint.pieces if isinstance(hint, calls.Hint) else ()
        visible = ast.parse(without_hidden(check.source, blank=True))
        for call in calls.check_calls(visible):
            for name in (*EXPECTED, "hints"):
                if name in call.arguments:
                    yield ast.unparse(calls.resolved(call.arguments[name], visible))


def told(lab, texts):
    """Return the secrets that occur in these texts, however their lines are broken."""
    text = "".join("".join(texts).split())
    return [one for one in secrets(lab)
            if len(one) >= SHORTEST and "".join(one.split()) in text]


def test_it_has_neither_hints_nor_expected_values(lab, notebook):
    assert len(list(secrets(lab))) >= len(lab.checks)
    assert told(lab, code_of(notebook)) == []
    for word in ("hints=", "expected=", "check.function(", "check.that(", "check.ranks("):
        assert not [source for source in code_of(notebook) if word in source]


def test_each_check_is_one_line(lab, notebook):
    lines = {cell["id"]: "".join(cell["source"]) for cell in notebook["cells"]
             if cell["metadata"].get("nbgrader", {}).get("grade") and cell["cell_type"] == "code"}
    assert lines == {name: f'check("{name_of(name)}")' for name in lab.checks}


def test_no_helper_is_between_an_answer_and_its_check(lab, notebook):
    roles = [role_of(cell["metadata"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for helper in (Role.DRIVER, Role.CHECK_SETUP):
        after = [one for role, one in itertools.pairwise(roles) if role is helper]
        assert Role.CHECK not in after


def test_what_is_left_has_all_names_that_it_uses(lab):
    known = set(dir(builtins)) | NOTEBOOK_ONLY
    for cell in read_release(ROOT / "notebooks" / f"{lab.name}.ipynb").cells:
        if cell.text is not None and cell.role is not Role.CHECK:
            shown = type(cell.code)(cell.text)
            assert {use.name for use in shown.names.uses} <= known, cell.text
            known |= shown.stub_names


def test_the_file_beside_it_has_the_authors_cells(lab):
    served = [cell for cell in lab.of(Role.CHECK_SETUP, Role.DRIVER, Role.CHECK)]
    checks = read_checks(path_of(ROOT / "notebooks" / f"{lab.name}.ipynb"))
    assert [cell.source for cell in checks.cells] == [
        without_hidden(cell.source).strip("\n") for cell in served]
    released = read_release(ROOT / "notebooks" / f"{lab.name}.ipynb")
    in_lab = [cell.role for cell in lab.cells if cell.kind == "code"]
    assert [cell.role for cell in released.cells] == in_lab


def test_show_prints_drivers_and_cases_and_no_answer(lab, monkeypatch):
    monkeypatch.setattr(running, "_loaded", None)
    running.lab(lab.name)
    for check in lab.of(Role.CHECK):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            running.show(name_of(check.grade_id))
        text = shown.getvalue()
        assert told(lab, [text]) == []
        assert f'check("{name_of(check.grade_id)}") tries' in text
        for driver in lab.of(Role.DRIVER):
            used = driver.defines & {use.name for use in analyse(check.tree).uses}
            assert (driver.source in text) == bool(used)


def failures(lab, home, answer=graded.as_written):
    """Run the answers and then each line of the notebook; return the messages of failed checks."""
    student, failed = {"__name__": "__main__"}, {}
    loaded = running.LoadedLab(read_checks(path_of(ROOT / "notebooks" / f"{lab.name}.ipynb")))
    with graded.inside(home), checking_on(KernelSide()):
        for cell in lab.of(Role.SETUP, Role.ANSWER):
            with contextlib.suppress(NotImplementedError):
                graded.run_cell(cell, answer(cell), student, home)
        for name in lab.checks:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    loaded.run(name_of(name), student)
            except Failed as error:
                failed[name] = str(error)
    return failed


@sample_labs
def test_the_reference_passes_and_the_untouched_notebook_fails_every_line(path, tmp_path):
    lab = lab_of(path)
    shipping.make_workspace(tmp_path, lambda text: None)
    assert failures(lab, tmp_path) == {}
    untouched = failures(lab, tmp_path, lambda cell: unanswered(cell.source))
    assert untouched.keys() == lab.checks.keys()
    for said in untouched.values():
        assert "Your turn" in said or "waits for your answer" in said or "Run the answer" in said
