"""Declare flags as dataclass fields, and read the table of flags."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

from minimegatron.arguments.table.bounds import Bound

TYPES = {each.__name__: each for each in (bool, int, float, str)}
LARGEST_INTEGER = 10**12  # a larger number is a typing error that would only exhaust the memory


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
class RelatedFlags:
    """Flags of which one must be given along with another flag, or none may be.

    Attributes:
        fields: their names.
        message: the error; {flag} and {value} are the flag's own, and any other name in braces is
            that field's value.
    """

    fields: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Flag:
    """One line of the table: a flag of the command line, or a derived field of Config."""

    default: Any
    affects: Effect
    name: str = ""  # the field's, which table_of fills in
    type: type | None = None  # converts the value, or each of several; None for a derived field
    help: str = ""
    aliases: tuple[str, ...] = ()
    choices: tuple[Any, ...] = ()
    nargs: str | None = None  # of argparse, for a flag that takes several values
    required: bool = False  # for training
    bounds: tuple[Bound, ...] = ()
    largest: int = LARGEST_INTEGER  # of the accepted integers
    needs: RelatedFlags | None = None  # one of these must be given too
    excludes: RelatedFlags | None = None  # none of these may be given too
    sets: tuple[str, ...] = ()  # other fields that the checks set from this one
    today: Mapping[str, str] | None = None  # old names of the flag, each with the one it has today
    off: tuple[str, ...] = ()  # names of the flag that turns a True default off
    path: bool = False  # whether the value is a file or a folder that is read
    estimate_with: Any = None  # what --estimate uses if this required flag is not given
    derived: bool = False  # whether the checks compute it, so that it is no flag

    @property
    def spelling(self) -> str:
        return spelled(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names of the flag on the command line."""
        return self.off or tuple(dict.fromkeys((self.spelling, *self.aliases)))


def flag(default: Any, help: str, *aliases: str, affects: Effect,
         bounds: Bound | tuple[Bound, ...] = (), **about: Any) -> Any:
    """Return a dataclass field that is also a command-line flag: --field-name.

    A field whose default is False becomes a switch; one whose default is True needs `off`. `about`
    are more attributes of Flag, which comments on them; the type is that with which the annotation
    begins, unless `type` is given.
    """
    bounds = bounds if isinstance(bounds, tuple) else (bounds,)
    declared = Flag(default, affects, help=help, aliases=aliases, bounds=bounds, **about)
    return field(default=default, metadata={"flag": declared})


def derived(default: Any, *, affects: Effect) -> Any:
    """Return a dataclass field that is no flag: the checks replace its default."""
    return field(default=default, metadata={"flag": Flag(default, affects, derived=True)})


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
        declared = each.metadata.get("flag")
        if declared is None:
            raise TypeError(f"{config.__name__}.{each.name}: declare it with flag() or derived()")
        kind = declared.type or TYPES.get(str(each.type).partition(" ")[0])
        if kind is None and not declared.derived:
            raise TypeError(f"{config.__name__}.{each.name}: {each.type} needs type=")
        table[each.name] = replace(declared, name=each.name, type=kind)
    return table
