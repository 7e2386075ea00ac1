"""Equal means: the same number, of the same kind."""

import math

import numpy as np
import pytest

from labkit.check.same import difference

SAME = [
    (4, 4), (4.0, 4.0), (4, 4.0), (True, True), (None, None), ("a", "a"), (math.nan, math.nan),
    (math.inf, math.inf), (1 + 1e-9, 1.0), ([1, 2], (1, 2)), ((1, 2.0), [1, 2.0]),
    ({"a": 1, 2: [3]}, {2: [3], "a": 1}), (np.array([1.0, 2.0]), [1.0, 2.0]),
    ([1.0, 2.0], np.array([1.0, 2.0])), (np.array(3), 3), ([], []),
    (np.array(True), True),
    (np.array([1e-12, 1.0]), np.array([0.0, 1.0])), (np.array([math.inf]), np.array([math.inf])),
]
OTHER = [
    (4.0, 4, "//"), (True, 1, "number"), (1, True, "True or False"), (4, 5, "another number"),
    (4.5, 5, "another number"), ("4", 4, "not a text"), (None, 0, "not None"), (0, None, "None"),
    (1 + 1e-3, 1.0, "another number"), (math.nan, 1.0, "another number"),
    (1.0, math.nan, "another number"), (10**400, 1.0, "another number"),
    ("a", "b", "another value"),
    ([1], [1, 2], "it has 1 items"), ([1, 3], [1, 2], "at [1]"), (3, [3], "a list is asked for"),
    ({"a": 1}, {"b": 1}, "'b' is missing"), ({"a": 1, "b": 2}, {"a": 1}, "'b' is not asked for"),
    ({"a": 2}, {"a": 1}, "at ['a']"), ([1], {"a": 1}, "a dict is asked for"),
    (np.zeros((2, 3)), np.zeros((3, 2)), "its shape is (2, 3)"),
    (np.array([1.0, 2.0]), np.array([1.0, 3.0]), "1 of 2 entries"),
    ([[1], [1, 2]], np.zeros((2, 2)), "rows of one length"), (["x"], np.zeros(1), "of numbers"),
    (["x" * 500_000, *[0] * 200_000], np.zeros(1), "of numbers"),  # an array of it: 400 GB
    (np.array([True]), np.array([1.0]), "an array of float64"),
    (np.array([1.0]), np.array([math.inf]), "1 of 1 entries"),
]


@pytest.mark.parametrize(("got", "expected"), SAME)
def test_the_same(got, expected):
    assert difference(got, expected) is None


@pytest.mark.parametrize(("got", "expected", "says"), OTHER)
def test_what_differs_is_said_without_the_answer(got, expected, says):
    result = difference(got, expected)
    assert says in result
    if isinstance(expected, float | int) and not isinstance(expected, bool):
        assert str(expected) not in result.replace(str(got), "")


def test_a_tolerance_can_be_given():
    assert difference(1.01, 1.0, rel=0.02) is None
    assert difference([1.01], [1.0], rel=0.001)
