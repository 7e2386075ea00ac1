"""A later due date for one student, and a score that a person enters for a whole lab."""

from __future__ import annotations

import datetime
import json
import os

import pytest

from grader.batch.batch import GradingRun
from grader.batch.grading import locked_course
from grader.course import Submission
from grader.course.times import parse_time
from grader.gradebook import backups, decisions, notices, records
from grader.gradebook.late import set_due
from grader.run.settings import Grading
from tests.grader import small_lab
from tests.grader.batch.test_merge import PART
from tests.grader.conftest import run, submit
from tests.grader.gradebook.conftest import Office
from tests.grader.gradebook.test_by_hand import ADA, BROKEN, extension, made
from tests.grader.small_lab import WRONG, answered

pytestmark = pytest.mark.slow
NAME = small_lab.NAME


@pytest.fixture(scope="module")
def template_late(template_office, tmp_path_factory) -> Office:
    """Ada handed in 2 hours and 5 minutes after it was due, which costs 20 percent a day."""
    office = template_office.copied(tmp_path_factory.mktemp("late"))
    with office.course.config_file.open("a") as file:
        file.write("c.LatePenalty.percent = 20\n")
    office.config = office.course.settings()
    set_due(office.course, NAME, parse_time("2026-01-10 12:00 UTC", "--due"))
    when = parse_time("2026-01-10 14:05 UTC", "").timestamp()
    os.utime(office.course.notebook("submitted", NAME, "ada"), (when, when))
    made(office, ADA)
    return office


@pytest.fixture
def late(template_late, tmp_path, monkeypatch) -> Office:
    office = template_late.copied(tmp_path)
    monkeypatch.setenv("LAB_COURSE", str(office.course.root))
    return office


@pytest.fixture
def quick(monkeypatch):
    """Pages are another test's: what asks for them is noted."""
    asked = []
    monkeypatch.setattr("grader.batch.grading.remake_pages",
                        lambda course, work, done: asked.extend(work) or work)
    return asked


