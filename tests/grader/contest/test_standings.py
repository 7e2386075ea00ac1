"""Which attempt counts, who has which rank, and what the pages show."""

from __future__ import annotations

import csv
import dataclasses
import json

import pytest

from grader.batch.pool import FinishedTask
from grader.contest import attempts, page, secret, submissions
from grader.contest.attempts import ContestAttempt
from grader.contest.grading import enter, register_submissions, versions_to_play
from grader.contest.standings import StandingsRow, ranked, standings, teams
from grader.course import groups
from grader.run.settings import settings_of
from lab.cli import main
from labkit.contest.play import FLOOR, CaseResult, points

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def made_with(course, contest):
    return secret.digest(contest, secret.cases(course, contest), settings_of(course.settings()))


@pytest.fixture
def played(course, contest, submit, made_with):
    """Submit a version, and enter what a worker would report: one score for all cases."""
    def played(student: str, text: str, score: float, **more) -> ContestAttempt:
        submit(student, text)
        register_submissions(course, contest)
        digest = list(submissions.versions(course, contest, student))[-1]
        outcomes = [vars(CaseResult(case.name, case.group, score, **more))
                    for case in secret.cases(course, contest)]
        body = {"student": student, "digest": digest}
        return enter(course, contest, made_with, FinishedTask(body, {"outcomes": outcomes})).attempt

    return played


def row(rows, name):
    return next(one for one in rows if one.name == name)


def test_a_worse_resubmission_costs_nothing_and_stays_in_the_history(course, contest, played):
    played("ada", "a = 1", 0.5)
    assert row(standings(course, contest), "ada").points == 50
    played("ada", "a = 2", 0.25)
    result = row(standings(course, contest), "ada")
    assert (result.points, result.attempt) == (50, "1 of 2")
    played("ada", "a = 3", 0.75)
    assert row(standings(course, contest), "ada").attempt == "3 of 3"
    kept, _ = attempts.read(course, contest, "ada")
    assert [one.points for one in kept.values()] == [50, 25, 75]


@pytest.fixture
def team(course):
    """Ada and Grace submit together in all labs, and Bob alone."""
    groups.file_of(course).write_text(json.dumps({"*": [
        {"name": "Team 1", "owner": "ada", "members": ["ada", "grace"]}]}))


def test_what_any_member_of_a_group_submits_is_the_groups(course, contest, played, submit, team):
    played("grace", "a = 1", 0.5)
    played("bob", "a = 4", 0.25)
    assert teams(course, contest) == {"ada": ["ada", "grace"], "bob": ["bob"]}
    result = row(standings(course, contest), "ada")
    assert (result.points, result.attempt, result.note) == (50, "1 of 1", "")
    played("ada", "a = 2", 0.75)
    submit("grace", "a = 3")
    register_submissions(course, contest)
    rows = standings(course, contest)
    result = row(rows, "ada")
    assert (result.points, result.attempt) == (75, "1 of 1 (ada)")
    assert result.note == "grace: not played yet" and "grace" not in [one.name for one in rows]
    hidden = row(standings(course, contest, hide=True), "ada")
    assert (hidden.attempt, hidden.note) == ("1 of 1", "not played yet")


def test_the_table_names_the_group_and_its_members_have_one_pseudonym(course, contest, played, team,
                                                                      monkeypatch, tmp_path):
    monkeypatch.setenv("LAB_COURSE", str(course.root))
    played("grace", "a = 1", 0.5)
    (submissions.folder(course, contest) / "dan").mkdir()
    assert main(["contest", "table", contest.name, "--to", str(tmp_path)]) == 0
    assert "Team 1: ada, grace" in (tmp_path / f"{contest.name}.csv").read_text()
    assert main(["contest", "table", contest.name, "--pseudonyms", "--to", str(tmp_path)]) == 0
    with (course.root / "contest-results" / contest.name / "who.csv").open() as file:
        who = {one["student"]: one["pseudonym"] for one in csv.DictReader(file)}
    assert who["ada"] == who["grace"] != who["dan"]
    assert who["ada"] in (text := (tmp_path / f"{contest.name}-pseudonyms.csv").read_text())
    assert "Team" not in text and "grace" not in text


def test_equal_points_share_a_rank_in_the_order_of_their_receipts(course):
    def one(name, points, when="2026-01-01T00:00:00+00:00", ghost=False):
        return StandingsRow(name, points=points, by_group={"a": points}, received=when, ghost=ghost)

    late, early = "2026-01-02T00:00:00+00:00", "2026-01-01T12:00:00+02:00"
    rows = [one("zoe", 50.0, late), one("bob", 50.0, late), one("eve", 70.0),
            StandingsRow("absent"),
            one("ada", 50.0, early), one("1F1B", 50.0, "2021", True), one("last", 1.0)]
    for order in (rows, rows[::-1]):
        assert [(found.rank, found.name) for found in ranked(order)] == [
            (1, "eve"), (2, "1F1B"), (2, "ada"), (2, "bob"), (2, "zoe"), (6, "last"),
            (0, "absent")]


