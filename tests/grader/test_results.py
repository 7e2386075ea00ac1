"""Attempts as they cross between processes."""

from __future__ import annotations

import json

import pytest

from grader.attempt import Attempt, Damaged
from tests.grader.small_lab import NAME


@pytest.mark.parametrize("change", [
    {"state": "fine"}, {"state": "graded", "reason": "x"}, {"state": "ungraded"}, {"scores": [1]},
    {"scores": {"a": "1"}}, {"scores": {"a": -1}}, {"scores": {"a": True}}, {"student": 3},
    {"unscored": ["a"], "scores": {"a": 1}}, {"notes": "x", "more": 1}, {"notebook": []},
    {"seconds": float("nan")}, {"isolated": 1}, {"unscored": [1]}])
def test_a_damaged_attempt_is_seen(change):
    whole = json.loads(Attempt("ada", NAME, "d", "l", "graded").dumps())
    assert Attempt.loads(json.dumps(whole).encode()).student == "ada"
    with pytest.raises(Damaged):
        Attempt.loads(json.dumps(whole | change).encode())
    for content in (b"", b"[]", b"null", b"{", b"[" * 100_000):
        with pytest.raises(Damaged):
            Attempt.loads(content)
