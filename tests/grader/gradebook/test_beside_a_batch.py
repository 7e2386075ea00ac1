"""What an instructor decides while `lab grade` runs: at once, and nothing of it is lost."""

from __future__ import annotations

import fcntl
from types import SimpleNamespace

import pytest

from grader.batch import batch
from grader.collect import store
from grader.course import Submission
from grader.course.folder import COLLECTING
from grader.course.times import parse_time
from grader.gradebook import records
from grader.gradebook.late import set_due
from tests.grader import small_lab
from tests.grader.gradebook.test_by_hand import BROKEN
from tests.grader.small_lab import RIGHT, WRONG

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
EXTEND = ["extend", "ada", NAME, "2026-02-07 12:00 UTC"]
WITHDRAW = ["attempt", "ada", NAME, "withdraw", "1", "--why", "x"]


@pytest.fixture
def due(office):
    set_due(office.course, NAME, parse_time("2026-01-31 12:00 UTC", ""))
    store.register(Submission(office.course, NAME, "ada"))
    return office


def test_no_decision_waits_for_a_batch(due, capsys, tmp_path):
    (tmp_path / "g.csv").write_text("student,group\nada,1\n")
    (tmp_path / "r.csv").write_text("id,first_name\nnew,New\n")
    with due.course.locked("lab grade"):
        assert due.lab("score", "ada", NAME, "4", "--why", "oral exam") == 0
        out = capsys.readouterr().out
        assert "`lab grade` has been running since" in out
        assert f"; afterwards, `lab feedback {NAME}` makes the pages again" in out
        assert due.row()["score"] == "4.0"
        for words in (EXTEND, ["review", NAME, "--accept"], ["second", NAME, "--share", "1"],
                      ["groups", "import", str(tmp_path / "g.csv")],
                      ["roster", "import", str(tmp_path / "r.csv")],
                      ["release", NAME, "--due", "2026-02-01 12:00 UTC"], WITHDRAW):
            wanted = 1 if words[0] == "second" else 0  # it has no written answer
            assert due.lab(*words) == wanted, capsys.readouterr().err
        assert "has no written answer" in capsys.readouterr().err
    assert "new" in due.roster() and due.row()["due"].startswith("2026-02-08")  # 7 days longer


def test_a_collection_does_not_wait_and_only_one_collects_at_a_time(office, capsys, tmp_path):
    folder = tmp_path / "in" / "ada"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.ipynb").write_text("{}")
    with office.course.locked("lab grade"):
        assert office.lab("collect", str(folder.parent), "--as-is") == 0
    assert "1 new" in capsys.readouterr().out
    assert records.state(Submission(office.course, NAME, "ada"))[1].startswith("submitted again")
    with office.course.locked("lab collect", COLLECTING):
        for words in (["collect", str(folder.parent), "--as-is"], WITHDRAW, ["groups", "remove"]):
            assert office.lab(*words) == 1
            assert "`lab collect` has been running since" in (error := capsys.readouterr().err)
            assert f"run `lab {words[0]}` again when it has ended" in error


def test_a_lab_that_was_changed_is_not_released_while_it_is_graded(due, capsys):
    source = small_lab.source("a = 1")
    small_lab.put(source, due.course.notebook("source", NAME))
    before = due.course.notebook("release", NAME).read_bytes()
    with due.course.locked("lab grade"):
        assert due.lab("release", NAME, "--due", "2026-02-01 12:00 UTC") == 1
        assert "run `lab release` again when it has ended" in capsys.readouterr().err
    assert due.course.notebook("release", NAME).read_bytes() == before
    assert due.lab("release", NAME, "--due", "2026-02-01 12:00 UTC") == 0
    assert due.course.notebook("release", NAME).read_bytes() != before


