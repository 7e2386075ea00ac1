"""Answers that borrow their solution pass without the labs' masks, and fail with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labcore import shipping, workspace
from labkit.build import Lab, Role
from labkit.build.masks import calls, masked
from labkit.masks import PIPELINE_LIBRARIES
from tests.labs import graded
from tests.labs.borrowed import BORROWED
from tests.labs.test_labs import lab_of


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    made = tmp_path_factory.mktemp("workspace")
    shipping.make_workspace(made)
    return made


def unmasked(lab: Lab) -> Lab:
    """The lab without its call of check.mask."""
    cells = []
    for cell in lab.cells:
        source = cell.source
        if cell.role is Role.CHECK_SETUP:
            lines = source.split("\n")
            for call in calls(cell.tree):
                lines[call.lineno - 1:call.end_lineno] = ["pass"]
            source = "\n".join(lines)
        cells.append(replace(cell, source=source))
    return replace(lab, cells=tuple(cells))


@pytest.mark.parametrize("name", ["10_pipeline_1", "11_pipeline_2", "14_heterogeneous_clusters"])
def test_labs_about_pipelines_mask_every_library_of_schedules(name):
    lab = lab_of(workspace.CHECKOUT / "solutions" / f"{name}.py")
    names = {name for cell in lab.of(Role.CHECK_SETUP) for name in masked(cell.tree)}
    assert names >= set(PIPELINE_LIBRARIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", BORROWED)
def test_borrowed_answers_fail_for_the_masks_alone(name, home):
    lab, borrowed = lab_of(workspace.CHECKOUT / "solutions" / f"{name}.py"), BORROWED[name]
    checks = {check.grade_id: answer for answer in borrowed for check in lab.tested_by[answer]}

    def answer(cell):
        return borrowed.get(cell.grade_id, cell.source)

    free = graded.run(unmasked(lab), home, answer, set(checks))
    assert {name: graded.text(error) for name, error in free.checks.items() if error} == {}
    held = graded.run(lab, home, answer, set(checks))
    assert held.failed() == set(checks)
    assert [name for name, error in held.checks.items()
            if "is not available to your answers" not in graded.text(error)] == []
