"""A course folder without a gradebook, and a way to grade single submissions in it."""

from __future__ import annotations

from pathlib import Path

import nbformat

from grader.course import Course, Submission
from grader.run import attempt, lab_plan
from grader.run.attempt import Attempt
from grader.run.settings import Grading
from grader.sandbox import choice
from labkit.build.release import release
from tests.grader import small_lab
from tests.grader.small_lab import NAME

BOTH, FIRST = {"batch-check": 3.0, "script-check": 2.0}, {"batch-check": 3.0, "script-check": 0.0}
SECOND = {"batch-check": 0.0, "script-check": 2.0}
SETTINGS = Grading(seconds_per_cell=20, memory_mb=300)
QUICK = Grading(seconds_per_cell=2, memory_mb=300)


class Bench:
    """A course folder without a gradebook, and a way to grade in it."""

    def __init__(self, folder: Path, source: nbformat.NotebookNode) -> None:
        self.course = Course(folder)
        self.course.make()
        small_lab.put(source, self.course.notebook("source", NAME))
        self.released = release(source)
        small_lab.put(self.released, self.course.notebook("release", NAME))
        self.backend = choice.choose()

    @property
    def plan(self) -> lab_plan.GradingPlan:
        return lab_plan.read(self.course, NAME)

    def grade(self, notebook: nbformat.NotebookNode | bytes, student: str = "ada",
              settings: Grading = SETTINGS) -> Attempt:
        path = self.course.notebook("submitted", NAME, student)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(notebook if isinstance(notebook, bytes)
                         else nbformat.writes(notebook).encode())
        made = attempt.grade(Submission(self.course, NAME, student), self.plan, self.backend,
                             settings)
        assert Attempt.loads(made.dumps()) == made
        assert made.digest == self.course.digest(NAME, student)
        return made
