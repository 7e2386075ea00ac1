"""Labs, graded as an instructor grades them: the reference has all the points; the untouched
release, wrong answers, and borrowed ones have none.

`make test` grades the labs of GRADED, which have every kind of check between them; tests/labs runs
the checks of all labs, without a sandbox. `make stress` grades every lab, with all wrong answers.
"""

from __future__ import annotations

import copy
import csv
import re
from collections.abc import Callable, Sequence
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
GRADED = ("00_welcome", "11_pipeline_2", "13_eight_bits", "14_heterogeneous_clusters")
PARTS = {"parts", "part"}  # tests/grader/run/test_parts.py grades those
KIND = re.compile(r"check\.(\w+)\(")  # a call of a check


def test_there_are_labs():
    assert {path.stem for path in (CHECKOUT / "solutions").glob("*.py")} == set(LABS)


def test_what_is_graded_here_has_every_kind_of_check():
    kinds = {name: {*KIND.findall((CHECKOUT / "solutions" / f"{name}.py").read_text())}
             for name in LABS}
    graded = set().union(*(kinds[name] for name in GRADED))
    assert graded | PARTS == set().union(*kinds.values())


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

    def __init__(self, folder: Path, labs: Sequence[str],
                 wrong: Callable[[str], dict[str, dict[str, str]]]) -> None:
        """Grade them.

        Args:
            folder: receives the course.
            labs: the labs.
            wrong: returns a lab's wrong submissions: the answers that are not the release's, by
                student.
        """
        self.course = Course(folder / "course")
        self.course.make()
        self.wrong: dict[str, list[str]] = {}
        for name in labs:
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
        """The reference has all points of the lab, the others have none, but of a check in parts
        they may have some. The reference's page holds its figures."""
        lab = lab_of(CHECKOUT / "solutions" / f"{name}.py")
        points = sum(check.points for check in lab.checks.values())
        got = {row["student"]: (row["state"], row["reason"], float(row["score"] or "nan"))
               for row in self.rows if row["lab"] == name}
        assert points and got["reference"] == ("graded", "", points)
        in_parts = {one.grade_id: one.points for one in lab.checks.values()
                    if "check.parts()" in one.source}
        with records.gradebook(self.course) as book:
            for student in self.wrong[name]:
                grades = {grade.name: grade.auto_score for grade in
                          book.find_submission(name, student).notebooks[0].grades}
                assert got[student] == ("graded", "", sum(grades.values()))
                assert grades.keys() == lab.checks.keys()
                for check, score in grades.items():
                    assert score == 0.0 or score < in_parts.get(check, 0.0), check
        page = (self.course.root / "feedback" / "reference" / name / f"{name}.html").read_text()
        release = (CHECKOUT / "notebooks" / f"{name}.ipynb").read_text()
        assert "../images/" not in page
        assert ("../images/" in release) == ('src="data:image/' in page)


def all_wrong(name: str) -> dict[str, dict[str, str]]:
    """All rounds of wrong answers, the borrowed ones, and the untouched release."""
    result = rounds(lab_of(CHECKOUT / "solutions" / f"{name}.py")) | {"untouched": {}}
    return result | ({"borrowed": BORROWED[name]} if name in BORROWED else {})


def some_wrong(name: str) -> dict[str, dict[str, str]]:
    """Return a lab's wrong submissions: the first mutants, with the borrowed answers in their
    places, if there are any; for the first lab, the untouched release, too."""
    every = all_wrong(name)
    wrong = {"wrong": every["mutants-0"] | every.get("borrowed", {})}
    return wrong | {"untouched": {}} if name == LABS[0] else wrong


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Graded:
    return Graded(tmp_path_factory.mktemp("labs"), GRADED, some_wrong)


@pytest.fixture(scope="module")
def all_graded(tmp_path_factory) -> Graded:
    return Graded(tmp_path_factory.mktemp("labs"), LABS, all_wrong)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", GRADED)
def test_the_reference_has_all_points_and_no_wrong_answer_has_any(name: str, graded: Graded):
    graded.right(name)


@pytest.mark.stress
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LABS)
def test_no_round_of_wrong_answers_has_any_points(name: str, all_graded: Graded):
    assert len(all_graded.wrong[name]) >= 2
    all_graded.right(name)
