"""A batch that is killed, wherever it is, goes on where it was: nothing lost, nothing twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from nbgrader.api import MissingEntry

from grader.course import Course
from grader.gradebook import records
from tests.grader import small_lab
from tests.grader.conftest import run, submit, table
from tests.grader.small_lab import RIGHT, WRONG, answered

NAME = small_lab.NAME
TIMES = "graded_at"  # the one column that may differ


def small_class(course: Course, released: nbformat.NotebookNode) -> dict[str, str]:
    """Submitted; the scores that are right."""
    submit(course, "ada", answered(released))
    submit(course, "bob", answered(released, WRONG))
    submit(course, "cyd", answered(released, RIGHT + "\nimport os; os._exit(3)"))
    submit(course, "dan", answered(released))
    course.notebook("submitted", NAME, "dan").write_text("{")
    return {"ada": "5.0", "bob": "2.0", "cyd": "", "dan": ""}


def rows(course: Course) -> dict[str, dict[str, str]]:
    return {student: {**row, TIMES: ""} for student, row in
            table(course.root / "grades.csv").items()}


def kill_at(course: Course, seconds: float, mark: Path | None = None) -> bool:
    """Start `lab grade`, SIGKILL it after `seconds` (from when `mark` appears, if given); whether
    it was still running."""
    running = subprocess.Popen(
        [Path(sys.executable).with_name("lab"), "grade", NAME], cwd=course.root,
        env={**os.environ, "LAB_COURSE": str(course.root)}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while mark and not mark.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    try:
        running.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        running.send_signal(signal.SIGKILL)
        running.wait()
        return True


def one_row_each(course: Course, scores: dict[str, str]) -> None:
    """In the gradebook too."""
    with records.gradebook(course) as book:
        for student, score in scores.items():
            if score:
                assert str(book.find_submission(NAME, student).score) == score
            elif student == "dan":
                with pytest.raises(MissingEntry):
                    book.find_submission(NAME, student)
        assert len(book.find_assignment(NAME).submissions) == 3  # dan has none


@pytest.mark.slow
@pytest.mark.parametrize("points", [1, pytest.param(3, marks=pytest.mark.stress)])
def test_a_batch_that_was_killed_ends_with_the_same_rows(course, released, template, points):
    """Right after a result; between result and record, and while workers grade, too."""
    scores = small_class(course, released)
    first = course.root / "results" / "ada" / f"{NAME}.json"
    record = course.root / "attempts" / "ada" / f"{NAME}.json"
    assert kill_at(course, 0.0, first)
    if points > 1:
        assert kill_at(course, random.random() * 0.05, record)
        kill_at(course, 2.0 + random.random())
    done = run(course, "grade", NAME)
    assert done.returncode == 0, done.stderr
    after = rows(course)
    assert {student: row["score"] for student, row in after.items()} == scores
    one_row_each(course, scores)
    whole = Course(course.root.with_name("undisturbed"))
    subprocess.run(["cp", "-a", template.root, whole.root], check=True)
    subprocess.run(["rm", "-r", whole.root / "submitted"], check=True)
    subprocess.run(["cp", "-a", course.root / "submitted", whole.root], check=True)
    assert run(whole, "grade", NAME).returncode == 0
    assert rows(whole) == after
    pages = [path.parent.parent.name for path in (course.root / "feedback").rglob("*.html")]
    assert sorted(pages) == ["ada", "bob", "cyd"]
    assert not list((course.root / "results").rglob(".*"))
    again = run(course, "grade", NAME)
    assert "2 of them were graded already" in again.stdout, again.stdout
