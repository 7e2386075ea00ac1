"""Declare flags as dataclass fields, and read the table of flags."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any

TYPES = {each.__name__: each for each in (bool, int, float, str)}
LARGEST_INTEGER = 10**12  # a larger number is a typing error that would only exhaust the memory
A_YEAR = 365 * 24 * 60  # minutes
LARGEST_POWER = 2.0**127  # of the powers of two that fp32 can represent


@dataclass(frozen=True)
class Bound:
    """An interval of accepted values.

    Attributes:
        message: what an error says of any other value; {flag} stands for the flag's spelling.
        low, high: the ends, which are accepted.
        above, below: the ends, which are not.
    """

    message: str
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def accepts(self, value: float) -> bool:
        return self.low <= value <= self.high and self.above < value < self.below


AT_LEAST_1 = Bound("must be at least 1", low=1)
NOT_NEGATIVE = Bound("must not be negative", low=0)
POSITIVE = Bound("must be greater than 0", above=0)
FRACTION = Bound("must be in [0, 1)", low=0, below=1)
SEED = Bound(f"must be from 0 to {2**32 - 1}", low=0, high=2**32 - 1)
UP_TO_A_YEAR = Bound(f"nearest: {A_YEAR}", high=A_YEAR)
SCALE = "must be greater than 0 and at most 2**127; nearest: {flag} "
LOSS_SCALE = (Bound(f"{SCALE}1.0", above=0), Bound(f"{SCALE}{LARGEST_POWER}", high=LARGEST_POWER))
COUNT = Bound("must be at least 1; nearest: {flag} 1", low=1)


class Effect(enum.Flag):
    """Aspects of a run that depend on a flag."""

    NOTHING = 0  # reports, output files, and timeouts
    RESULTS = enum.auto()  # losses and parameters, but neither the time nor the memory of a step
    PASSES = enum.auto()  # the time or memory of a micro-batch's passes, or of an optimizer step
    SCHEDULE = enum.auto()  # how many passes a step has, and where and when each of them runs
    HARDWARE = enum.auto()  # the GPUs and the network that a run is modeled on
    STATE = enum.auto()  # the saved parameters, or how ranks partition them
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
    unless: tuple[str, ...] = ()  # words of the command line with which it is not required
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


@cache
def names_affecting(effect: Effect, config: type) -> tuple[str, ...]:
    """Return the names of the fields that affect any part of `effect`.

    Args:
        effect: one or several effects.
        config: the dataclass that has the flags.
    """
    return tuple(flag.name for flag in table_of(config).values() if flag.affects & effect)


def alternatives(config: type) -> dict[str, tuple[str, ...]]:
    """Return each field that several flags set, with the other flags that set it."""
    table = table_of(config).values()
    ends = dict.fromkeys(end for flag in table for end in flag.sets)
    return {end: tuple(flag.name for flag in table if end in flag.sets) for end in ends}
