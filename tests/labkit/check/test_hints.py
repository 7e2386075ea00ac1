"""Hints describe one mistake each; an answer may have two, or one that changes only some cases."""

from __future__ import annotations

import pytest

from labkit import check
from labkit.check import hints
from labkit.check.hints import nearest, relation

EXPECTED = [([0, 0, 1], 2), ([0, 1, 2], 3)]
OLD = [([0, 0, 0], 2), ([0, 0, 0], 3)]
MANY = [([0, 0, 1], 4), ([0, 1, 2], 6)]
HINTS = {"old versions": OLD, "too many": MANY}


def said(f, cases, expected, hints):
    with pytest.raises(check.Failed) as failed:
        check.function(f, cases=cases, expected=expected, hints=hints)
    return str(failed.value)


@pytest.mark.parametrize(("results", "hint"), [
    (OLD, "old versions"), (MANY, "too many"),
    ([([0, 0, 0], 4), ([0, 0, 0], 6)], "old versions"),  # both: the one that explains more
    ([([0, 0, 1], 2), ([0, 0, 0], 3)], "old versions"),  # in the second case only
    ([([0, 0, 1], 4), ([0, 1, 2], 5)], "too many"),  # the second has another mistake as well
])
def test_an_answer_with_two_mistakes_or_in_some_cases_gets_the_nearest_hint(results, hint):
    answer = said(lambda n: results[n], [(0,), (1,)], EXPECTED, HINTS)
    assert answer.endswith(f". {hint}")


def test_the_case_that_is_shown_has_this_mistake_and_no_other():
    results = [([0, 0, 0], 9), ([0, 0, 0], 3)]
    answer = said(lambda n: results[n], [(0,), (1,)], EXPECTED, HINTS)
    assert answer == "<lambda>(1) returned ([0, 0, 0], 3). old versions"


@pytest.mark.parametrize("got", [
    [([0, 0, 1], 7), ([0, 1, 2], 8)],  # numbers that no hint predicts
    [([5, 0, 1], 2), ([5, 1, 2], 3)],
    [([0, 0, 1], 2), ([0, 1, 0], 3)],  # one of the three that "old versions" predicts
])
def test_a_hint_that_predicts_mostly_other_numbers_is_not_given(got):
    assert nearest(got, EXPECTED, HINTS, 1e-6) is None


def test_an_error_in_another_case_does_not_hide_the_hint():
    def f(n):
        if n == 2:
            raise ValueError("no")
        return ([0, 0, 1], 9) if n == 0 else OLD[1]

    assert said(f, [(0,), (2,), (1,)], [*EXPECTED[:1], ([], 0), EXPECTED[1]],
                {"old versions": [OLD[0], ([], 1), OLD[1]]}).endswith(". old versions")


@pytest.mark.parametrize(("got", "expected", "text"), [
    (-3.0, 3.0, "it is right except for the sign"), (4, 3, "it is off by one"),
    ([1, 5], [1, 4], "it is off by one"), ([2, 5], [1, 4], "all of them are off by one"),
    ([2, 3], [1, 4], ""), (2.1, 3.1, ""), (3000.0, 3.0, "it is 1,000 times too large"),
    ({"a": 1.0, "b": 2.0}, {"a": 1024.0, "b": 2048.0}, "all of them are 1,024 times too small"),
    ([1.0], [1.0, 2.0], ""), ("a", "b", ""), (float("nan"), 1.0, ""), (10**400, 1, ""),
    (True, 1, ""), (0, 0.5, ""), (2.0, 0.0, ""),
])
def test_without_a_hint_the_numbers_say_what_they_have_in_common(got, expected, text):
    assert relation(got, expected) == text


def test_what_they_have_in_common_is_in_the_message():
    assert said(lambda: 8, [()], [7], {}).endswith("another number: it is off by one.")
    with pytest.raises(check.Failed, match=r"another number: it is right except for the sign"):
        check.value(-2.0, 2.0)


def test_a_million_empty_lists_are_not_searched_for_numbers(monkeypatch):
    monkeypatch.setattr(hints, "MOST_LEAVES", 10)
    assert dict(hints._leaves([7, *[[]] * 8])) == {(0,): 7}
    assert not [*hints._leaves([7, *[[]] * 1000])]
    assert not [*hints._leaves({"rows": [[]] * 1000, "first": [[] for _ in range(1000)]})]
