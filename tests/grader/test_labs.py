"""Every lab, graded as an instructor grades it: the reference has all the points, the untouched
release none, and no round of wrong answers any."""

from __future__ import annotations

import copy
from pathlib import Path

import nbformat
import pytest

from grader import records
from grader.course import OUR_SOURCES, Course
from lab.build import Lab, read
from lab.workspace import CHECKOUT
from tests.grader.conftest import run, table
from tests.grader.small_lab import find, put

LABS = sorted(path.name for path in OUR_SOURCES.iterdir() if (path / f"{path.name}.ipynb").exists())


def test_there_are_labs():
    assert {path.stem for path in (CHECKOUT / "solutions").glob("*.py")} == set(LABS)


def with_answers(release: nbformat.NotebookNode, answers: dict[str, str]) -> nbformat.NotebookNode:
    notebook = copy.deepcopy(release)
    for name, source in answers.items():
        find(notebook, name).source = source
    return notebook


def rounds(lab: Lab) -> dict[str, dict[str, str]]:
    """By student: in the n-th round every tested answer is its n-th mutant, or its last."""
    tested = {name: lab.mutants[name] for name, checks in lab.tested_by.items() if checks}
    most = max(len(mutants) for mutants in tested.values())
    assert most >= 2
    return {f"mutants-{n}": {name: mutants[min(n, len(mutants) - 1)].source
                             for name, mutants in tested.items()} for n in range(most)}


@pytest.mark.slow
@pytest.mark.parametrize("name", LABS)
def test_the_reference_has_all_points_and_no_wrong_answer_has_any(name: str, tmp_path: Path):
    course = Course(tmp_path / "course")
    course.make()
    release = nbformat.read(CHECKOUT / "notebooks" / f"{name}.ipynb", as_version=4)
    lab = read(CHECKOUT / "solutions" / f"{name}.py")
    wrong = rounds(lab)
    put(nbformat.read(OUR_SOURCES / name / f"{name}.ipynb", as_version=4),
        course.notebook("submitted", name, "reference"))
    put(release, course.notebook("submitted", name, "untouched"))
    for student, answers in wrong.items():
        put(with_answers(release, answers), course.notebook("submitted", name, student))
    done = run(course, "grade", name)
    assert done.returncode == 0, done.stderr
    rows = table(course.root / "grades.csv")
    points = sum(check.points for check in lab.checks.values())
    got = {student: (row["state"], row["reason"], row["score"]) for student, row in rows.items()}
    nothing = dict.fromkeys(["untouched", *wrong], ("graded", "", "0.0"))
    assert points and got == {"reference": ("graded", "", str(float(points))), **nothing}
    page = (course.root / "feedback" / "reference" / name / f"{name}.html").read_text()
    assert "../images/" not in page
    assert ("../images/" in nbformat.writes(release)) == ('src="data:image/' in page)
    with records.gradebook(course) as book:
        for student in nothing:
            grades = book.find_submission(name, student).notebooks[0].grades
            assert {grade.name: grade.auto_score for grade in grades} == dict.fromkeys(
                lab.checks, 0.0)
