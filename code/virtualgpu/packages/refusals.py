"""Refuse what a stand-in does not model, by its name."""

from __future__ import annotations

from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line


def refuse(function: str, **arguments: object) -> None:
    """Raise NoValue for the first argument that is given; None stands for one that is not."""
    for name, value in arguments.items():
        if value is not None:
            raise NoValue(f"{program_line()}: {function}({name}=..) is not modeled on virtual "
                          "GPUs; call it without that argument")
