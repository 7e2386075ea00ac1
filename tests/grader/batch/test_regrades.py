"""A regrade of a lab that was killed continues, and never keeps what another program graded."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from grader.batch import batch, grading, regrades
from grader.course import Submission
from grader.gradebook import records
from grader.run import results
from grader.run.settings import Grading
from tests.grader import small_lab
from tests.grader.batch.test_merge import Desk
from tests.grader.small_lab import WRONG

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
CLASS = ["ada", "grace", "jane"]


class Killed(BaseException):
    pass


class NoPool:
    """Workers that do nothing, because other tests grade."""

    def __enter__(self) -> NoPool:
        return self

    def __exit__(self, *error) -> None:
        pass

    def add(self, *task, **more) -> None:
        pass

    def stop(self) -> None:
        pass


@pytest.fixture
def desk(course, released) -> Desk:
    desk = Desk(course, released)
    for student in CLASS:
        desk.merge(desk.result(student))
    return desk


@pytest.fixture
def regrade(desk, monkeypatch):
    """`lab regrade LAB` without sandbox or workers, killed once it has graded some submissions."""
    from grader.sandbox import choice, selftest

    monkeypatch.setattr(grading, "start_workers", lambda *_: NoPool())
    monkeypatch.setattr(choice, "choose", lambda _: SimpleNamespace(name="none"))
    monkeypatch.setattr(selftest, "self_test", lambda *_: None)

    def regrade(killed_after: int | None = None, entered: bool = True, **options) -> list[str]:
        graded = []

        def grade(run: batch.GradingRun, work) -> None:
            for _, student in work:
                if killed_after is not None and len(graded) == killed_after:
                    raise Killed
                graded.append(student)
                result = results.write(desk.course, run.settings.digest(),
                                       desk.result(student).attempt)
                if entered:
                    run.enter(result)

        monkeypatch.setattr(batch.GradingRun, "grade", grade)
        with contextlib.suppress(Killed):
            grading.grade_all(desk.course, [(NAME, one) for one in CLASS], lambda _: None,
                              even_current=True, whole_lab=NAME, **options)
        return graded

    return regrade


@pytest.mark.parametrize("entered", [True, False])
def test_what_was_graded_before_the_kill_is_not_graded_again(desk, regrade, capsys, entered):
    """Whether or not its result was entered."""
    before = {one: regrades.result_id(Submission(desk.course, NAME, one)) for one in CLASS}
    assert regrade(killed_after=1, entered=entered) == ["ada"]
    assert regrade(killed_after=1) == ["grace"]
    assert "continues the regrade that began at" in capsys.readouterr().err
    assert regrade() == ["jane"]
    for one in CLASS:
        submission = Submission(desk.course, NAME, one)
        assert regrades.result_id(submission) == submission.record.attempt != before[one]
    assert not regrades.file_of(desk.course, NAME).exists()
    assert regrade() == CLASS  # the next one grades everybody


def test_it_begins_again_on_request_and_with_another_lab_or_program(desk, regrade, monkeypatch):
    assert regrade(killed_after=2) == ["ada", "grace"]
    assert regrade(killed_after=2, from_start=True) == ["ada", "grace"]
    with desk.course.config_file.open("a") as file:
        file.write("c.Grading.seconds_per_cell = 7\n")
    assert regrade(killed_after=1) == ["ada"]
    monkeypatch.setattr(regrades, "_programs", lambda: "after an update")
    assert regrade(killed_after=1) == ["ada"]
    regrades.file_of(desk.course, NAME).write_text("{")
    assert regrade() == CLASS


def test_a_version_that_came_since_is_graded(desk):
    limits = Grading().digest()
    begun, again = regrades.begin(desk.course, NAME, CLASS, limits, False)
    assert not again
    desk.merge(desk.result("ada"))
    desk.result("mary", WRONG)  # new in the class, and not entered
    with records.gradebook(desk.course) as book:
        run = batch.GradingRun(desk.course, Grading(), desk.config, book, NoPool(), lambda _: None)
        rest = run.triage([(NAME, one) for one in [*CLASS, "mary"]], True, begun)
    assert [student for _, student in rest] == ["grace", "jane", "mary"]
    assert regrades.begin(desk.course, NAME, CLASS, limits, False) == (begun, True)
