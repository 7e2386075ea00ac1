"""Define which of the trainer's flags a script check compares, and when two values are equal.

A flag is ignored if neither a job's results nor its time or memory depend on it: reports, output
paths, timeouts. Every other flag is compared by its meaning after all checks between flags, so the
spelling in a script does not matter. The trainer's table of flags has what each of them affects.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from minimegatron.arguments import Config
from minimegatron.arguments.flag import NOTHING, alternatives, spelled, table_of
from minimegatron.arguments.table import ESTIMATE, EstimateConfig
from minimegatron.data.index_maps import parse_split
from minimegatron.errors import UserError
from pipeline_schedules import BUILT_IN
from virtualgpu.core import cards
from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net import network

# Other names that `only` accepts: sbatch and torchrun options for the placement of ranks.
NODES, RANKS, GPUS = "--nodes", "--nproc_per_node", "--gpus-per-node"
PLACES = (NODES, RANKS, GPUS)
WAYS = {NODES: (NODES, "-N", "--nnodes"), RANKS: (RANKS, "--nproc-per-node"),
        GPUS: (GPUS, "--gres", "--gpus")}


def compared(config: type[Config]) -> tuple[str, ...]:
    """Return the fields that are compared.

    A flag that sets another field is compared there, and one that only --estimate has is refused
    by the trainer unless --estimate is given, which is compared.
    """
    ends = alternatives(config)
    return tuple(flag.name for flag in table_of(config).values() if flag.name in ends or not (
        flag.affects is NOTHING or flag.sets or flag.derived or flag.needs is ESTIMATE))


TABLE = table_of(EstimateConfig)
SPELLINGS = alternatives(EstimateConfig)
OTHER_SPELLINGS = frozenset(name for names in SPELLINGS.values() for name in names)
COMPARED = compared(EstimateConfig)


class InvalidOnly(ValueError):
    """A name in `only` is not a flag, or is a flag that is never compared; the text says which."""


def settable_fields(only: Sequence[str]) -> frozenset[str]:
    """Return the fields that a student may set, given the flags in `only`.

    A flag in `only` also allows every other flag that sets the same field. Raises InvalidOnly.
    """
    ends: set[str] = set()
    for name in only:
        if name not in PLACES:
            ends |= set(_ends(_field(name)))
    return frozenset(ends | {name for name in OTHER_SPELLINGS if ends.issuperset(_ends(name))})


def _ends(field: str) -> list[str]:
    """Return the compared fields that a field sets."""
    return [end for end, others in SPELLINGS.items() if field in others] or [field]


def _field(name: str) -> str:
    flags = {spelling: flag.name for flag in TABLE.values() if not flag.derived
             for spelling in (flag.spelling, *flag.spellings) if spelling.startswith("--")}
    ignored = {name for name in TABLE if name not in {*COMPARED, *OTHER_SPELLINGS}}
    known = {*flags, *PLACES} - {spelled(field) for field in ignored} | {GPUS}
    if name not in known:
        if name in flags:
            raise InvalidOnly(f"{name} is never compared, since no result, time or memory depends "
                              "on it: leave it out")
        near = get_close_matches(name, sorted(known), n=1)
        hint = f" (nearest: {near[0]})" if near else ", such as --micro-batch-size"
        raise InvalidOnly(f"{name} is not a flag of the trainer{hint}")
    return flags[name]


def spellings(flag: str) -> tuple[str, ...]:
    """Return all spellings of a flag, including other flags that set the same field."""
    if flag in PLACES:
        return WAYS[flag]
    field = _field(flag)
    names = {field, *_ends(field), *SPELLINGS.get(field, ())}
    return tuple(sorted({spelled(name) for name in names}.union(
        *(TABLE[name].aliases for name in names))))


def words_of(config: Config, names: Sequence[str]) -> list[str]:
    """Return the flags for the fields in `names` that differ from their defaults."""
    words = []
    for name in names:
        value, default = getattr(config, name), TABLE[name].default
        if value == default:
            continue
        if default is True:
            words.append(TABLE[name].off[0])
        elif value is True:
            words.append(spelled(name))
        else:
            words += [spelled(name), repr(value) if type(value) is float else str(value)]
    return words


def meaning(name: str, value: Any) -> Any:
    """Return a canonical value that is equal for all equivalent values of a field."""
    if not isinstance(value, str):
        return value
    try:
        if TABLE[name].path or (name == "schedule" and value not in BUILT_IN):
            return normalized_path(value)
        if name == "split":
            return parse_split(value)
        if name == "virtual_network":
            return network.parse(value)
        if name == "device" and value.startswith("virtual:"):
            return cards.find(value.removeprefix("virtual:")).name
    except (UserError, VirtualGpuError):
        pass
    return value


def normalized_path(path: str) -> str:
    """Return a file's normalized path relative to the workspace, where jobs start."""
    if not path.startswith("$LAB_HOME"):
        path = posixpath.join("$LAB_HOME", path)
    return posixpath.normpath(path)
