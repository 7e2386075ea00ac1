"""Refuse what a stand-in does not model, by its name."""

from __future__ import annotations

from collections.abc import Callable

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line


def refuse(function: str, **arguments: object) -> None:
    """Raise NoValue for the first argument that is given; None stands for one that is not."""
    for name, value in arguments.items():
        if value is not None:
            raise NoValue(f"{program_line()}: {function}({name}=..) is not modeled on virtual "
                          "GPUs; call it without that argument")


class NotModeled(NoValue, AttributeError):
    """A part of a package that its stand-in lacks. To hasattr, it does not exist."""


def missing(module: str) -> Callable[[str], object]:
    """Return the __getattr__ of a stand-in's module, which refuses what it lacks by name."""
    def get(name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        raise NotModeled(f"{program_line()}: {module}.{name} is not modeled on virtual GPUs")
    return get
