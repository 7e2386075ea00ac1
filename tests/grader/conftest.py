"""A course folder with the small lab in it, and a class that submitted it."""

from __future__ import annotations

import csv
import datetime
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from grader.course import Course, Submission
from grader.course.log import logging_to
from grader.gradebook.records import entry_of, gradebook
from grader.nbgrader_plugin import assign
from tests.grader import small_lab
from tests.warm import warm


@pytest.fixture(scope="session")
def template(tmp_path_factory) -> Course:
    """Copied by the others, since nbgrader takes seconds to make a gradebook."""
    return new_course(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
def released(template: Course) -> nbformat.NotebookNode:
    """The notebook for students, as nbgrader generates it."""
    course = template
    return nbformat.read(course.notebook("release", small_lab.NAME), as_version=4)


def new_course(folder: Path, setup: str = small_lab.SETUP) -> Course:
    """With the small lab, released; cells may take 5 s."""
    course = Course(folder / "course")
    course.make()
    with course.config_file.open("a") as file:
        file.write("c.Execute.timeout = c.Grading.seconds_per_cell = 5\n")
    small_lab.put(small_lab.source(setup), course.notebook("source", small_lab.NAME))
    with logging_to(course):
        assign.release(course, small_lab.NAME)
    return course


def submit(course: Course, student: str, notebook: nbformat.NotebookNode) -> Path:
    return small_lab.put(notebook, course.notebook("submitted", small_lab.NAME, student))


def extend(course: Course, lab: str, student: str, by: datetime.timedelta) -> None:
    """Give one student more time, as formgrader does; 0 takes the extension away."""
    with gradebook(course) as book:
        entry_of(Submission(course, lab, student), book, extension=by or None)


def run(course: Course, *words: str, program: str = "lab", seconds: float = 240
        ) -> subprocess.CompletedProcess:
    """Run a command in the course folder, as an instructor without an activated environment."""
    environment = {**os.environ, "LAB_COURSE": str(course.root), "PATH": os.defpath}
    return warm(program, *words, env=environment, cwd=course.root, seconds=seconds)


def table(path: Path) -> dict[str, dict[str, str]]:
    """grades.csv by student."""
    with path.open() as file:
        return {row["student"]: row for row in csv.DictReader(file)}


@pytest.fixture
def course(template: Course, tmp_path: Path) -> Course:
    shutil.copytree(template.root, tmp_path / "course")
    return Course(tmp_path / "course")


@pytest.fixture
def grade(course: Course) -> Callable[..., dict[str, dict[str, str]]]:
    """Grade the small lab with `lab grade`; grades.csv by student."""
    def grade(*students: str) -> dict[str, dict[str, str]]:
        done = run(course, "grade", small_lab.NAME, *students)
        assert done.returncode == 0, done.stderr
        return table(course.root / "grades.csv")

    return grade