def typed(office, *words: str) -> str:
    """Return the output of a command that makes pages, from a process whose workers start warm."""
    done = run(office.course, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_lateness_is_in_the_table_in_full(late):
    row = late.row()
    assert (row["score"], row["raw_score"], row["late_penalty"]) == ("2.4", "3.0", "0.6")
    assert row["due"] == "2026-01-10T12:00:00+00:00" and row["extension"] == ""
    assert row["late"] == "late by 2 h 5 min: 20% of 3 points deducted"
    assert late.row("mary")["due"] == "2026-01-10T12:00:00+00:00"


def test_an_extension_takes_the_penalty_back_and_is_listed_with_its_reason(late):
    said = typed(late, "extend", "ada", NAME, "2026-01-10 15:00 +01:00", "--why", "train")
    assert "due 2026-01-10 14:00 UTC" in said and "1 of 1 feedback pages made again" in said
    row = late.row()
    assert (row["score"], row["due"]) == ("2.4", "2026-01-10T14:00:00+00:00")
    assert (row["extension"], row["late"]) == (
        "2 h: train", "late by 5 min: 20% of 3 points deducted")
    page = late.course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    assert "late by 5 min: 20% of 3 points deducted" in page.read_text()
    typed(late, "extend", "ada", NAME, "2026-01-11 12:00 UTC")
    row = late.row()
    assert (row["score"], row["late"], row["late_penalty"]) == ("3.0", "", "0.0")
    assert "late by" not in page.read_text()


def test_an_extension_is_listed_until_it_is_withdrawn(late, quick, capsys):
    assert late.lab("extend", "ada", NAME, "2026-01-10 15:00 +01:00", "--why", "train") == 0
    assert late.row()["extension"] == "2 h: train"
    capsys.readouterr()
    assert late.lab("extend") == late.lab("extend", "ada", NAME) == 0
    assert capsys.readouterr().out.count("2026-01-10 14:00") == 2
    assert late.lab("extend", "ada", NAME, "--remove") == 0
    assert late.row()["extension"] == "" and extension(late) is None
    assert late.lab("extend") == 0 and "0 extensions" in capsys.readouterr().out


def test_several_students_get_one_and_who_handed_in_nothing_too(late, quick):
    assert late.lab("extend", "ada", "mary", NAME, "2026-01-12", "12:00", "UTC") == 0
    assert late.row("mary")["due"] == late.row()["due"] == "2026-01-12T12:00:00+00:00"
    assert late.row("mary")["reason"] == "nothing submitted"


def test_an_extension_is_not_undone_by_one_that_waits(late, quick):
    """While a submission is ungraded, its extension waits in attempts/."""
    assert late.lab("extend", "ada", NAME, "2026-01-11 12:00 UTC", "--why", "one") == 0
    late.merge(late.result("ada", "a = 1", **BROKEN))
    assert late.row()["due"] == "2026-01-11T12:00:00+00:00"
    assert late.lab("extend", "ada", NAME, "2026-01-13 12:00 UTC") == 0
    late.merge(late.result("ada", WRONG))
    assert extension(late) == datetime.timedelta(days=3)
    assert late.row()["due"] == "2026-01-13T12:00:00+00:00"


def test_an_extension_and_a_score_outlive_the_gradebook(late, quick):
    late.back_up()
    assert late.lab("extend", "ada", NAME, "2026-01-13 12:00 UTC", "--why", "ill") == 0
    assert late.lab("score", "mary", NAME, "4", "--why", "oral") == 0
    backups.backups_of(late.book)[0].path.unlink()  # which was made after the extension
    late.book.unlink()
    assert late.lab("gradebook", "restore") == 0
    assert extension(late) == datetime.timedelta(days=3)
    assert (late.row()["extension"], late.row("mary")["score"]) == ("3 d: ill", "4.0")
    made(late, ADA)  # as `lab grade` does, which works out the penalty anew
    assert late.row()["score"] == "3.0"


def test_lab_feedback_writes_the_pages_and_the_table(late):
    late.by_hand("script-check", 1)
    typed(late, "feedback", NAME, "--to", str(late.course.root / "pages"))
    table = (late.course.root / "grades.csv").read_text()
    assert f"ada,{NAME},1.6,5.0,graded" in table, table
    page = late.course.root / "pages" / "ada" / f"{NAME}.html"
    assert "20% of 2 points deducted" in page.read_text()
    assert "(Score: 1.6 / 5.0)" in page.read_text()


@pytest.mark.parametrize("words, said", [
    (["extend", "aad", NAME, "2026-01-11 12:00 UTC"], "no student aad in the roster; nearest: ada"),
    (["extend", "ada", "90_smal", "2026-01-11 12:00 UTC"], f"nearest: {NAME}"),
    (["extend", "ada", NAME, "2026-01-11 12:00"], "names no time zone"),
    (["extend", "ada", NAME, "tomorrow"], "'tomorrow' is not a time"),
    (["extend", "ada", NAME, "2026-01-09 12:00 UTC"], "is due 2026-01-10 12:00 UTC"),
    (["extend", NAME, "2026-01-11 12:00 UTC"], f"no student before {NAME}"),
    (["extend", "--remove"], "name a student and a lab"),
    (["score", "ada", NAME, "0"], "--why is missing"),
    (["score", "ada", NAME, "0", "--why", " "], "--why is missing"),
    (["score", "ada", NAME, "5.5", "--why", "x"], "from 0 to 5; the nearest is 5"),
    (["score", "ada", NAME, "-1", "--why", "x"], "from 0 to 5; the nearest is 0"),
    (["score", "ada", NAME, "nan", "--why", "x"], "'nan' is not a score"),
    (["score", "ada", NAME, "1e999", "--why", "x"], "the nearest is 5"),
    (["score", "ada", NAME, "2,5", "--why", "x"], "'2,5' is not a score"),
    (["score", "ada", NAME, "--why", "x"], f"nothing after {NAME}"),
    (["score", "mery", NAME, "1", "--why", "x"], "nearest: mary"),
    (["score", "ada", "nolab", "1", "--why", "x"], "no lab nolab"),
])
def test_bad_input_changes_nothing(late, quick, capsys, words, said):
    before = late.row()
    assert late.lab(*words) == 1
    assert said in (error := capsys.readouterr().err), error
    assert late.row() == before and not decisions.file_of(late.course).exists() and not quick


def test_a_persons_score_counts_however_often_it_is_graded_again(late, quick, capsys):
    typed(late, "score", "ada", NAME, "0", "--why", "=copied & pasted")
    row = late.row()
    assert (row["score"], row["state"], row["raw_score"]) == ("0.0", "graded", "3.0")
    assert row["late"] == "late by 2 h 5 min: nothing deducted"  # from a score that a person set
    assert row["decision"].startswith("0 points, by ") and row["decision"].endswith(
        " UTC: =copied & pasted")
    page = late.course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    assert f"<h4>{NAME} (Score: 0.0 / 5.0)</h4>" in page.read_text()
    assert "score of this lab to 0 points. Reason: =copied &amp; pasted" in page.read_text()
    assert "Late submission penalty" not in page.read_text()
    assert "late by 2 h 5 min: nothing deducted" in page.read_text()
    late.merge(late.result())
    late.merge(late.result("ada", WRONG))
    submit(late.course, "ada", answered(late.released, "b = 2"))
    assert late.row()["score"] == "0.0"
    assert late.lab("score") == 0 and "=copied & pasted" in capsys.readouterr().out
    assert late.lab("score", "ada", NAME, "--remove") == 0
    assert late.row()["decision"] == "" and late.row()["state"] == "ungraded"  # submitted again
    assert len(decisions.file_of(late.course).read_text().splitlines()) == 2  # who took it back


def test_a_page_with_a_persons_score_does_not_say_that_it_is_not_graded(late):
    late.merge(late.result(**PART))
    typed(late, "score", "ada", NAME, "4", "--why", "oral")
    page = late.course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    assert f"<h4>{NAME} (Score: 4.0 / 5.0)</h4>" in page.read_text()


def test_excused_is_no_score_and_no_0(late):
    typed(late, "score", "ada", "mary", NAME, "excused", "--why", "ill")
    for student in ("ada", "mary"):
        row = late.row(student)
        assert (row["score"], row["state"], row["reason"], row["late_penalty"]) == (
            "", "excused", "ill", "")
    page = late.course.root / "feedback" / "ada" / NAME / f"{NAME}.html"
    assert f"{NAME} (excused)</h4>" in page.read_text()
    assert "You are excused from this lab, which has no score. Reason: ill" in page.read_text()
    assert "late by" not in page.read_text()


def test_it_counts_whatever_policy_there_is(late, quick):
    with late.course.config_file.open("a") as file:
        file.write("c.Attempts.counts = 'best'\n")
    assert late.lab("score", "ada", NAME, "1", "--why", "oral") == 0
    assert late.row()["score"] == "1.0"


def test_a_damaged_line_is_an_error_and_no_score_is_dropped(late, quick, capsys):
    assert late.lab("score", "ada", NAME, "1", "--why", "oral") == 0
    path = decisions.file_of(late.course)
    assert path.stat().st_mode & 0o777 == 0o600
    line = json.loads(path.read_text())
    for wrong in ({**line, "value": -1}, {**line, "value": "4"}, {**line, "kind": "x"}, [], "{"):
        path.write_text(json.dumps(wrong)[:40 if wrong == "{" else None] + "\n")
        with pytest.raises(records.LabError, match="line 1 is damaged"):
            late.row()


def test_a_page_has_the_courses_time_beside_utc_and_seconds_where_they_matter(late, capsys):
    def line() -> str:
        with records.gradebook(late.course) as book:
            return notices.notices_of(Submission(late.course, NAME, "ada"), book)["lines"][0]

    assert line().startswith("Due 2026-01-10 12:00 UTC, received 2026-01-10 14:05 UTC: late by")
    with late.course.config_file.open("a") as file:
        file.write("c.Feedback.time_zone = 'Asia/Tokyo'\n")
    assert "12:00 UTC (21:00 Asia/Tokyo), received 2026-01-10 14:05 UTC (23:05 Asia/" in line()
    set_due(late.course, NAME, parse_time("2026-01-10 14:05 UTC", ""))
    when = parse_time("2026-01-10 14:05:34 UTC", "").timestamp()
    os.utime(late.course.notebook("submitted", NAME, "ada"), (when, when))
    made(late, ADA)
    assert "14:05:00 UTC (23:05:00 Asia/Tokyo), received 2026-01-10 14:05:34 UTC" in line()
    set_due(late.course, NAME, parse_time("2026-01-09 16:00 UTC", ""))
    assert "2026-01-09 16:00 UTC (2026-01-10 01:00 Asia/Tokyo)" in line()
    with late.course.config_file.open("a") as file:
        file.write("c.Feedback.time_zone = 'Berlin'\n")
    with (pytest.raises(records.LabError, match="unknown time zone 'Berlin'"),
          locked_course(late.course, [], "lab grade")):
        pytest.fail("a batch began, and would stop at the first late submission")


def test_decisions_of_two_commands_at_once_are_all_there(office):
    from concurrent.futures import ThreadPoolExecutor

    students = [f"s{number}" for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: decisions.add(office.course, decisions.SCORE, [one], NAME, 1.0,
                                                   "x"), students))
    assert {one for _, one in decisions.current(office.course, decisions.SCORE)} == set(students)


