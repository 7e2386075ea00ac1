"""Numpy arrays of numbers that were not computed, which programs print, average, and check.

Numpy is imported by torch, if it is installed, and never by this package.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from virtualgpu.pytorch.unknown import CHECKS, Unknown, assume_finite, has_unknown


def unknown_array(shape: Sequence[int], integers: bool) -> Any:
    """Return an array of unknown numbers.

    Args:
        integers: whether the numbers are integers.

    Raises:
        RuntimeError: numpy is not installed; the message is torch's.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise RuntimeError("Numpy is not available")
    array = numpy.empty(shape, dtype=object)
    for place in numpy.ndindex(array.shape):
        array[place] = Unknown(integers)
    return array.view(array_type(numpy))


@functools.cache
def array_type(numpy: Any) -> type:
    """Return the class of these arrays. In checks for NaN and infinity, their numbers are finite.

    Numpy cannot check objects, and so refuses to check a plain array of them.
    """
    def checked(ufunc: Any, array: Any) -> Any:
        values = array.ravel().tolist()
        finite = CHECKS[ufunc.__name__]
        if has_unknown(values):
            assume_finite(finite)  # noted once
        answers = [finite if type(value) is Unknown else bool(ufunc(value)) for value in values]
        return numpy.array(answers, dtype=bool).reshape(array.shape)

    def plain(value: object) -> object:
        return value.view(numpy.ndarray) if isinstance(value, UnknownArray) else value

    class UnknownArray(numpy.ndarray):
        __array_priority__ = 1.0  # the result of a concatenation is one of these, too

        def __array_ufunc__(self, ufunc: Any, method: str, *inputs: object, **options: Any) -> Any:
            if method == "__call__" and ufunc.__name__ in CHECKS:
                return checked(ufunc, plain(inputs[0]))
            if "out" in options:
                options["out"] = tuple(map(plain, options["out"]))
            result = getattr(ufunc, method)(*map(plain, inputs), **options)
            is_array = isinstance(result, numpy.ndarray) and result.dtype == object
            return result.view(UnknownArray) if is_array else result

        def __reduce__(self) -> tuple:  # pickled as a plain array
            return plain(self).__reduce__()

    return UnknownArray
