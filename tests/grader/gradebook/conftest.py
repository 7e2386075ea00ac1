"""A course with a class, a grade, and a score that a person entered, as after a week of work."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.batch import batch
from grader.course import Course
from grader.course.roster import Person, add
from grader.gradebook import backups, records
from grader.gradebook.guard import LostGradebook
from lab.cli import main
from tests.grader.batch.test_merge import Desk


class Office(Desk):
    """The desk of an instructor, who types commands."""

    def lab(self, *words: str) -> int:
        return main(list(words))

    @property
    def book(self) -> Path:
        return self.course.root / "gradebook.db"

    def copied(self, folder: Path) -> Office:
        """The same in a course folder of its own."""
        shutil.copytree(self.course.root, folder / "course")
        return Office(Course(folder / "course"), self.released, self.plan)

    def roster(self) -> list[str]:
        with records.gradebook(self.course) as book:
            return sorted(student.id for student in book.students)

    def row_or_fault(self) -> object:
        try:
            return self.row()
        except LostGradebook:
            return "lost"

    def enter(self, result, book) -> None:
        """Write it as a batch does."""
        pool = SimpleNamespace(add=lambda *_, **__: None)
        limits = SimpleNamespace(digest=lambda: "limits")
        batch.GradingRun(self.course, limits, self.config, book, pool, lambda _: None).enter(result)

    def back_up(self) -> Path | None:
        return backups.back_up(self.book)


@pytest.fixture(scope="session")
def template_office(template, released, tmp_path_factory) -> Office:
    folder = tmp_path_factory.mktemp("office")
    shutil.copytree(template.root, folder / "course")
    made = Office(Course(folder / "course"), released)
    with records.gradebook(made.course) as book:
        add(book, [Person("ada", "Ada", "Lovelace"), Person("mary", "Mary", "Shelley")])
    made.merge(made.result())
    made.by_hand("batch-check", 1)
    made.back_up()
    return made


@pytest.fixture
def office(template_office, tmp_path, monkeypatch) -> Office:
    office = template_office.copied(tmp_path)
    monkeypatch.setenv("LAB_COURSE", str(office.course.root))
    return office
