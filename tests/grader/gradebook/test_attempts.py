"""`lab attempt`: a version that was uploaded by mistake costs nobody a grade."""

from __future__ import annotations

import os

import pytest

from grader.collect import store
from grader.course import Submission, receipts
from grader.gradebook import decisions
from tests.grader import small_lab
from tests.grader.gradebook.conftest import Office
from tests.grader.small_lab import RIGHT

pytestmark = pytest.mark.slow
NAME = small_lab.NAME
NONE = {"scores": {"batch-check": 0.0, "script-check": 0.0}}


def hand_in(office: Office, answer: str, second: int, **more) -> None:
    """Submit, collect, and grade one version, received in that second of 2026."""
    result = office.result("ada", answer, **more)
    os.utime(office.course.notebook("submitted", NAME, "ada"), (1.77e9 + second,) * 2)
    store.register(Submission(office.course, NAME, "ada"))
    office.merge(result)


@pytest.fixture
def twice(office) -> Office:
    """Ada's first attempt had 3 points; her second one is the untouched notebook."""
    hand_in(office, RIGHT, 1)
    hand_in(office, "a = 1", 2, **NONE)
    return office


def placed(office: Office) -> bytes:
    return office.course.notebook("submitted", NAME, "ada").read_bytes()


def killed(*_, **__):
    raise KeyboardInterrupt


def versions(office: Office) -> list[str]:
    return [one.digest for one in receipts.read(office.course)["ada", NAME]]


def test_a_lower_newest_attempt_is_pointed_out(twice):
    row = twice.row()
    assert row["score"] == "0.0" and "attempt 1 of 2 had 3 points" in row["notes"]


@pytest.mark.parametrize("setting", ["", "c.Attempts.counts = 'best'\n",
                                     "c.Attempts.counts = 'latest'\nc.Attempts.factors = [1, 0.5]\n"
                                     ])
def test_a_withdrawn_attempt_costs_nothing(twice, capsys, monkeypatch, setting):
    monkeypatch.setenv("COLUMNS", "200")
    with twice.course.config_file.open("a") as file:
        file.write(setting)
    newest = placed(twice)
    assert twice.lab("attempt", "ada", NAME, "withdraw", "2", "--why", "wrong file") == 0
    out = capsys.readouterr().out
    assert "attempt 1 is the one to grade; grade it with `lab grade" in out
    assert placed(twice) != newest
    twice.merge(twice.result("ada", RIGHT))
    assert (twice.row()["score"], twice.row()["state"]) == ("3.0", "graded")
    assert twice.lab("attempt", "ada", NAME) == 0
    assert "withdrawn: wrong file" in (out := capsys.readouterr().out) and "2 attempts" in out
    assert twice.lab("attempt", "ada", NAME, "--remove") == 0
    assert placed(twice) == newest


def test_the_score_is_right_though_the_command_was_killed(twice, monkeypatch):
    """After the decision, before the version was put into submitted/."""
    with monkeypatch.context() as patched:
        patched.setattr(store, "submit_version", killed)
        assert twice.lab("attempt", "ada", NAME, "withdraw", "2", "--why", "wrong file") == 130
    assert (twice.row()["score"], twice.row()["state"]) == ("3.0", "graded")
    assert twice.lab("attempt", "ada", NAME, "withdraw", "2", "--why", "wrong file") == 0
    assert store.digest_of(placed(twice)) == versions(twice)[0]


def test_grades_csv_numbers_attempts_as_the_list_does(twice):
    """Or an instructor who reads there that attempt 1 counts withdraws another one."""
    assert twice.lab("attempt", "ada", NAME, "withdraw", "1", "--why", "wrong file") == 0
    assert "attempt 2 of 2 counts" in twice.row()["notes"]


