"""Values that cross between a student's code and a check."""

import collections
import contextlib
import enum
import json
import math
import time
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.check import wire
from labkit.check.wire import CannotCross

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
    | st.dictionaries(
        st.text(max_size=5) | st.integers(-wire.LARGEST_KEY, wire.LARGEST_KEY), inner, max_size=4),
    max_leaves=20)


@given(values)
def test_plain_values_arrive_as_they_were(value):
    assert repr(wire.copy(value)) == repr(value)


@pytest.mark.parametrize("array", [
    np.arange(6, dtype=np.int32).reshape(2, 3), np.array([1.5, math.nan, -math.inf]),
    np.zeros((0, 3), np.float16), np.array(True), np.arange(6).reshape(2, 3).T,
    np.array([1, 2], dtype=">i8")])
def test_arrays_arrive_with_their_kind_and_shape(array):
    arrived = wire.copy([array])[0]
    assert arrived.dtype == array.dtype.newbyteorder("<") and arrived.shape == array.shape
    np.testing.assert_array_equal(arrived, array)


def test_a_tensor_arrives_as_an_array():
    arrived = wire.copy(torch.tensor([[1.0, 2.0]], requires_grad=True))
    assert isinstance(arrived, np.ndarray) and arrived.tolist() == [[1.0, 2.0]]


def test_numbers_of_numpy_become_pythons():
    arrived = wire.copy([np.float64(1.5), np.int32(3), np.bool_(True)])
    assert [type(value) for value in arrived] == [float, int, bool]


def test_subclasses_cross_as_what_they_are_underneath():
    class Kind(enum.IntEnum):
        A = 3

    class EqualToAll(float):
        def __eq__(self, other):
            return True

    Pair = collections.namedtuple("Pair", "a b")
    arrived = wire.copy([Kind.A, EqualToAll(2), Pair(1, 2), collections.OrderedDict(x=1)])
    assert [type(value) for value in arrived] == [int, float, tuple, dict]
    assert arrived[1] != 5


def test_methods_of_subclasses_say_nothing():
    class Lying(list):
        def __iter__(self):
            return iter([9, 9, 9])

        def __len__(self):
            return 3

    class Items(dict):
        def items(self):
            return [("b", 2)]

    class Number(int):
        def __int__(self):
            return 9

    arrived = wire.copy([Lying([1]), Items(a=1), Number(1)])
    assert arrived == [[1], {"a": 1}, 1]


@pytest.mark.parametrize("kind", [list, bool, np.generic, torch.Tensor])
def test_what_only_claims_to_be_of_a_kind_is_not(kind):
    class Claims:
        __class__ = kind

        def __repr__(self):
            raise RuntimeError

    with pytest.raises(CannotCross, match="type Claims"):
        wire.dumps(Claims())
    with pytest.raises(CannotCross, match="a key of type Claims"):
        wire.dumps({Claims(): 1})


def test_a_copy_does_not_lead_back():
    original = {"a": [1, 2]}
    wire.copy(original)["a"].append(3)
    assert original == {"a": [1, 2]}


@pytest.mark.parametrize(("value", "says"), [
    ({1, 2}, "a sorted list"), (range(3), "list"), (Decimal(1), "a float"), (1j, "pair of floats"),
    (b"x", "a str"), (len, "type builtin_function_or_method"), ({(1, 2): 3}, "keys are str or int"),
    ({True: 1}, "keys are str or int"), (np.array([None]), "an array of object"),
    (np.array(["a"]), "an array of numbers"),
    (torch.zeros(2, dtype=torch.bfloat16), "tensor.float()"),
    (10**309, "a number is too large"), ([-10**5000], "16610 bits"),
    ("x" * 1_000_001, "at most 1,000,000"), ({2**60 + 1: 1}, "give it as a string")])
def test_what_cannot_cross_is_refused_with_what_to_give_instead(value, says):
    with pytest.raises(CannotCross) as caught:
        wire.dumps(value)
    assert says in str(caught.value)


def test_a_list_that_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(CannotCross, match="contain itself"):
        wire.dumps(value)


@pytest.mark.parametrize("message", [
    b"1" * 310, b"[" + b"1" * 5000 + b"]", b"", b"{", b"\xff\xfe", b"NaN", b"Infinity",
    b'{"float": "1"}', b'{"tuple": 3}',
    b'{"a": 1, "b": 2}', b"{}", b'{"dict": [[1]]}', b'{"dict": [[null, 1]]}',
    b'{"dict": [[true, 1]]}', b'{"pickle": "x"}',
    b'{"array": {"dtype": "|O8", "shape": [1], "data": ""}}',
    b'{"array": {"dtype": "<f4", "shape": [2], "data": "AAAA"}}',
    b'{"array": {"dtype": "<f4", "shape": [-1], "data": ""}}',
    b'{"array": {"dtype": "<f4", "shape": [true], "data": "AAAAAA=="}}',
    b'{"array": {"dtype": "<f4", "shape": [1], "data": "*"}}',
    b'{"array": {"dtype": "<b8", "shape": [1], "data": "AAAAAAAAAAA="}}',
    b'{"array": {"dtype": "<u3", "shape": [1], "data": "AAAA"}}',
    b'{"array": {"shape": [1000000, 1000000], "dtype": "<f8", "data": ""}}',
    b'{"array": {"shape": [1000000, 1000000, 0], "dtype": "<f8", "data": ""}}',
    b'{"dict": [[1, 2], [1, 3]]}', b'{"dict": [["a", 2], ["a", 3]]}', b'{"dict": [[1.0, 2]]}',
    b"[" * 100_000, b"[" * 25 + b"]" * 25, b"9" * 5000, b" " * 1_000_001])
def test_a_forged_message_is_refused(message):
    with pytest.raises(CannotCross):
        wire.loads(message)


def test_no_keys_collide_on_purpose():
    """37,000 int keys with one hash took 11 s."""
    same = [[(2**61 - 1) * number, 0] for number in range(1, 37_000)]
    far = [[number << 44, 0] for number in range(30_000)]  # alike in the bits that are looked at
    start = time.process_time()
    with pytest.raises(CannotCross):
        wire.loads(json.dumps({"dict": same}).encode())
    assert len(wire.loads(json.dumps({"dict": far}).encode())) == 30_000
    assert time.process_time() - start < 2


@pytest.mark.parametrize("message", [
    b"[]", b'{"tuple":[]}', b"1.5", b'"ab"', b'{"dict":[]}', b'{"float":"nan"}', b"{}", b'""'])
def test_a_message_becomes_no_more_than_100_times_as_large(message):
    """Memory is linear in the bytes, of which a million may come."""
    several = b"[" + b",".join([message] * (30_000 // len(message))) + b"]"
    tracemalloc.start()
    try:
        with contextlib.suppress(CannotCross):
            wire.loads(several)
        assert tracemalloc.get_traced_memory()[1] < 100 * len(several)
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200) | values.map(lambda value: json.dumps(value, default=str).encode()))
def test_any_bytes_are_a_value_or_are_refused(content):
    try:
        value = wire.loads(content)
    except CannotCross:
        return
    assert repr(wire.copy(value)) == repr(value)
