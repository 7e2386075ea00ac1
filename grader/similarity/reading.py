"""Read the class, the worked solution, and earlier years.

The limits of grading apply to every submission. One that fails or takes too long is left out with a
reason; it never ends the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbgrader import utils

from grader.collect.sources import FileRefused, opened
from grader.course import Course
from grader.course.reasons import Unusable, explain
from grader.course.submitted import parse, read
from grader.run.rebuild import rebuild
from grader.run.timing import TimeLimitReached, limited
from grader.similarity.answers import Answers
from labcore.errors import LabError

SECONDS = 20.0  # for one submission
MOST_EARLIER = 10_000  # submissions of earlier years
MARKS = re.compile(r"^\s*### (BEGIN|END) SOLUTION.*\n?", re.MULTILINE)


@dataclass
class ReadAnswers:
    """Answers by student, and the reasons why others were left out."""

    students: dict[str, Answers] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


class SubmissionReader:
    """Reads submissions of one lab. Raises LabError without a release, whose text must not
    count."""

    def __init__(self, course: Course, lab: str) -> None:
        self.course, self.lab = course, lab
        path = course.notebook("release", lab)
        if not path.is_file():
            raise LabError(f"{path} does not exist yet: `lab grade {lab}` creates it")
        self.release = nbformat.read(path, as_version=4)
        self.given = sources(self.release)

    def of_class(self) -> ReadAnswers:
        """Return the submissions of this course."""
        place = self.course.notebook
        return self._each((student, lambda student=student: read(
            place("submitted", self.lab, student))) for student in self.course.students(self.lab))

    def earlier(self, path: Path) -> ReadAnswers:
        """Return the submissions in a folder like submitted/, or in an archive of one."""
        with opened(path) as source:
            files = {}
            for file in source.files():
                student = student_of(file.path, self.lab)
                if student and not file.problem:
                    files.setdefault(student, file)
            if not files:
                raise LabError(f"--with {path}: no STUDENT/{self.lab}/{self.lab}.ipynb in it")
            if len(files) > MOST_EARLIER:
                raise LabError(f"--with {path}: {len(files)} submissions; at most {MOST_EARLIER} "
                               "are compared")
            return self._each((student, lambda file=file: source.read(file))
                              for student, file in files.items())

    def worked(self) -> Answers:
        """Return the worked solution, as it is published."""
        path = self.course.notebook("source", self.lab)
        if not path.is_file():
            path = self.course.sources / self.lab / f"{self.lab}.ipynb"
        solved = {name: MARKS.sub("", text)
                  for name, text in sources(nbformat.read(path, as_version=4)).items()}
        return Answers.of(solved, self.given)

    def _each(self, submissions: Iterable[tuple[str, Callable[[], bytes]]]) -> ReadAnswers:
        result = ReadAnswers()
        for student, content in submissions:
            try:
                with limited(SECONDS) as rang:
                    result.students[student] = self._answers(content())
                if rang:
                    raise TimeLimitReached
            except TimeLimitReached:
                result.students.pop(student, None)
                result.left_out[student] = f"it takes more than {SECONDS:.0f} s to read"
            except (Unusable, FileRefused) as error:
                result.left_out[student] = str(error)
            except Exception as error:  # whatever one notebook does, the others are compared
                result.left_out[student] = explain(error)
        return result

    def _answers(self, content: bytes) -> Answers:
        submitted = parse(content, f"{self.lab}.ipynb")
        return Answers.of(sources(rebuild(self.release, submitted)[0]), self.given)


def sources(notebook: NotebookNode) -> dict[str, str]:
    """Return the sources of the answer cells, by grade_id."""
    return {cell.metadata.nbgrader.grade_id: cell.source for cell in notebook.cells
            if utils.is_solution(cell)}


def student_of(path: str, lab: str) -> str:
    """Return whose notebook a path is: STUDENT/LAB/LAB.ipynb or STUDENT/LAB.ipynb, in any folder.

    Args:
        path: the path.
        lab: the lab's name.

    Empty for every other file.
    """
    *folders, name = path.split("/")
    if name != f"{lab}.ipynb":
        return ""
    if folders and folders[-1] == lab:
        folders.pop()
    return folders[-1] if folders else ""


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "2 pairs".

    Args:
        count: the number.
        noun: the singular.
    """
    return f"{count} {noun}{'s' if count != 1 else ''}"
