"""What all stand-ins do: report that they ran, and refuse what they do not model by its name."""

from __future__ import annotations

from collections.abc import Callable

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.packages.finder import PACKAGES
from virtualgpu.pytorch.packed import active_gpu

TOLD: set[str] = set()


def used(package: str) -> None:
    """Let the report say that a stand-in ran; programs import packages that they do not use."""
    if package not in TOLD:
        TOLD.add(package)
        active_gpu().assumptions.note(f"{package} is virtualrun's own model of the package's "
                                      f"kernels, with the interface of version "
                                      f"{PACKAGES[package][1]}")


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
