"""Which attempt counts, and that no policy invents a score."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from traitlets import TraitError
from traitlets.config import Config

from grader.course.receipts import Receipt
from grader.report import policy
from grader.report.policy import (
    Attempts,
    attempts_of,
    count,
    distinct_attempts,
    submitted_versions,
    to_grade,
)
from tests.grader.collect.conftest import NAME, put

DIGESTS = st.lists(st.sampled_from("abcdef"), max_size=8).map(
    lambda digests: distinct_attempts(
        [(f"{index:03}", digest) for index, digest in enumerate(digests)]))
SCORES = st.dictionaries(st.sampled_from("abcdef"), st.none() | st.floats(0, 10))
POLICIES = st.builds(lambda **settings: Attempts(**settings),
                     counts=st.sampled_from(["latest", "best", "first"]), most=st.integers(0, 5),
                     factors=st.lists(st.floats(0, 1), min_size=1, max_size=4))


@given(POLICIES, DIGESTS, SCORES)
def test_what_counts_is_one_attempts_score_times_its_factor_or_nothing(policy, digests, scores):
    score = count(policy, digests, scores).score
    within = digests[:policy.most or None]
    worth = [scores[digest] * policy.factor(number)
             for number, digest in enumerate(within, 1) if scores.get(digest) is not None]
    assert score is None or score in worth
    if policy.counts == "best":
        assert score == max(worth, default=None)


@given(DIGESTS, SCORES, st.sampled_from("abcdef"), st.floats(0, 10))
def test_one_attempt_more_never_lowers_the_best(digests, scores, new, score):
    best = Attempts(counts="best")
    before = count(best, digests, scores).score
    after = count(best, [*digests, new], {new: score} | scores).score
    assert before is None or after >= before


@given(DIGESTS, SCORES)
def test_an_attempt_without_a_score_leaves_none_when_the_latest_counts(digests, scores):
    scores = {**scores, "new": None}
    assert count(Attempts(), [*digests, "new"], scores).score is None


@pytest.mark.parametrize("settings, score, note", [
    ({}, 6, "attempt 3 of 3 counts (latest)"), ({"counts": "best"}, 9, "attempt 2 of 3"),
    ({"counts": "first"}, 5, "attempt 1 of 3"), ({"most": 2}, 9, "attempt 2 of 3"),
    ({"counts": "best", "factors": [1, 0.5]}, 5, "attempt 1 of 3"),
    ({"factors": [1, 0.5]}, 3, "times 0.5"),
])
def test_the_policies(settings, score, note):
    counted = count(Attempts(**settings), "abc", {"a": 5, "b": 9, "c": 6})
    assert counted.score == score and note in counted.note


def test_an_ungraded_attempt_is_named():
    counted = count(Attempts(counts="best"), "ab", {"a": 5})
    assert counted.score == 5 and "1 without a score" in counted.note
    assert "attempt 1 of 2 has no score" in count(Attempts(counts="first"), "ab", {"b": 5}).note


@pytest.mark.parametrize("wrong", [{"counts": "median"}, {"most": -1}, {"factors": []},
                                   {"factors": [1.5]}])
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(TraitError):
        attempts_of(Config(Attempts=wrong))


def test_attempts_are_those_received_and_those_graded_without_a_receipt():
    when = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    receipt = Receipt("ada", NAME, "b", when.isoformat(), "test")
    history = [{"digest": "a", "received": "2026-01-01T00:00:00+00:00"}, {"digest": "b"}]
    assert distinct_attempts(submitted_versions([receipt], history)) == ["a", "b"]


@pytest.mark.parametrize("line, expected", [
    ("", "# 3"), ("c.Attempts.counts = 'first'", "# 1"), ("c.Attempts.most = 2", "# 2"),
    ("c.Attempts.counts = 'best'", "# 3")])
def test_collect_puts_there_what_is_to_be_graded(take, course, submitted, tmp_path, answer, line,
                                                expected):
    with course.config_file.open("a") as file:
        file.write(line + "\n")
    for day in (1, 2, 3):
        put(tmp_path / "in", {f"ada/{NAME}.ipynb": answer(f"# {day}")})
        take(tmp_path / "in", received=datetime.datetime(2026, 1, day, tzinfo=datetime.UTC))
    assert submitted("ada") == answer(expected)
    assert attempts_of(course.settings()).is_default == (line == "")


def test_to_grade_counts_the_same_file_once():
    results = [Receipt("ada", NAME, digest, "", "", str(number))
               for number, digest in enumerate("aabb")]
    assert to_grade(Attempts(most=2), results).digest == "b"


@dataclass(frozen=True)
class Row:
    """The fields of a row of grades.csv that `counted` uses."""

    student: str
    lab: str
    score: float | None
    state: str
    reason: str = ""
    received: str = ""
    notes: str = ""
    raw_score: float | None = None
    late_penalty: float | None = None
    late: str = ""
    decision: str = ""
    attempt: int = 2


@pytest.fixture
def history(course, monkeypatch):
    """Set how attempts a, b, ... were graded; None is an ungraded one."""
    def history(*scores: float | None, setting: str, row: Row) -> Row:
        with course.config_file.open("a") as file:
            file.write(f"c.Attempts.{setting}\n")
        entries = [{"digest": chr(97 + index), "score": score, "received": str(index),
                    "state": "ungraded" if score is None else "graded"}
                   for index, score in enumerate(scores)]
        newest = entries[-1]
        record = SimpleNamespace(digest=newest["digest"], state=newest["state"], history=entries)
        monkeypatch.setattr(policy, "Submission", lambda *_: SimpleNamespace(
            record=record, digest=newest["digest"]))
        return next(policy.counted(course, [row]))

    return history


def test_the_best_is_in_the_table_and_said(history):
    row = history(5.0, 3.0, setting="counts = 'best'", row=Row("ada", NAME, 3.0, "graded"))
    assert (row.score, row.state, row.notes) == (5.0, "graded", "attempt 1 of 2 counts (best)")


def test_a_score_that_a_person_changed_is_the_one_that_is_compared(history):
    row = history(5.0, 3.0, setting="counts = 'best'", row=Row("ada", NAME, 6.0, "graded"))
    assert row.score == 6.0


def test_a_crash_keeps_the_best_and_says_so(history):
    row = history(5.0, None, setting="counts = 'best'",
                  row=Row("ada", NAME, None, "ungraded", "it crashed"))
    assert (row.score, row.state) == (5.0, "graded") and "it crashed" in row.reason
    assert "1 without a score" in row.notes


def test_a_crash_leaves_no_score_when_the_latest_counts(history):
    before = Row("ada", NAME, None, "ungraded", "it crashed")
    assert history(5.0, None, setting="factors = [1, 0.5]", row=before) == before


def test_what_waits_to_be_graded_stays_ungraded(history):
    before = Row("ada", NAME, None, "ungraded", "submitted again since it was graded")
    assert history(5.0, 6.0, setting="counts = 'best'", row=before) == before


def test_checks_that_a_person_scored_count_though_the_attempt_was_ungraded(history):
    row = history(5.0, None, setting="counts = 'best'", row=Row("ada", NAME, 7.0, "graded"))
    assert row.score == 7.0 and "attempt 2 of 2" in row.notes