def is_held(course) -> bool:
    with open(course.root / ".entering.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def run_of(office, book, pool=None) -> batch.GradingRun:
    limits = SimpleNamespace(digest=lambda: "limits")
    pool = pool or SimpleNamespace(add=lambda *_, **__: None)
    return batch.GradingRun(office.course, limits, office.config, book, pool, lambda _: None)


@pytest.mark.parametrize("step, words", [
    ("grader.gradebook.extensions.extend", EXTEND), ("grader.decide.review.settle",
                                                     ["review", NAME, "--accept"]),
    ("grader.decide.attempts._place", WITHDRAW), ("grader.gradebook.late.set_due", [
        "release", NAME, "--due", "2026-02-01 12:00 UTC"]),
    ("grader.report.grades.write_csv", EXTEND), ("grader.batch.batch.merge", None),
    ("grader.batch.batch.feedback_values", None)])
def test_whoever_writes_grades_holds_off_the_others(due, monkeypatch, step, words):
    seen = []

    def noted(*_, **__):
        seen.append(is_held(due.course))
        raise records.LabError("that is enough")

    if words is None:
        with records.gradebook(due.course) as book:
            monkeypatch.setattr(step, noted)
            with pytest.raises(records.LabError):
                run_of(due, book).enter(due.result())
    else:
        monkeypatch.setattr("grader.batch.grading.remake_pages", lambda course, work, done: work)
        monkeypatch.setattr(step, noted)
        assert due.lab(*words) == 1
    assert seen and all(seen)


def test_a_batch_sees_the_extension_that_was_given_while_it_ran(due):
    """It has read the entry before; and it is about to remove it, because grading fails."""
    with records.gradebook(due.course) as book:
        entry = book.find_submission(NAME, "ada")
        assert entry.extension is None
        with due.course.locked("lab grade"):
            assert due.lab(*EXTEND) == 0
        run_of(due, book).enter(due.result("ada", WRONG, **BROKEN))
    assert due.row()["due"].startswith("2026-02-07")


def test_a_batch_keeps_what_was_reviewed_while_it_ran(office):
    with records.gradebook(office.course) as book:
        run = run_of(office, book)
        run.enter(office.result("ada", WRONG))
        outcome = next(iter(run.awaiting_page.values()))
        assert outcome.record.set_aside
        with office.course.locked("lab grade"):
            assert office.lab("review", NAME, "--discard") == 0
        run.handle(SimpleNamespace(answer={"failed": "no room"}, fault="", body={
            "do": "feedback", "lab": NAME, "student": "ada", "others": {}}))
    record = Submission(office.course, NAME, "ada").record
    assert not record.set_aside and [note[:11] for note in record.notes] == ["no feedback"]


@pytest.mark.parametrize("moment", ["graded", "page"])
def test_a_version_that_is_withdrawn_while_it_is_graded_has_no_score_and_no_page(due, moment):
    result = due.result("ada", RIGHT)
    page = Submission(due.course, NAME, "ada").page
    with records.gradebook(due.course) as book, due.course.locked("lab grade"):
        run = run_of(due, book)
        if moment == "page":
            run.enter(result)
        assert due.lab(*WITHDRAW) == 0
        if moment == "graded":
            run.enter(result)
            assert not run.awaiting_page
        else:
            page.parent.mkdir(parents=True)
            page.write_text("3 / 5")  # the worker was not told
            run.handle(SimpleNamespace(answer={}, fault="", body={
                "do": "feedback", "lab": NAME, "student": "ada", "others": {}}))
    row = due.row()
    assert (row["state"], row["reason"]) == ("ungraded", "every attempt was withdrawn: x")
    assert not page.exists() and not due.course.notebook("autograded", NAME, "ada").exists()
    with records.gradebook(due.course) as book, pytest.raises(records.MissingEntry):
        book.find_submission(NAME, "ada")
    history = Submission(due.course, NAME, "ada").record.history
    assert [one["score"] for one in history if one["digest"]] == [3.0]


def test_a_member_who_leaves_while_the_pages_are_made_has_none(office):
    ada, mary = (Submission(office.course, NAME, one).page for one in ("ada", "mary"))
    with records.gradebook(office.course) as book:
        run = run_of(office, book)
        run.enter(office.result("ada", RIGHT))
        for page in (ada, mary):
            page.parent.mkdir(parents=True)
            page.write_text("3 / 5")
        run.handle(SimpleNamespace(answer={}, fault="", body={  # the group was removed meanwhile
            "do": "feedback", "lab": NAME, "student": "ada", "others": {"mary": {}}}))
    assert ada.exists() and not mary.exists()


def test_ctrl_c_keeps_the_reason_of_what_was_withdrawn(due):
    pool = SimpleNamespace(under_way=lambda _: [(NAME, "ada")])
    with records.gradebook(due.course) as book, due.course.locked("lab grade"):
        assert due.lab(*WITHDRAW) == 0
        run_of(due, book, pool).stopped()
    assert due.row()["reason"] == "every attempt was withdrawn: x"
