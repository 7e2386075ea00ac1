"""Every lab, graded as an instructor grades it: the reference has all the points; the untouched
release, wrong answers, and borrowed ones have none."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from grader.course import OUR_SOURCES, Course
from grader.gradebook import records
from labcore.workspace import CHECKOUT
from labkit.build import Lab
from tests.grader.conftest import run
from tests.grader.small_lab import find, put
from tests.labs.borrowed import BORROWED
from tests.labs.test_labs import lab_of

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


class Graded:
    """A course in which the labs' reference, untouched release and rounds of wrong answers were
    graded in one batch."""

    def __init__(self, folder: Path, wrong: Callable[[str], dict[str, dict[str, str]]]) -> None:
        """Grade them.

        Args:
            folder: receives the course.
            wrong: returns a lab's wrong submissions: the answers that are not the release's, by
                student.
        """
        self.course = Course(folder / "course")
        self.course.make()
        self.wrong: dict[str, list[str]] = {}
        for name in LABS:
            submissions = wrong(name)
            self.wrong[name] = list(submissions)
            self.submit(name, submissions)
        done = run(self.course, "grade", "--all", seconds=1200)
        assert done.returncode == 0, done.stderr
        with (self.course.root / "grades.csv").open() as file:
            self.rows = list(csv.DictReader(file))

    def submit(self, name: str, wrong: dict[str, dict[str, str]]) -> None:
        source = nbformat.read(OUR_SOURCES / name / f"{name}.ipynb", as_version=4)
        release = nbformat.read(CHECKOUT / "notebooks" / f"{name}.ipynb", as_version=4)
        handed_in = {"reference": source, **{student: with_answers(release, answers)
                                             for student, answers in wrong.items()}}
        for student, notebook in handed_in.items():
            put(notebook, self.course.notebook("submitted", name, student))

    def right(self, name: str) -> None:
        """The reference has all points of the lab, the others have none."""
        lab = lab_of(CHECKOUT / "solutions" / f"{name}.py")
        points = sum(check.points for check in lab.checks.values())
        nobody = self.wrong[name]
        got = {row["student"]: (row["state"], row["reason"], row["score"]) for row in self.rows
               if row["lab"] == name and row["student"] in ("reference", *nobody)}
        nothing = dict.fromkeys(nobody, ("graded", "", "0.0"))
        assert points and got == {"reference": ("graded", "", str(float(points))), **nothing}
        with records.gradebook(self.course) as book:
            for student in nothing:
                grades = book.find_submission(name, student).notebooks[0].grades
                assert {grade.name: grade.auto_score for grade in grades} == dict.fromkeys(
                    lab.checks, 0.0)


def all_wrong(name: str) -> dict[str, dict[str, str]]:
    """All rounds of wrong answers, the borrowed ones, and the untouched release."""
    found = rounds(lab_of(CHECKOUT / "solutions" / f"{name}.py")) | {"untouched": {}}
    return found | ({"borrowed": BORROWED[name]} if name in BORROWED else {})


def some_wrong(name: str) -> dict[str, dict[str, str]]:
    """Return a lab's wrong submissions: for the first lab, the first mutants and the untouched
    release; for the others, the first mutants with the borrowed answers, if there are any.

    tests/labs runs every lab's mutants.
    """
    every = all_wrong(name)
    if name == LABS[0]:
        return {"wrong": every["mutants-0"], "untouched": {}}
    return {"wrong": every["mutants-0"] | every["borrowed"]} if "borrowed" in every else {}


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Graded:
    """`make stress` has the other wrong answers."""
    return Graded(tmp_path_factory.mktemp("labs"), some_wrong)


@pytest.fixture(scope="module")
def all_graded(tmp_path_factory) -> Graded:
    return Graded(tmp_path_factory.mktemp("labs"), all_wrong)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", LABS)
def test_the_reference_has_all_points_and_no_wrong_answer_has_any(name: str, graded: Graded):
    graded.right(name)
    page = (graded.course.root / "feedback" / "reference" / name / f"{name}.html").read_text()
    release = (CHECKOUT / "notebooks" / f"{name}.ipynb").read_text()
    assert "../images/" not in page
    assert ("../images/" in release) == ('src="data:image/' in page)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LABS)
def test_no_round_of_wrong_answers_has_any_points(name: str, all_graded: Graded):
    assert len(all_graded.wrong[name]) >= 2
    all_graded.right(name)