def test_each_withdrawn_attempt_has_its_own_reason(twice, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for number, why in (("1", "plagiarism"), ("2", "wrong file")):
        assert twice.lab("attempt", "ada", NAME, "withdraw", number, "--why", why) == 0
    capsys.readouterr()
    assert twice.lab("attempt", "ada", NAME) == 0
    first, second = (line for line in capsys.readouterr().out.splitlines() if "withdrawn" in line)
    assert "withdrawn: plagiarism" in first and "withdrawn: wrong file" in second


def test_what_a_killed_command_took_back_is_placed_by_the_same_command(twice, capsys):
    newest = placed(twice)
    assert twice.lab("attempt", "ada", NAME, "withdraw", "2", "--why", "wrong file") == 0
    decisions.add(twice.course, decisions.WITHDRAWN, ["ada"], NAME, None, "")  # and then it died
    assert placed(twice) != newest
    assert twice.lab("attempt", "ada", NAME, "--remove") == 0 and placed(twice) == newest
    assert twice.lab("attempt", "ada", NAME, "--remove") == 1
    assert "was withdrawn or chosen" in capsys.readouterr().err


def test_a_chosen_attempt_counts_whatever_comes_later(twice):
    first = versions(twice)[0]
    assert twice.lab("attempt", "ada", NAME, "choose", "1", "--why", "asked for it") == 0
    hand_in(twice, RIGHT, 1)
    hand_in(twice, "a = 2", 3, **NONE)
    row = twice.row()
    assert row["score"] == "3.0" and "attempt 1 of 3 counts (chosen)" in row["notes"]
    assert twice.lab("attempt", "ada", NAME, "choose", "1", "--why", "asked for it") == 0
    assert store.digest_of(placed(twice)) == first


def test_who_withdraws_every_attempt_leaves_no_score_and_loses_nothing(twice):
    first = store.version_path(Submission(twice.course, NAME, "ada", versions(twice)[0]))
    for number in ("1", "2"):
        assert twice.lab("attempt", "ada", NAME, "withdraw", number, "--why", "plagiarism") == 0
    row = twice.row()
    assert (row["state"], row["score"]) == ("ungraded", "")
    assert row["reason"] == "every attempt was withdrawn: plagiarism" and first.is_file()
    assert not twice.course.submitted(NAME, "ada")
    assert twice.lab("attempt", "ada", NAME, "--remove") == 0
    assert store.digest_of(placed(twice)) == versions(twice)[1]
    twice.merge(twice.result("ada", "a = 1", **NONE))
    assert (twice.row()["score"], twice.row()["state"]) == ("0.0", "graded")


@pytest.mark.parametrize("step", ["grader.collect.store.clear", "os.fsync",
                                  "grader.gradebook.ungraded.leave_ungraded"])
def test_it_may_be_killed_where_it_takes_the_last_attempt_away(office, monkeypatch, step):
    hand_in(office, RIGHT, 1)
    version = store.version_path(Submission(office.course, NAME, "ada", versions(office)[0]))
    with monkeypatch.context() as patched:
        patched.setattr(step, killed)
        assert office.lab("attempt", "ada", NAME, "withdraw", "1", "--why", "x") == 130
    assert version.is_file()
    assert office.lab("attempt", "ada", NAME, "withdraw", "1", "--why", "x") == 0
    assert (office.row()["state"], office.row()["reason"]) == (
        "ungraded", "every attempt was withdrawn: x")
    assert office.lab("attempt", "ada", NAME, "--remove") == 0
    office.merge(office.result("ada", RIGHT))
    assert office.row()["score"] == "3.0"


@pytest.mark.parametrize("words, said", [
    (["withdraw", "3", "--why", "x"], "none is number 3; nearest: 2"),
    (["withdraw", "two", "--why", "x"], "say withdraw N or choose N"),
    (["drop", "1", "--why", "x"], "say withdraw N or choose N"),
    (["choose", "1"], "--why is missing"), (["--remove"], "was withdrawn or chosen"),
    (["choose", "1", "--remove"], "--remove takes back")])
def test_what_cannot_be_decided_is_refused(twice, capsys, words, said):
    before = placed(twice)
    assert twice.lab("attempt", "ada", NAME, *words) == 1
    assert said in (error := capsys.readouterr().err), error
    assert placed(twice) == before and not (twice.course.root / "decisions.jsonl").exists()


def test_a_version_that_was_never_collected_is_not_chosen(office, capsys):
    office.merge(office.result())  # put there by hand, and replaced by hand
    office.merge(office.result("ada", "a = 1", **NONE))
    assert office.lab("attempt", "ada", NAME, "choose", "1", "--why", "x") == 1
    assert "was never collected" in capsys.readouterr().err
