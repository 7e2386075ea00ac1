"""Compare a student's value with the expected one, including its type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

NEAR = 1e-6  # relative; far above the rounding of float64 operations in another order


def difference(got: Any, expected: Any, rel: float = NEAR) -> str | None:
    """Return None if the values are the same, or a difference that does not reveal the answer.

    Both are plain values (labkit.check.wire). If `expected` is an int, only an int
    matches; if it is a float, an int matches, too. Lists, tuples, and arrays are compared item by
    item, regardless of which of these they are.
    """
    if isinstance(got, np.ndarray) and got.ndim == 0 and not isinstance(expected, np.ndarray):
        got = got.item()
    if isinstance(expected, list | tuple | np.ndarray):
        return _sequence_difference(got, expected, rel)
    if isinstance(expected, dict):
        return _dict_difference(got, expected, rel)
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        if type(got) is not type(expected):
            return f"{_kind(expected)} is asked for, not {_kind(got)}"
        return None if got == expected else "another value"
    return _number_difference(got, expected, rel)


def _kind(value: Any) -> str:
    kinds = {bool: "True or False", str: "a text", int: "a whole number (int)", float: "a float",
             list: "a list", tuple: "a tuple", dict: "a dict", np.ndarray: "an array"}
    return "None" if value is None else kinds.get(type(value), type(value).__name__)


def _number_difference(got: Any, expected: int | float, rel: float) -> str | None:
    if isinstance(got, bool) or not isinstance(got, int | float):
        return f"a number is asked for, not {_kind(got)}"
    if isinstance(expected, int):
        if isinstance(got, int):
            return None if got == expected else "another number"
        if got == expected:
            return f"{got} is a float; a whole number (int) is asked for: // divides without one"
        return "another number"
    try:
        both_nan = math.isnan(expected) and math.isnan(got)
        same = both_nan or math.isclose(got, expected, rel_tol=rel, abs_tol=0.0)
    except OverflowError:  # an int beyond the range of floats
        same = False
    return None if same else "another number"


def _sequence_difference(got: Any, expected: Any, rel: float) -> str | None:
    if not isinstance(got, list | tuple | np.ndarray):
        return f"{_kind(expected)} is asked for, not {_kind(got)}"
    if isinstance(expected, np.ndarray):
        return _array_difference(got, expected, rel)
    if len(got) != len(expected):  # first, since a million rows take a second to become lists
        return f"it has {len(got)} items, which is not the right number"
    if isinstance(got, np.ndarray):
        got = got.tolist()
    for position, (one, other) in enumerate(zip(got, expected, strict=True)):
        mismatch = difference(one, other, rel)
        if mismatch:
            return f"at [{position}]: {mismatch}"
    return None


def _array_difference(got: Any, expected: np.ndarray, rel: float) -> str | None:
    if not _is_numeric(got):  # NumPy would pad every string to the longest one
        return "an array of numbers is asked for"
    try:
        array = np.asarray(got)
    except ValueError:  # rows of different lengths
        return "an array is asked for, with rows of one length"
    if array.dtype.kind not in "biuf":
        return "an array of numbers is asked for"
    if array.shape != expected.shape:
        return f"its shape is {tuple(array.shape)}, which is not the right one"
    if (array.dtype.kind == "b") != (expected.dtype.kind == "b"):
        return f"an array of {expected.dtype} is asked for, not of {array.dtype}"
    # Sums over many items cancel, so the error is relative to the array's largest entry.
    finite = expected[np.isfinite(expected)].astype(float)
    size = float(np.max(np.abs(finite), initial=0.0))
    wrong = ~np.isclose(array, expected, rtol=rel, atol=rel * size, equal_nan=True)
    if not wrong.any():
        return None
    where = [int(at) for at in np.argwhere(wrong)[0]]
    return f"{int(wrong.sum())} of {wrong.size} entries are other numbers, first at {where}"


def _is_numeric(got: Any) -> bool:
    if isinstance(got, list | tuple):
        return all(map(_is_numeric, got))
    return isinstance(got, bool | int | float | np.ndarray)


def _dict_difference(got: Any, expected: dict, rel: float) -> str | None:
    if not isinstance(got, dict):
        return f"a dict is asked for, not {_kind(got)}"
    for key, value in expected.items():
        if key not in got:
            return f"the key {key!r} is missing"
        mismatch = difference(got[key], value, rel)
        if mismatch:
            return f"at [{key!r}]: {mismatch}"
    extra = [key for key in got if key not in expected]
    return f"the key {extra[0]!r} is not asked for" if extra else None
