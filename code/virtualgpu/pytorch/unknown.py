"""A number that nobody computed: it prints as `?`, calculates, and refuses to decide anything."""

from __future__ import annotations

import dis
import json
import math
import sys
from collections.abc import Callable, Sequence
from types import FrameType

import torch

from virtualgpu.pytorch.assumptions import Decisions

NAN = float("nan")
FINITE = "values that were not computed are finite"
PRINTED = "`nan` printed by % formatting stands for a value that was not computed"
IN_JSON = "`null` in JSON stands for a value that was not computed"


class Unknown:
    """The value of a tensor that is too large to be computed, as Tensor.item returns it."""

    assumptions = Decisions()  # of this process; facade.install sets it
    tensor: Callable[[Sequence[int], torch.dtype, torch.device], torch.Tensor]
    # of unknown values, by shape, dtype, and device; factories.install sets it

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        width = spec.split(".")[0].lstrip("<>=^+- ,0")
        return format("?", f">{width}") if width.isdigit() else "?"

    def _calculate(self, *others: object) -> Unknown:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented  # the tensor's own method comes next
        return Unknown()

    def _decide(self, *_: object) -> bool:
        return bool(self.assumptions.decide("branches on a value"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _calculate
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _calculate
    def __eq__(self, other: object) -> bool:
        """`x == x` and `x == inf` ask whether a value is finite."""
        if other is self:
            return assume_finite(True)
        return assume_finite(False) if is_infinite(other) else self._decide()

    def __ne__(self, other: object) -> bool:
        if other is self:
            return assume_finite(False)
        return assume_finite(True) if is_infinite(other) else self._decide()

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _decide
    __hash__ = object.__hash__

    def sqrt(self) -> Unknown:  # numpy asks objects for it
        return Unknown()

    exp = log = sqrt

    def item(self) -> Unknown:
        return self

    def __int__(self) -> int:
        return int(self.assumptions.decide("needs an integer", number=True))

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __float__(self) -> float:
        return as_float(self.assumptions, sys._getframe(1))

    def __array_ufunc__(self, ufunc, method: str, *inputs: object, **options: object) -> object:
        """In numpy, an object; its checks for NaN and infinity assume that it is finite."""
        if method == "__call__" and ufunc.__name__ in CHECKS:
            return assume_finite(CHECKS[ufunc.__name__])
        return getattr(ufunc, method)(*map(in_array, inputs), **options)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """In an operation on tensors, a tensor of one unknown value beside them."""
        beside = next((item for item in args if isinstance(item, torch.Tensor)), None)
        dtype = beside.dtype if beside is not None and beside.is_floating_point() else None
        device = torch.device("cuda") if beside is None else beside.device

        def number(value: object) -> object:
            if isinstance(value, Unknown):
                return cls.tensor((), dtype or torch.get_default_dtype(), device)
            return type(value)(map(number, value)) if type(value) in (list, tuple) else value

        return func(*map(number, args), **{k: number(v) for k, v in (kwargs or {}).items()})


def assume_finite(answer: bool) -> bool:
    """Return the answer that a finite value gives, and note that nobody computed it."""
    Unknown.assumptions.note_here(FINITE)
    return answer


def is_infinite(value: object) -> bool:
    return isinstance(value, float) and math.isinf(value)


def in_array(value: object) -> object:
    """An unknown number as numpy takes it, in an array of objects."""
    if type(value) is not Unknown:
        return value
    numpy = sys.modules["numpy"]  # numpy called this, and nothing else here requires it
    array = numpy.empty((), dtype=object)
    array[()] = value
    return array


def as_float(assumptions: Decisions, frame: FrameType) -> float:
    """Return what float() gives for an unknown value.

    Args:
        assumptions: of this run.
        frame: where it is asked for. `"%.3f" % loss` only prints, and prints nan.

    Raises NoValue elsewhere: a float cannot remember that it is unknown.
    """
    code = frame.f_code.co_code
    at = frame.f_lasti
    if dis.opname[code[at]] == "BINARY_OP" and code[at + 1] == REMAINDER:
        assumptions.note(PRINTED)
        return NAN
    return float(assumptions.decide("needs a float (.item() would keep it unknown)", number=True))


REMAINDER = next(number for number, (_, symbol) in enumerate(dis._nb_ops) if symbol == "%")
CHECKS = {"isnan": False, "isinf": False, "isfinite": True}


def patch_math() -> None:
    """Let the functions of `math` pass unknown numbers on."""
    for name in dir(math):
        function = getattr(math, name)
        if callable(function) and not name.startswith("_"):
            setattr(math, name, passing_on(name, function))


def passing_on(name: str, function):
    def wrapped(*args, **kwargs):
        if any(type(item) is Unknown for item in args):
            if name not in CHECKS:
                return Unknown()
            return assume_finite(CHECKS[name])
        return function(*args, **kwargs)
    wrapped.__name__ = name
    return wrapped


def patch_json() -> None:
    """Let JSON show unknown numbers as null."""
    default = json.JSONEncoder.default

    def shown(self: json.JSONEncoder, value: object) -> object:
        if type(value) is not Unknown:
            return default(self, value)
        Unknown.assumptions.note(IN_JSON)
        return None

    json.JSONEncoder.default = shown
