"""Three hundred submissions, fifteen of them broken: 300 rows, 285 right scores, 15 honest states.
Killed at ten random points, the grader ends with the same rows."""

from __future__ import annotations

import random
import shutil
import time

import pytest

from grader.course import Course, digest_of_folder
from tests.grader import class_room
from tests.grader.batch.test_resume import TIMES, kill_at
from tests.grader.conftest import new_course, released, run, table, template  # noqa: F401

pytestmark = pytest.mark.stress
GRADED = 285
KILLS = 10


@pytest.fixture(scope="module")
def filled(tmp_path_factory, released):  # noqa: F811
    course = new_course(tmp_path_factory.mktemp("class"))
    scores, reasons = class_room.fill(course, released, GRADED)
    return course, scores, reasons


def copied(course: Course, name: str) -> Course:
    shutil.copytree(course.root, course.root.with_name(name), symlinks=True)
    return Course(course.root.with_name(name))


def require_right(rows: dict, scores: dict[str, float], reasons: dict[str, str]) -> None:
    assert set(rows) == {*scores, *reasons} and len(rows) == 300
    wrong = {student: (row["state"], row["score"], row["reason"])
             for student, row in rows.items() if student in scores
             and (row["state"], row["score"]) != ("graded", str(scores[student]))}
    assert not wrong
    for student, reason in reasons.items():
        row = rows[student]
        assert (row["state"], row["score"]) == ("ungraded", "") and reason in row["reason"], row


@pytest.mark.timeout(7200)
def test_a_class_of_300(filled):
    course, scores, reasons = filled
    course = copied(course, "whole")
    before, start = digest_of_folder(course.root / "submitted"), time.monotonic()
    done = run(course, "grade", "--all", seconds=7000)
    assert done.returncode == 0, done.stderr
    print(f"300 submissions in {time.monotonic() - start:.0f} s")
    require_right(table(course.root / "grades.csv"), scores, reasons)
    assert digest_of_folder(course.root / "submitted") == before
    pages = list((course.root / "feedback").rglob("*.html"))
    assert len(pages) >= GRADED


@pytest.mark.timeout(7200)
def test_killed_at_ten_points_the_rows_are_the_same(filled):
    whole = filled[0].root.with_name("whole")
    course, scores, reasons = copied(filled[0], "killed"), *filled[1:]
    chance = random.Random(7)
    kills = sum(kill_at(course, 10 + chance.random() * 20) for _ in range(KILLS))
    done = run(course, "grade", "--all", seconds=7000)
    assert done.returncode == 0, done.stderr
    rows = table(course.root / "grades.csv")
    require_right(rows, scores, reasons)
    if whole.exists():  # the test above ran
        undisturbed = table(whole / "grades.csv")
        for found in (rows, undisturbed):
            for row in found.values():
                row.pop(TIMES), row.pop("received")  # when it was copied
        assert rows == undisturbed
    print(f"killed {kills} times")
    assert kills
