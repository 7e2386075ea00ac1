"""Check single fields of an untrusted record. Every function raises BadRecord."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import TypeVar

from virtualgpu.replay.format import BadRecord

T = TypeVar("T")


def short(value: object) -> str:
    """Return a value for an error message, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def integer(value: object, least: int, most: int, where: str) -> int:
    """Return an integer from `least` to `most`."""
    if type(value) is not int or not least <= value <= most:
        raise BadRecord(f"{where}: expected an integer from {least} to {most}, found "
                        f"{short(value)}")
    return value


def number(value: object, most: float, where: str) -> float:
    """Return a finite number from 0 to `most`."""
    if type(value) not in (int, float) or not 0 <= value <= most:  # NaN, too
        raise BadRecord(f"{where}: expected a number from 0 to {most:g}, found {short(value)}")
    return float(value)


def boolean(value: object, where: str) -> bool:
    if type(value) is not bool:
        raise BadRecord(f"{where}: expected true or false, found {short(value)}")
    return value


def text(value: object, most: int, where: str) -> str:
    """Return a string of at most `most` characters."""
    if type(value) is not str or len(value) > most:
        raise BadRecord(f"{where}: expected a string of at most {most} characters, found "
                        f"{short(value)}")
    return value


def items(value: object, most: int, where: str, exactly: bool = False) -> list:
    """Return a list of at most `most` items, or of exactly that many."""
    if type(value) is not list or len(value) > most or (exactly and len(value) < most):
        size = f"{len(value)} items" if type(value) is list else short(value)
        raise BadRecord(f"{where}: expected a list of {'' if exactly else 'at most '}{most} items, "
                        f"found {size}")
    return value


def mapping(value: object, where: str) -> dict[str, object]:
    if type(value) is not dict:
        raise BadRecord(f"{where}: expected an object, found {short(value)}")
    return value


def members(value: object, names: Collection[str], where: str) -> dict[str, object]:
    """Return an object that has exactly these members."""
    fields = mapping(value, where)
    if fields.keys() != set(names):
        wrong = sorted(fields.keys() ^ set(names))
        raise BadRecord(f"{where}: expected the members {', '.join(sorted(names))}; wrong or "
                        f"missing: {short(', '.join(wrong))}")
    return fields


def one_of(value: object, known: Mapping[str, T], where: str) -> T:
    if type(value) is not str or value not in known:
        raise BadRecord(f"{where}: {short(value)} is unknown")
    return known[value]


def parse(source: str, most: int, where: str) -> object:
    """Parse strict JSON, without Python's extensions.

    Args:
        source: the JSON.
        most: largest number of characters.
        where: description for error messages.
    """
    if type(source) is not str or len(source) > most:
        size = f"{len(source)} characters" if type(source) is str else type(source).__name__
        raise BadRecord(f"{where}: expected a string of at most {most} characters, found {size}")

    def refuse(constant: str) -> None:
        raise BadRecord(f"{where}: {constant} is not a number in JSON")

    def without_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
        members = dict(pairs)
        if len(members) < len(pairs):
            raise BadRecord(f"{where}: a member occurs twice")
        return members

    try:
        return json.loads(source, parse_constant=refuse, object_pairs_hook=without_duplicates)
    except BadRecord:
        raise
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"{where}: not JSON: {error}") from None
