"""Encode the values that cross between a student's code and a check: plain values as bounded JSON.

In the notebook both run in one kernel, but values are still encoded, so that a check behaves the
same there as during grading. Nothing here trusts the bytes it reads.

JSON has no tuples, NaN, int keys or arrays. They travel as an object with one key, the kind; so
does every dict:

    {"dict": [[key, value], ...]}  {"tuple": [...]}  {"float": "nan"}  {"array": {...}}
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing it takes longer than the rest of a sandbox's start
    import numpy as np

MOST_BYTES = 1_000_000
MOST_DEPTH = 20
MOST_DIMENSIONS = 32
# Python's hash of an int is the int itself, modulo 2**61 - 1: larger keys could all be made to
# collide, and a dict of them would take minutes to build.
LARGEST_KEY = 2**60
# Beyond the range of floats, what a check computes with a number fails in its own way; and Python
# refuses to print the largest.
LARGEST = 10**308
ARRAY_KINDS = "biuf"  # NumPy's letters: bool, int, unsigned, float
NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
ALTERNATIVES = {"set": "a sorted list", "frozenset": "a sorted list", "range": "list(...) of it",
                "generator": "list(...) of it", "map": "list(...) of it", "zip": "list(...) of it",
                "filter": "list(...) of it", "dict_keys": "list(...) of it",
                "dict_values": "list(...) of it", "complex": "a pair of floats",
                "Decimal": "a float", "Fraction": "a float", "bytes": "a str or a list of ints",
                "function": "what it returns: call it", "PosixPath": "str(...) of it",
                "Action": "str(...) of it"}


class CannotCross(Exception):
    """Raised for a value that is not plain, or too large; the message says what to do."""


def dumps(value: Any) -> bytes:
    """Return `value` as JSON. Raises CannotCross."""
    text = json.dumps(_encode(value, MOST_DEPTH), allow_nan=False)
    content = text.encode("utf-8", "surrogatepass")
    if len(content) > MOST_BYTES:
        raise CannotCross(f"{len(content):,} bytes are too many: at most {MOST_BYTES:,} may cross")
    return content


def loads(content: bytes) -> Any:
    """Return the value in `content`, which is untrusted. Raises CannotCross."""
    if len(content) > MOST_BYTES:
        raise CannotCross(f"{len(content):,} bytes are too many: at most {MOST_BYTES:,} may cross")
    try:
        return _decode(json.loads(content.decode("utf-8", "surrogatepass"),
                                  parse_constant=_refuse_constant), MOST_DEPTH)
    except (ValueError, RecursionError) as error:
        raise CannotCross(f"not a message: {error}") from error


def copy(value: Any) -> Any:
    """Return `value` as it arrives on the other side. Raises CannotCross."""
    return loads(dumps(value))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} in JSON")


def _encode(value: Any, depth: int) -> Any:
    if depth == 0:
        raise CannotCross(f"more than {MOST_DEPTH} levels of lists and dicts: "
                          "does one contain itself?")
    np = sys.modules.get("numpy")  # if it was never imported, no value comes from it
    if np is not None and issubclass(type(value), np.generic):
        value = value.item()
    if value is None or value is True or value is False:
        return value
    # Subclasses (IntEnum, namedtuple, OrderedDict) are encoded as their base type, ignoring their
    # own methods. An object that only claims a base type (through __class__) does not count.
    kind = type(value)
    if issubclass(kind, int):
        return _bounded(int.__int__(value))
    if issubclass(kind, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else {"float": str(number)}
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, list):
        return [_encode(item, depth - 1) for item in list.__iter__(value)]
    if issubclass(kind, tuple):
        return {"tuple": [_encode(item, depth - 1) for item in tuple.__iter__(value)]}
    if issubclass(kind, dict):
        return {"dict": [[_key(key), _encode(item, depth - 1)] for key, item in dict.items(value)]}
    if np is not None and issubclass(kind, np.ndarray):
        return {"array": _encode_array(value)}
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return {"array": _encode_array(_from_torch(value))}
    instead = ALTERNATIVES.get(kind.__name__, "numbers, text, lists, dicts or arrays")
    raise CannotCross(f"a value of type {kind.__name__} cannot be checked: give {instead}")


def _bounded(number: int) -> int:
    """Return an int that a float can hold, too. Raises CannotCross for another one."""
    if abs(number) > LARGEST:
        raise CannotCross(f"a number is too large: it has {number.bit_length()} bits, and at most "
                          f"{LARGEST.bit_length()} can be checked")
    return number


def _key(key: Any) -> str | int:
    np = sys.modules.get("numpy")
    if np is not None and issubclass(type(key), np.integer):
        key = key.item()
    if issubclass(type(key), str):
        return str.__str__(key)
    if issubclass(type(key), int) and not isinstance(key, bool):
        number = int.__int__(key)
        if abs(number) <= LARGEST_KEY:
            return number
        raise CannotCross("a dict has an int key beyond 2**60: give it as a string")
    raise CannotCross(f"a dict has a key of type {type(key).__name__}: keys are str or int")


def _from_torch(tensor: Any) -> np.ndarray:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:
        raise CannotCross(f"a tensor of {tensor.dtype} on {tensor.device} cannot be checked: "
                          "give tensor.float()") from error


def _encode_array(array: np.ndarray) -> dict[str, Any]:
    import numpy as np

    if array.dtype.kind not in ARRAY_KINDS or array.dtype.itemsize > 8:
        raise CannotCross(f"an array of {array.dtype} cannot be checked: give an array of numbers")
    plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"))
    return {"dtype": plain.dtype.str, "shape": list(array.shape),
            "data": base64.b64encode(plain.tobytes()).decode()}


def _decode(coded: Any, depth: int) -> Any:
    if depth == 0:
        raise CannotCross(f"more than {MOST_DEPTH} levels of lists and dicts")
    if isinstance(coded, list):
        return [_decode(item, depth - 1) for item in coded]
    if type(coded) is int:
        return _bounded(coded)
    if not isinstance(coded, dict):
        return coded
    if len(coded) != 1:
        raise CannotCross(f"not a message: an object with {len(coded)} kinds")
    ((kind, content),) = coded.items()
    if kind == "float" and isinstance(content, str) and content in NON_FINITE:
        return NON_FINITE[content]
    if kind == "tuple" and isinstance(content, list):
        return tuple(_decode(item, depth - 1) for item in content)
    if kind == "dict" and isinstance(content, list):
        return _decode_dict(content, depth - 1)
    if kind == "array" and isinstance(content, dict):
        return _decode_array(content)
    raise CannotCross(f"not a message: kind {str(kind)[:40]!r}")


def _decode_dict(pairs: list[Any], depth: int) -> dict[str | int, Any]:
    if not all(isinstance(pair, list) and len(pair) == 2
               and (type(pair[0]) is str
                    or (type(pair[0]) is int and abs(pair[0]) <= LARGEST_KEY))
               for pair in pairs):
        raise CannotCross("not a message: a dict is pairs of a str or small int and a value")
    result = {key: _decode(item, depth) for key, item in pairs}
    if len(result) != len(pairs):
        raise CannotCross("not a message: a dict has a key twice")
    return result


def _decode_array(content: dict[str, Any]) -> np.ndarray:
    dtype, shape, data = (content.get(name) for name in ("dtype", "shape", "data"))
    sound = (isinstance(dtype, str) and len(dtype) == 3 and dtype[0] in "<|"
             and dtype[1] in ARRAY_KINDS and dtype[2] in "1248" and isinstance(data, str)
             and isinstance(shape, list) and len(shape) <= MOST_DIMENSIONS
             and all(type(size) is int and 0 <= size <= MOST_BYTES for size in shape)
             # An empty array may have a shape whose lists would fill the memory: (10**6, 10**6, 0).
             and math.prod(max(size, 1) for size in shape) <= MOST_BYTES)
    if not sound:
        raise CannotCross("not a message: an array with an invalid dtype, shape, or data")
    import numpy as np

    try:
        raw = base64.b64decode(data, validate=True)
        kind = np.dtype(dtype)
        if len(raw) != math.prod(shape) * kind.itemsize:
            raise CannotCross(f"not a message: {len(raw)} bytes for an array of shape {shape}")
        return np.frombuffer(raw, kind).reshape(shape).copy()
    except (binascii.Error, TypeError, ValueError) as error:
        raise CannotCross(f"not a message: {error}") from error
