"""A number that was not computed: it prints as `?`, supports arithmetic, and cannot be compared."""

from __future__ import annotations

import dis
import json
import json.encoder
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Protocol

import torch

from virtualgpu.pytorch.assumptions import BRANCHES, Decisions

NAN = float("nan")
FINITE = "values that were not computed are finite"
PRINTED = "`nan` printed by formatting a float stands for a value that was not computed"
IN_JSON = "`null` in JSON stands for a value that was not computed"


# Packages that only log or draw numbers: there, float() of an unknown number is nan.
LOGGERS = {"aim", "clearml", "comet_ml", "dvclive", "matplotlib", "mlflow", "neptune", "plotly",
           "swanlab", "tensorboard", "tensorboardX", "torch.utils.tensorboard", "tqdm", "trackio",
           "wandb"}


class TokenComparisons(Protocol):
    """What inference assumes of tokens (tokens.py)."""

    def active(self) -> bool: ...

    def equal(self, other: object, frame: FrameType) -> bool: ...

    def number(self) -> int: ...


class Unknown:
    """The value that Tensor.item returns for a tensor that is too large to be computed.

    To isinstance it is a float or, from a tensor of integers, an int: programs that log numbers ask
    for that. C++ sees that it is neither.
    """

    assumptions = Decisions()  # this process's; facade.install sets it
    tensor: Callable[[Sequence[int], torch.dtype, torch.device], torch.Tensor]
    # creates a tensor of unknown values from shape, dtype, and device; factories.install sets it
    tokens: TokenComparisons | None = None  # tokens.install sets it

    def __init__(self, integer: bool = False) -> None:
        """Args:
            integer: whether it is the value of an integer or a boolean.
        """
        self.integer = integer

    @property
    def __class__(self) -> type:  # what isinstance believes
        return int if self.integer else float

    def __reduce__(self) -> tuple:
        return Unknown, (self.integer,)

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        width = spec.split(".")[0].lstrip("<>=^+- ,0")
        return format("?", f">{width}") if width.isdigit() else "?"

    def _calculate(self, *others: object) -> Unknown:
        if any(isinstance(other, torch.Tensor) for other in others):
            return NotImplemented  # Python then calls the tensor's own method
        return Unknown(self.integer and all(isinstance(other, int) for other in others))

    def _divide(self, *others: object) -> Unknown:
        return NotImplemented if self._calculate(*others) is NotImplemented else Unknown()

    def _decide(self, *_: object) -> bool:
        return bool(self.assumptions.decide(BRANCHES))

    def _comparison(compare: Callable) -> Callable:
        def decide(self, other: object) -> bool:
            """Return the user's answer, or the comparison of the number that the user supplied."""
            answer = self.assumptions.decide(BRANCHES, number=is_number(other))
            return answer if isinstance(answer, bool) else compare(answer, other)
        return decide

    __lt__, __le__ = _comparison(operator.lt), _comparison(operator.le)
    __gt__, __ge__ = _comparison(operator.gt), _comparison(operator.ge)
    _equal, _differ = _comparison(operator.eq), _comparison(operator.ne)
    __bool__ = _decide

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _calculate
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _calculate
    __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = _calculate
    __truediv__ = __rtruediv__ = _divide

    def __divmod__(self, other: object) -> tuple[Unknown, Unknown]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[Unknown, Unknown]:
        return other // self, other % self

    def __eq__(self, other: object) -> bool:
        """Compare; `x == x` and `x == inf` are checks for a finite value."""
        if other is self:
            return assume_finite(True)
        if self._is_token():
            return self.tokens.equal(other, sys._getframe(1))
        return assume_finite(False) if is_infinite(other) else self._equal(other)

    def __ne__(self, other: object) -> bool:
        if other is self:
            return assume_finite(False)
        if self._is_token():
            return not self.tokens.equal(other, sys._getframe(1))
        return assume_finite(True) if is_infinite(other) else self._differ(other)

    def __hash__(self) -> int:
        """Hash: a dictionary that maps integers, such as token IDs, is read by value."""
        return hash(int(self)) if self.integer else object.__hash__(self)

    def sqrt(self) -> Unknown:  # numpy calls these methods of objects
        return Unknown()

    exp = exp2 = expm1 = log = log2 = log10 = log1p = rint = tanh = sqrt

    def item(self) -> Unknown:
        return self

    conjugate = item
    real = property(item)
    imag = 0

    def _is_token(self) -> bool:
        return self.integer and self.tokens is not None and self.tokens.active()

    def __int__(self) -> int:
        if self._is_token():
            return self.tokens.number()
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


