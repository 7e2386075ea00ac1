"""Proxies for a student's names on the trusted side. A check can call them and pass them to
labkit.check; every other operation raises, because its result would not be the student's.

This module also rebuilds the exceptions that a student's function raised.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.check.sides import Raised

# A check's `for`, `map` or `hasattr` would swallow these, and the grader itself the last one.
STEERING = (StopIteration, StopAsyncIteration, GeneratorExit, MemoryError)


class StudentNameError(TypeError):
    """Raised when a check uses a student's name in a way that only its own process could answer."""


NAMES = """abs add aenter aexit aiter and anext await bool bytes complex contains delattr
delitem dir divmod enter eq exit float floor floordiv format ge getattr getitem gt hash
iadd iand ifloordiv ilshift imatmul imod imul index int invert ior ipow irshift isub iter itruediv
ixor le len length_hint lshift lt matmul missing mod mul ne neg next or pos pow radd rand rdivmod
reduce reduce_ex repr reversed rfloordiv rlshift rmatmul rmod rmul ror round rpow rrshift rshift
rsub rtruediv rxor setattr setitem sizeof str sub truediv trunc xor fspath buffer copy deepcopy
getstate getnewargs getnewargs_ex instancecheck subclasscheck"""
OPERATIONS = [name for name in NAMES.split() if name != "getattr"]


def _refusing(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *arguments: Any, **keywords: Any) -> NoReturn:
        name = object.__getattribute__(self, "name")
        raise StudentNameError(
            f"{name} is the student's and exists only in the sandbox: a check may call it or pass "
            f"it to check.value, function, raises, or call (this was __{operation}__)")

    return refuse


class Proxy:
    """A name of the student's that does not hold a plain value."""

    __slots__ = ("name", "remote")

    def __init__(self, name: str, remote: Any) -> None:
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "remote", remote)

    def __getattribute__(self, attribute: str) -> NoReturn:
        _refusing(attribute.strip("_"))(self)
        raise AssertionError


for _operation in OPERATIONS:
    setattr(Proxy, f"__{_operation}__", _refusing(_operation))


class Function(Proxy):
    """A student's function, which runs in the sandbox when it is called with plain values."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        result = object.__getattribute__(self, "remote").call(self, arguments, keywords)
        if isinstance(result, Raised):
            raise rebuilt(result)
        return result


def name_of(thing: Any) -> str | None:
    """Return the name that a proxy stands for; None for anything else."""
    return object.__getattribute__(thing, "name") if type(thing) in (Proxy, Function) else None


def rebuilt(error: Raised) -> Exception:
    """Return an exception of the same class if Python has it, or else one with the same name and
    the nearest base class that Python has."""
    base: type[Exception] = Exception
    for name in error.names:
        known = getattr(builtins, name, None)
        if isinstance(known, type) and issubclass(known, Exception):
            base = known
            break
    if issubclass(base, STEERING):
        base = RuntimeError
    kind = type(error.names[0] if error.names else "Exception", (base,),
                {"__init__": _keep, "__str__": lambda self: self.text, "__module__": "builtins"})
    return kind(error.text)


def _keep(self: Exception, text: str) -> None:
    self.text = text
