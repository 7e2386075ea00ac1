"""A number that was not computed: it prints as `?`, supports arithmetic, and cannot be compared."""

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
    """The value that Tensor.item returns for a tensor that is too large to be computed."""

    assumptions = Decisions()  # this process's; facade.install sets it
    tensor: Callable[[Sequence[int], torch.dtype, torch.device], torch.Tensor]
    # creates a tensor of unknown values from shape, dtype, and device; factories.install sets it

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        width = spec.split(".")[0].lstrip("<>=^+- ,0")
        return format("?", f">{width}") if width.isdigit() else "?"

    def _calculate(self, *others: object) -> Unknown:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented  # Python then calls the tensor's own method
        return Unknown()

    def _decide(self, *_: object) -> bool:
        return bool(self.assumptions.decide("branches on a value"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _calculate
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _calculate
    def __eq__(self, other: object) -> bool:
        """Compare; `x == x` and `x == inf` are checks for a finite value."""
        if other is self:
            return assume_finite(True)
        return assume_finite(False) if is_infinite(other) else self._decide()

    def __ne__(self, other: object) -> bool:
        if other is self:
            return assume_finite(False)
        return assume_finite(True) if is_infinite(other) else self._decide()

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = _decide
    __hash__ = object.__hash__

    def sqrt(self) -> Unknown:  # numpy calls this method of objects
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
        """Run a numpy function on objects; checks for NaN and infinity assume a finite value."""
        if method == "__call__" and ufunc.__name__ in CHECKS:
            return assume_finite(CHECKS[ufunc.__name__])
        return getattr(ufunc, method)(*map(in_array, inputs), **options)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Run an operation on tensors with a scalar tensor of unknown value in this one's place."""
        operand = next((item for item in args if isinstance(item, torch.Tensor)), None)
        dtype = operand.dtype if operand is not None and operand.is_floating_point() else None
        device = torch.device("cuda") if operand is None else operand.device

        def number(value: object) -> object:
            if isinstance(value, Unknown):
                return cls.tensor((), dtype or torch.get_default_dtype(), device)
            return type(value)(map(number, value)) if type(value) in (list, tuple) else value

        return func(*map(number, args), **{k: number(v) for k, v in (kwargs or {}).items()})


def assume_finite(answer: bool) -> bool:
    """Return the answer for a finite value, and record that assumption."""
    Unknown.assumptions.note_here(FINITE)
    return answer


def is_infinite(value: object) -> bool:
    return isinstance(value, float) and math.isinf(value)


def in_array(value: object) -> object:
    """Return an unknown number in a numpy array of objects; return other values unchanged."""
    if type(value) is not Unknown:
        return value
    numpy = sys.modules["numpy"]  # numpy called this, and nothing else here requires it
    array = numpy.empty((), dtype=object)
    array[()] = value
    return array


def as_float(assumptions: Decisions, frame: FrameType) -> float:
    """Return float() of an unknown value.

    Args:
        assumptions: this run's assumptions.
        frame: the caller's frame. `"%.3f" % loss` only prints, so it gets nan.

    Raises:
        NoValue: the caller does anything else, because a float cannot remember that it is unknown.
    """
    code = frame.f_code.co_code
    offset = frame.f_lasti
    if dis.opname[code[offset]] == "BINARY_OP" and code[offset + 1] == REMAINDER:
        assumptions.note(PRINTED)
        return NAN
    return float(assumptions.decide("needs a float (.item() would keep it unknown)", number=True))


REMAINDER = next(number for number, (_, symbol) in enumerate(dis._nb_ops) if symbol == "%")
CHECKS = {"isnan": False, "isinf": False, "isfinite": True}


def patch_math() -> None:
    """Make the functions of `math` return unknown numbers for unknown arguments."""
    for name in dir(math):
        function = getattr(math, name)
        if callable(function) and not name.startswith("_"):
            setattr(math, name, propagating(name, function))


def propagating(name: str, function):
    def wrapped(*args, **kwargs):
        if any(type(item) is Unknown for item in args):
            if name not in CHECKS:
                return Unknown()
            return assume_finite(CHECKS[name])
        return function(*args, **kwargs)
    wrapped.__name__ = name
    return wrapped


def patch_json() -> None:
    """Make json write unknown numbers as null."""
    default = json.JSONEncoder.default

    def shown(self: json.JSONEncoder, value: object) -> object:
        if type(value) is not Unknown:
            return default(self, value)
        Unknown.assumptions.note(IN_JSON)
        return None

    json.JSONEncoder.default = shown