def test_scores_of_other_cases_do_not_count_until_they_are_played_again(course, contest, played):
    played("ada", "a = 1", 0.5)
    with course.config_file.open("a") as file:
        file.write("c.Grading.memory_mb = 999\n")
    result = row(standings(course, contest), "ada")
    assert (result.rank, result.note) == (0, "not played yet")
    now = secret.digest(contest, secret.cases(course, contest), settings_of(course.settings()))
    assert [student for student, _ in versions_to_play(course, contest, now)] == ["ada"]


def test_what_could_not_be_played_takes_no_score_away_and_is_tried_again(course, contest, played,
                                                                         made_with):
    first = played("ada", "a = 1", 0.5)
    body = {"student": "ada", "digest": first.digest}
    enter(course, contest, made_with, FinishedTask(body, None, "did not answer in time"))
    assert row(standings(course, contest), "ada").points == 50
    played("bob", "b = 1", 0.5)
    (bob,) = submissions.versions(course, contest, "bob")
    attempts.write(course, contest, "bob", {}, "")
    enter(course, contest, made_with, FinishedTask({"student": "bob", "digest": bob}, None, "died"))
    result = row(standings(course, contest), "bob")
    assert (result.rank, result.note) == (0, "not played: a worker process died")
    assert versions_to_play(course, contest, made_with) == [("bob", bob)]


def test_a_refused_resubmission_keeps_the_score_and_is_named(course, contest, played, submit):
    played("ada", "a = 1", 0.5)
    submit("ada", b"\xff")
    register_submissions(course, contest)
    result = row(standings(course, contest), "ada")
    assert result.points == 50 and "not UTF-8" in result.note
    hidden = row(standings(course, contest, hide=True), "ada")
    assert hidden.note == "the newest file was not played"
    submit("ada", "a = 1")
    register_submissions(course, contest)
    assert row(standings(course, contest), "ada").note == ""


@pytest.mark.parametrize("damage", [
    lambda text: "", lambda text: text[:-20], lambda text: "[" * 10**5,
    lambda text: text.replace("0.5", "7.5"), lambda text: text.replace("0.5", "true"),
    lambda text: text.replace('"received"', '"recieved"'), lambda text: '{"attempts": 3}'])
def test_a_damaged_file_gives_no_score_and_is_played_again(course, contest, played, made_with,
                                                           damage):
    first = played("ada", "a = 1", 0.5)
    (path,) = attempts.results(course, contest).glob("attempts/ada.json")
    path.write_text(damage(path.read_text()))
    assert row(standings(course, contest), "ada").rank == 0
    assert versions_to_play(course, contest, made_with) == [("ada", first.digest)]
    played("ada", "a = 1", 0.5)
    assert row(standings(course, contest), "ada").points == 50
    assert path.with_name("ada.json.damaged").exists()


def test_a_write_that_is_killed_leaves_the_old_results(course, contest, played):
    played("ada", "a = 1", 0.5)
    (path,) = attempts.results(course, contest).glob("attempts/ada.json")
    (path.parent / ".ada.json.4711").write_text('{"attempts": [')  # as a killed process leaves it
    assert row(standings(course, contest), "ada").points == 50
    attempts.tidy(course, contest)
    assert [one.name for one in path.parent.iterdir()] == ["ada.json"]
    assert path.stat().st_mode & 0o077 == 0


def test_pages_are_inert_and_say_nothing_of_cases_or_of_what_code_printed(course, contest, played):
    played("=cmd()", "a = 1", 0.5)
    played("eve", "b = 1", FLOOR, kind="error", reason=HOSTILE, hint=HOSTILE)
    rows = standings(course, contest, {"=cmd()": "=1+1 \u202e<b>", "eve": "<i>"})
    html, table = page.page(contest, rows), page.table(contest, rows)
    assert "default-src 'none'" in html and "<script" not in html and "<i>" not in html
    assert "=1+1 \\u202e&lt;b&gt;" in html and "12 error" in html
    names = [line["name"] for line in csv.DictReader(table.splitlines())]
    assert "'=1+1 \\u202e<b>" in names
    for text in (html, table):
        assert "alert" not in text
        for case in secret.cases(course, contest):
            assert case.name not in text
            assert json.dumps(case.given["forward"])[1:-1] not in text


def test_ghosts_have_their_ranks_by_the_same_scores(course, contest, played):
    played("ada", "a = 1", 0.5)
    rows = standings(course, contest)
    assert {one.name for one in rows if one.ghost} == {ghost.name for ghost in contest.ghosts}
    by_points = sorted((one.points for one in rows), reverse=True)
    assert [one.points for one in rows] == by_points
    ada = rows.index(row(rows, "ada"))
    assert 0 < ada < len(rows) - 1 and rows[ada].rank == ada + 1


def test_pseudonyms_are_all_that_a_public_page_has_of_a_student(course, contest, played):
    played("ada", "a = 1", 0.5)
    named = secret.pseudonyms(course, ["ada"])
    rows = standings(course, contest, named, hide=True)
    for text in (page.page(contest, rows), page.table(contest, rows)):
        assert named["ada"] in text and "ada," not in text and ">ada" not in text
    assert f"ada,{named['ada']}" in page.pseudonym_table(named)


def test_points_come_from_the_outcomes_alone(played):
    """There is no total in the file that somebody could change on its own."""
    result = played("ada", "a = 1", 0.5)
    assert result.points == points(result.outcomes)
    assert "points" not in {field.name for field in dataclasses.fields(ContestAttempt)}
