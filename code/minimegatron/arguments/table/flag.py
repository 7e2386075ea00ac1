"""Declare flags as dataclass fields, and read the table of flags."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from minimegatron.arguments.table.bounds import Bound

TYPES = {each.__name__: each for each in (bool, int, float, str)}
USUAL_MOST = 10**12  # a larger number is a typing error that would only exhaust the memory


class Effect(enum.Flag):
    """Aspects of a run that depend on a flag."""

    NOTHING = 0  # reports, output files, and timeouts
    RESULTS = enum.auto()  # losses and parameters, but neither the time nor the memory of a step
    PASSES = enum.auto()  # the time or memory of a micro-batch's passes, or of an optimizer step
    SCHEDULE = enum.auto()  # how many passes a step has, and where and when each of them runs
    HARDWARE = enum.auto()  # the GPUs and the network that a run is modeled on
    STATE = enum.auto()  # the saved parameters: resuming with another value is an error
    COST = PASSES | SCHEDULE | HARDWARE


NOTHING, RESULTS, STATE = Effect.NOTHING, Effect.RESULTS, Effect.STATE
PASSES, SCHEDULE, HARDWARE, COST = Effect.PASSES, Effect.SCHEDULE, Effect.HARDWARE, Effect.COST


@dataclass(frozen=True)
class Others:
    """Other flags: one of them must be given along with a flag, or none may be.

    Attributes:
        fields: their names.
        message: the error; {flag} and {value} are the flag's own, and any other name in braces is
            that field's value.
    """

    fields: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Flag:
    """One line of the table; see `flag` for the meaning of what is declared."""

    name: str
    default: Any
    type: type | None  # of the value, or of each value if there are several
    affects: Effect
    help: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    nargs: str | None = None
    required: bool = False
    bounds: tuple[Bound, ...] = ()
    most: int = USUAL_MOST
    needs: Others | None = None
    excludes: Others | None = None
    sets: tuple[str, ...] = ()
    today: Mapping[str, str] | None = None
    off: tuple[str, ...] = ()
    path: bool = False
    estimate_with: Any = None
    derived: bool = False

    @property
    def spelling(self) -> str:
        return spelled(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names of the flag on the command line."""
        return self.off or tuple(dict.fromkeys((self.spelling, *self.aliases)))


def flag(default: Any, help: str, *aliases: str, affects: Effect, type: type | None = None,
         choices: tuple[Any, ...] = (), nargs: str | None = None, required: bool = False,
         bounds: Bound | tuple[Bound, ...] = (), most: int = USUAL_MOST,
         needs: Others | None = None, excludes: Others | None = None, sets: tuple[str, ...] = (),
         today: Mapping[str, str] | None = None, off: tuple[str, ...] = (), path: bool = False,
         estimate_with: Any = None) -> Any:
    """Return a dataclass field that is also a command-line flag: --field-name.

    A field whose default is False becomes a switch; one whose default is True needs `off`.

    Args:
        default: the value without the flag.
        help: the text in --help.
        aliases: other names of the flag.
        affects: what depends on the value.
        type: converts the value; by default, the type that the annotation begins with.
        choices: the accepted values, if they are few.
        nargs: of argparse, for a flag that takes several values.
        required: whether training needs the flag.
        bounds: the accepted interval, or several.
        most: the largest accepted whole number.
        needs: other flags, one of which must be given too.
        excludes: other flags, none of which may be given too.
        sets: the fields that this flag sets when the command line is checked, if they are others.
        today: old names of the flag, each with the name it has today.
        off: the names of the flag that turns a True default off.
        path: whether the value is a file or a folder that is read.
        estimate_with: the value that --estimate uses if this required flag is not given.
    """
    about = {name: value for name, value in locals().items() if name != "default"}
    about["bounds"] = bounds if isinstance(bounds, tuple) else (bounds,)
    return field(default=default, metadata={"flag": about})


def derived(default: Any, *, affects: Effect) -> Any:
    """Return a dataclass field that is no flag: the checks compute its value.

    Args:
        default: the value before the checks.
        affects: what depends on the value.
    """
    return field(default=default,
                 metadata={"flag": {"type": None, "affects": affects, "derived": True}})


def spelled(name: str) -> str:
    """Return a field as one writes it on the command line."""
    return "--" + name.replace("_", "-")


@cache
def table_of(config: type) -> Mapping[str, Flag]:
    """Return the flags of a dataclass and its derived fields, by name.

    Raises TypeError for a field that is not declared with `flag` or `derived`, or whose annotation
    does not say how to convert its value.
    """
    table = {}
    for each in fields(config):
        about = each.metadata.get("flag")
        if about is None:
            raise TypeError(f"{config.__name__}.{each.name}: declare it with flag() or derived()")
        kind = about["type"] or TYPES.get(str(each.type).partition(" ")[0])
        if kind is None and "derived" not in about:
            raise TypeError(f"{config.__name__}.{each.name}: {each.type} needs type=")
        table[each.name] = Flag(each.name, each.default, **{**about, "type": kind})
    return table
