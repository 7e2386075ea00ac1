"""Every lab twenty times, each time with other hidden cases: the reference has all points, the
untouched release none."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from grader.course import OUR_SOURCES, Course
from labcore.workspace import CHECKOUT
from labkit.build import read
from tests.grader.conftest import run, table
from tests.grader.small_lab import put
from tests.grader.test_labs import LABS

pytestmark = pytest.mark.stress
REPEATS = 20  # students: the hidden cases are drawn from a seed of lab, student and notebook


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LABS)
def test_twenty_references_and_twenty_untouched(name: str, tmp_path: Path):
    course = Course(tmp_path / "course")
    course.make()
    kinds = {"reference": OUR_SOURCES / name / f"{name}.ipynb",
             "untouched": CHECKOUT / "notebooks" / f"{name}.ipynb"}
    for kind, path in kinds.items():
        notebook = nbformat.read(path, as_version=4)
        for number in range(REPEATS):
            put(notebook, course.notebook("submitted", name, f"{kind}-{number}"))
    done = run(course, "grade", name, seconds=3500)
    assert done.returncode == 0, done.stderr
    checks = read(CHECKOUT / "solutions" / f"{name}.py").checks.values()
    scores = {"reference": str(float(sum(one.points for one in checks))), "untouched": "0.0"}
    rows = table(course.root / "grades.csv")
    assert {student: (row["state"], row["score"]) for student, row in rows.items()} == {
        f"{kind}-{number}": ("graded", scores[kind]) for kind in kinds for number in range(REPEATS)}
