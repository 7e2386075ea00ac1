"""A number that nobody computed: it prints as `?`, calculates, and refuses to decide anything."""

from __future__ import annotations

import dis
import math
import sys
from types import FrameType

import torch

from virtualgpu.pytorch.assumptions import Decisions

NAN = float("nan")


class Unknown:
    """The value of a tensor that is too large to be computed, as Tensor.item returns it."""

    assumptions = Decisions()  # of this process; facade.install sets it

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        width = spec.split(".")[0].lstrip("<>=^+- ,0")
        return format("?", f">{width}") if width.isdigit() else "?"

    def _calculate(self, *_: object) -> Unknown:
        return Unknown()

    def _decide(self, *_: object) -> bool:
        return bool(self.assumptions.decide("decides by a value"))

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _calculate
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _calculate
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __bool__ = _decide
    __hash__ = object.__hash__

    def sqrt(self) -> Unknown:  # numpy asks objects for it
        return Unknown()

    exp = log = sqrt

    def item(self) -> Unknown:
        return self

    def __int__(self) -> int:
        return int(self.assumptions.decide("needs a whole number", number=True))

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __float__(self) -> float:
        return as_float(self.assumptions, sys._getframe(1))

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """In an operation on tensors, a number whose value is unknown."""
        def number(value: object) -> object:
            if isinstance(value, Unknown):
                return torch.empty((), dtype=torch.float64, device="cuda")
            return type(value)(map(number, value)) if type(value) in (list, tuple) else value

        return func(*map(number, args), **{k: number(v) for k, v in (kwargs or {}).items()})


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
        return NAN
    return float(assumptions.decide("needs a number (.item() would stay unknown)", number=True))


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
            Unknown.assumptions.note_here("values that were not computed are finite")
            return CHECKS[name]
        return function(*args, **kwargs)
    wrapped.__name__ = name
    return wrapped
