"""The secret cases and the pseudonyms: repeatable, and of no use without the course's secret."""

from __future__ import annotations

import inspect

from grader.contest import secret
from grader.course import Course
from grader.run.settings import Grading
from tests.labkit.contest.toy import toy

CLASS = [f"student{number}" for number in range(300)]


def other_course(tmp_path) -> Course:
    course = Course(tmp_path / "other")
    course.make()
    return course


def test_cases_are_the_same_at_every_call_and_others_in_another_course(course, contest, tmp_path):
    assert "student" not in inspect.signature(secret.cases).parameters  # the same for everybody
    drawn = secret.cases(course, contest)
    assert drawn == secret.cases(Course(course.root), contest)
    other = secret.cases(other_course(tmp_path), contest)
    assert all(case not in other for case in drawn)
    known = [case.given for case in contest.open_cases()]
    assert all(case.given not in known for case in drawn)
    assert {case.group for case in drawn} == {group.name for group in contest.groups}


def test_each_contest_and_each_use_of_the_secret_has_a_key_of_its_own(course):
    one, other = secret.cases(course, toy()), secret.cases(course, toy(name="toy2"))
    assert all(case not in other for case in one)
    drawn = {secret._derived(course, use, "x") for use in ("cases", "pseudonyms")}
    assert len(drawn) == 2 and course.seed("x", "y", "z") not in {one.hex() for one in drawn}


def test_scores_are_out_of_date_when_cases_limits_or_the_declaration_change(course, tmp_path):
    contest, other = toy(), other_course(tmp_path)
    drawn = secret.cases(course, contest)
    collected = {secret.digest(contest, drawn, Grading()),
                 secret.digest(contest, secret.cases(other, contest), Grading()),
                 secret.digest(contest, drawn, Grading(memory_mb=999)),
                 secret.digest(toy(score=other_course), drawn, Grading())}
    assert len(collected) == 4
    assert secret.digest(contest, drawn, Grading(workers=7)) in collected


def test_pseudonyms_are_stable_distinct_and_of_this_course(course, tmp_path):
    result = secret.pseudonyms(course, CLASS)
    assert len(set(result.values())) == len(CLASS)
    assert secret.pseudonyms(course, ["ada", *reversed(CLASS)]).items() >= result.items()
    other = secret.pseudonyms(other_course(tmp_path), CLASS)
    assert not set(result.values()) & set(other.values())
    assert not any(student in name for student, name in result.items())


def test_pseudonyms_that_would_be_equal_are_told_apart(course, monkeypatch):
    monkeypatch.setattr(secret, "FEWEST_DIGITS", 0)
    monkeypatch.setattr(secret, "COLORS", ("red",))
    result = secret.pseudonyms(course, CLASS)
    assert len(set(result.values())) == len(CLASS)
    assert result == secret.pseudonyms(course, CLASS)