def test_a_submission_that_is_set_aside_is_left_alone_until_another_comes(office, capsys):
    office.merge(office.result("ada", "a = 1", **BROKEN))
    assert office.lab("aside", "ada", NAME, "--why", "asked for another") == 0
    row = office.row()
    assert (row["state"], row["score"]) == ("ungraded", "")
    assert row["reason"].endswith(": asked for another") and "set aside by " in row["reason"]
    ended = []
    with records.gradebook(office.course) as book:
        batch = GradingRun(office.course, Grading(), office.config, book, None, ended.append)
        for even_current in (False, True):
            assert batch.triage([(NAME, "ada")], even_current) == []
    assert [one.again for one in ended] == [False, False]
    capsys.readouterr()
    assert office.lab("aside") == 0 and "asked for another" in capsys.readouterr().out
    submit(office.course, "ada", answered(office.released, WRONG))
    assert "set aside" not in office.row()["reason"]
    with records.gradebook(office.course) as book:
        batch = GradingRun(office.course, Grading(), office.config, book, None, ended.append)
        assert batch.triage([(NAME, "ada")], False) == [(NAME, "ada")]


@pytest.mark.parametrize("words, said", [
    (["aside", "ada", NAME, "--why", "x"], "is graded: only an ungraded submission"),
    (["aside", "mary", NAME, "--why", "x"], "mary has submitted nothing"),
    (["aside", "ada", NAME], "--why is missing"),
    (["aside", NAME, "--why", "x"], "name students and a lab"),
    (["aside", "ada", NAME, "now", "--why", "x"], "and nothing else"),
    (["aside", "aad", NAME, "--why", "x"], "nearest: ada"),
])
def test_what_cannot_be_set_aside_is_refused(office, capsys, words, said):
    office.merge(office.result())
    assert office.lab(*words) == 1
    assert said in (error := capsys.readouterr().err), error
    assert not decisions.file_of(office.course).exists()
