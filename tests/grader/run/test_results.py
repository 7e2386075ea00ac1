"""Attempts as they cross between processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from grader.course import Course, Submission
from grader.run import results
from grader.run.attempt import Attempt, DamagedAttempt
from tests.grader.small_lab import NAME


@pytest.mark.parametrize("change", [
    {"state": "fine"}, {"state": "graded", "reason": "x"}, {"state": "ungraded"}, {"scores": [1]},
    {"scores": {"a": "1"}}, {"scores": {"a": -1}}, {"scores": {"a": True}}, {"student": 3},
    {"own_doing": 1}, {"notes": "x", "more": 1}, {"notebook": []},
    {"seconds": float("nan")}, {"isolated": 1}, {"unscored": [1]}])
def test_a_damaged_attempt_is_seen(change):
    whole = json.loads(Attempt("ada", NAME, "d", "l", "graded").dumps())
    assert Attempt.loads(json.dumps(whole).encode()).student == "ada"
    with pytest.raises(DamagedAttempt):
        Attempt.loads(json.dumps(whole | change).encode())
    for content in (b"", b"[]", b"null", b"{", b"[" * 100_000):
        with pytest.raises(DamagedAttempt):
            Attempt.loads(content)


HUNG = Attempt("ada", NAME, "digest", "lab", "ungraded", "out of time", own_doing=True)


def test_a_submission_that_fails_by_its_own_doing_counts_its_tries(tmp_path):
    course = Course(tmp_path)
    first, second = (results.write(course, "limits", HUNG) for _ in range(2))
    assert (first.is_final, second.is_final) == (False, True)
    assert results.read(Submission(course, NAME, "ada")) == second


@pytest.mark.parametrize("settings, attempt", [
    ("other limits", HUNG), ("limits", replace(HUNG, digest="another notebook")),
    ("limits", replace(HUNG, lab_digest="another lab")),
    ("limits", replace(HUNG, own_doing=False))])
def test_with_anything_changed_the_tries_start_again(tmp_path, settings, attempt):
    course = Course(tmp_path)
    results.write(course, "limits", HUNG)
    made = results.write(course, settings, attempt)
    assert (made.tries, made.is_final) == (1, False)


def test_a_result_of_an_earlier_version_is_still_read(tmp_path):
    course = Course(tmp_path)
    results.write(course, "limits", replace(HUNG, own_doing=False))
    place = results.path(Submission(course, NAME, "ada"))
    place.write_text(place.read_text().replace(', "tries": 1', "").replace(
        ', "own_doing": false', ""))
    assert results.read(Submission(course, NAME, "ada")).attempt.reason == "out of time"
