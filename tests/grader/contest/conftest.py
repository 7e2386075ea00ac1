"""A course folder without a gradebook, and files that students submitted to a contest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from grader.contest import standings, submissions
from grader.course import Course
from labkit.contest import catalog, play
from labkit.contest.declaration import Case, Contest
from labkit.contest.play import CaseResult


@pytest.fixture(scope="session")
def contest() -> Contest:
    return catalog.find("pipelines")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    made = Course(tmp_path / "course")
    made.make()
    made.secret_file.write_text("0" * 64)  # so that all tests have the same cases
    return made


@pytest.fixture(autouse=True, scope="session")
def ghosts_once():
    """Play the ghosts once for all tests: it takes half a second."""
    kept: dict[str, dict] = {}

    def once(contest: Contest, cases: Sequence[Case]) -> dict[str, list[CaseResult]]:
        key = f"{contest.name} {cases}"
        if key not in kept:
            kept[key] = play.ghosts(contest, cases)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(standings, "ghosts", once)
        yield


@pytest.fixture
def submit(course: Course, contest: Contest) -> Callable[[str, str | bytes], Path]:
    """Put a student's file where the instructor puts it."""
    def submit(student: str, content: str | bytes) -> Path:
        path = submissions.folder(course, contest) / student / contest.file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return submit
