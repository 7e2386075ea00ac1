"""Flags that a part of a run depends on, for checkpoints, estimates, and checks of scripts."""

from __future__ import annotations

from functools import cache

from minimegatron.arguments.table.flag import Effect, table_of


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
