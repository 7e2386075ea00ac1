"""Read an untrusted record: check every field's type, range, and length.

player.py checks whether an entry can follow those before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from virtualgpu.core.rules.returns import MOST_TENSORS
from virtualgpu.replay import fields
from virtualgpu.replay.format import (
    FORMAT,
    HOST,
    MOST_BYTES,
    MOST_CHARACTERS,
    MOST_ENTRIES,
    MOST_GROUPS,
    MOST_NAME,
    MOST_OPERATIONS,
    MOST_SECONDS,
    MOST_STREAMS,
    MOST_WORLD,
    NO_STREAM,
    VERSION,
    BadRecord,
)
from virtualgpu.replay.operations import Operation, decode_operation

Field = Callable[["Record", object, str], object]
MEMBERS = {"format", "version", "rank", "world", "streams", "groups", "operations", "entries"}


@dataclass
class Record:
    """A validated record of one rank; format.py explains the fields."""

    rank: int
    world: int
    streams: list[str]
    groups: list[tuple[str, tuple[int, ...]]]
    operations: list[Operation]
    entries: list[list]


def read_record(text: str) -> Record:
    """Parse a record. Raises BadRecord, which names the invalid field."""
    document = fields.members(fields.parse(text, MOST_CHARACTERS, "record"), MEMBERS, "record")
    if document["format"] != FORMAT or type(document["version"]) is not int:
        raise BadRecord(f"record: expected the format {FORMAT!r}, found "
                        f"{fields.short(document['format'])}")
    if document["version"] != VERSION:
        raise BadRecord(f"record: version {fields.short(document['version'])}; this program reads "
                        f"version {VERSION}")
    world = fields.integer(document["world"], 1, MOST_WORLD, "record, world")
    rank = fields.integer(document["rank"], 0, world - 1, "record, rank")
    where = f"record of rank {rank}"
    streams = [fields.text(name, MOST_NAME, f"{where}, streams")
               for name in fields.items(document["streams"], MOST_STREAMS, f"{where}, streams")]
    if len(set(streams)) < len(streams) or not streams:
        raise BadRecord(f"{where}: expected at least one stream, and different names")
    groups = [_group(item, rank, world, f"{where}, group {at}") for at, item in enumerate(
        fields.items(document["groups"], MOST_GROUPS, f"{where}, groups"))]
    if len(set(groups)) < len(groups):
        raise BadRecord(f"{where}: a group occurs twice")
    operations = [decode_operation(item, f"{where}, operation {at}") for at, item in enumerate(
        fields.items(document["operations"], MOST_OPERATIONS, f"{where}, operations"))]
    record = Record(rank, world, streams, groups, operations, [])
    entries = fields.items(document["entries"], MOST_ENTRIES, f"{where}, entries")
    record.entries = [_entry(record, item, f"rank {rank}, entry {at}")
                      for at, item in enumerate(entries)]
    return record


def _group(item: object, rank: int, world: int, where: str) -> tuple[str, tuple[int, ...]]:
    group = fields.members(item, {"name", "ranks"}, where)
    ranks = tuple(fields.integer(one, 0, world - 1, where)
                  for one in fields.items(group["ranks"], world, where))
    if len(set(ranks)) < len(ranks) or rank not in ranks:
        raise BadRecord(f"{where}: expected different ranks, {rank} among them, found "
                        f"{fields.short(list(ranks))}")
    return fields.text(group["name"], MOST_NAME, where), ranks


def _entry(record: Record, item: object, where: str) -> list:
    if type(item) is not list or not item or type(item[0]) is not str or item[0] not in ENTRIES:
        raise BadRecord(f"{where}: expected a list that begins with one of {' '.join(ENTRIES)}, "
                        f"found {fields.short(item)}")
    kinds = ENTRIES[item[0]]
    if len(item) != 1 + len(kinds):
        raise BadRecord(f"{where}: `{item[0]}` has {len(kinds)} fields, found {len(item) - 1}")
    return [item[0], *(kind(record, value, where)
                       for kind, value in zip(kinds, item[1:], strict=True))]


def _integer(least: int, most: int) -> Field:
    return lambda record, value, where: fields.integer(value, least, most, where)


def _index(name: str, least: int = 0) -> Field:
    """Return a check for an index of one of the record's lists."""
    return lambda record, value, where: fields.integer(
        value, least, len(getattr(record, name)) - 1, f"{where}, index of {name}")


def _integers(width: int) -> Field:
    """Return a check for a flat list of `width` numbers per tensor, the first of them a storage."""
    def check(record: Record, value: object, where: str) -> list[int]:
        numbers = fields.items(value, width * MOST_TENSORS, where)
        if len(numbers) % width:
            raise BadRecord(f"{where}: {len(numbers)} numbers, not {width} for each tensor")
        for number in numbers:
            fields.integer(number, HOST, MOST_BYTES, where)
        return numbers
    return check


def _splits(record: Record, value: object, where: str) -> list[list[int]]:
    sides = fields.items(value, 2, where)
    if len(sides) == 1:
        raise BadRecord(f"{where}: expected bytes for each rank, and bytes from each rank")
    return [[fields.integer(one, 0, MOST_BYTES, where)
             for one in fields.items(side, record.world, where)] for side in sides]


def _name(record: Record, value: object, where: str) -> str:
    return fields.text(value, MOST_NAME, where)


def _seconds(record: Record, value: object, where: str) -> float:
    return fields.number(value, MOST_SECONDS, where)


BYTES, NUMBER = _integer(0, MOST_BYTES), _integer(0, MOST_ENTRIES)
STREAM, SOURCE = _index("streams"), _index("streams", NO_STREAM)
MOMENT = (SOURCE, NUMBER)
GROUP, PEER = _index("groups"), _integer(0, MOST_WORLD)
ENTRIES: dict[str, tuple[Field, ...]] = {
    "m": (STREAM,), "a": (BYTES,), "x": (BYTES,), "f": (NUMBER,), "r": (NUMBER, BYTES), "e": (),
    "k": (_index("operations"), STREAM, _integers(2)), "d": (STREAM, _integer(HOST, MOST_ENTRIES),
                                                             BYTES, BYTES, _integer(0, 1)),
    "w": (*MOMENT, STREAM, SOURCE), "v": (*MOMENT, STREAM), "h": (*MOMENT, SOURCE),
    "s": (), "l": (), "z": (_seconds,),
    "c": (GROUP, _name, _name, STREAM, _integers(3), _integers(3), _splits),
    "p": (GROUP, PEER, STREAM, _integers(3)), "q": (GROUP, PEER, _integers(3)), "t": (NUMBER,),
}