def is_number(value: object) -> bool:
    return type(value) in (int, float)


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
        frame: the caller's frame. `"%.3f" % loss` and `f"{float(loss):.3f}"` only print, and
            LOGGERS only log or draw; they get nan.

    Raises:
        NoValue: the caller does anything else, because a float cannot remember that it is unknown.
    """
    code = frame.f_code.co_code
    offset = frame.f_lasti
    if (dis.opname[code[offset]] == "BINARY_OP" and code[offset + 1] == REMAINDER) or (
            is_formatted(frame)):
        assumptions.note(PRINTED)
        return NAN
    package = logger(frame.f_globals.get("__name__", ""))
    if package is not None:
        assumptions.note(f"`nan` in {package} stands for a value that was not computed")
        return NAN
    return float(assumptions.decide("needs a float (.item() would keep it unknown)", number=True))


def is_formatted(frame: FrameType) -> bool:
    """Return whether an f-string formats the result of the call that a frame is in."""
    later = (one.opname for one in dis.get_instructions(frame.f_code)
             if one.offset > frame.f_lasti and one.opname not in ("CACHE", "LOAD_CONST"))
    return next(later, "").startswith("FORMAT_")


def logger(module: str) -> str | None:
    """Return the package of LOGGERS that a module belongs to, or None."""
    parts = module.split(".")
    for package in (parts[0], ".".join(parts[:3])):
        if package in LOGGERS:
            return package
    return None


REMAINDER = next(number for number, (_, symbol) in enumerate(dis._nb_ops) if symbol == "%")
CHECKS = {"isnan": False, "isinf": False, "isfinite": True}
OF_SERIES = {"fsum", "dist", "sumprod"}  # functions of `math` whose arguments are series
OF_INTEGERS = {"ceil", "comb", "factorial", "floor", "gcd", "isqrt", "lcm", "perm", "trunc"}


def patch_math() -> None:
    """Make the functions of `math` return unknown numbers for unknown arguments."""
    for name in dir(math):
        function = getattr(math, name)
        if callable(function) and not name.startswith("_"):
            setattr(math, name, propagating(name, function))


def propagating(name: str, function):
    def wrapped(*args, **kwargs):
        if name in OF_SERIES:
            args = [list(item) if isinstance(item, Iterable) else item for item in args]
        if any(map(has_unknown if name in OF_SERIES else is_unknown, args)):
            if name not in CHECKS:
                return Unknown(name in OF_INTEGERS)
            return assume_finite(CHECKS[name])
        return function(*args, **kwargs)
    wrapped.__name__ = name
    return wrapped


def is_unknown(value: object) -> bool:
    return type(value) is Unknown


def has_unknown(data: object) -> bool:
    """Return whether nested lists contain an unknown number."""
    if type(data) in (list, tuple):
        return any(map(has_unknown, data))
    return type(data) is Unknown


def is_object_array(data: object) -> bool:
    """Return whether this is a numpy array of objects, such as unknown numbers."""
    return str(getattr(data, "dtype", "")) == "object"


def patch_json() -> None:
    """Make json write unknown numbers as null."""
    default, make = json.JSONEncoder.default, json.encoder._make_iterencode

    def null() -> None:
        Unknown.assumptions.note(IN_JSON)

    def shown(self: json.JSONEncoder, value: object) -> object:
        return null() if type(value) is Unknown else default(self, value)

    def text(original):
        def written(value: object) -> str:
            return original(value) if type(value) is not Unknown else null() or "null"
        return written

    def iterencode(markers, default, encoder, indent, floatstr, *others):
        """Write in Python, which `indent` needs; there, unknown numbers are floats and ints."""
        return make(markers, default, encoder, indent, text(floatstr), *others,
                    _intstr=text(int.__repr__))

    json.JSONEncoder.default = shown
    json.encoder._make_iterencode = iterencode
