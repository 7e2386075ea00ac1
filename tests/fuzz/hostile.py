"""Hostile inputs, each from one seed: anything at all, and sound ones with a few places changed.

Hypothesis finds smaller examples, but thirty a second; these come ten thousand a second.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

# Where readers of JSON and of command lines stumble.
NUMBERS = [0, -1, 1, 2, 1024, 10**6, 2**31, 2**63, 10**12 + 1, 10**400, -(10**19), 1e308, 5e-324,
           0.5, -0.0, float("nan"), float("inf"), True, False, None]
TEXTS = ["", " ", "0", "1", "-1", "2", "1e9", "nan", "\0", "\ud800", "\x1b[2J", "\u202e", "é" * 50,
         "x" * 3000, "9" * 13, "9" * 5000, "0000000019", "٣", "１２", "--", "-", "=", "@x", "a=b",
         "../..", "$(x)", "%s", "{0}", "\r\n", "\x85", "'", '"', "\\", "[", "(" * 300]


def leaf(random: Random, names: Sequence[str]) -> Any:
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(NUMBERS)
    if kind == 1:
        return random.choice(TEXTS)
    if kind == 2 and names:
        return random.choice(names)
    return random.choice([random.randint(-3, 300), random.random(), [], {}, [[]], {"": ""},
                          chr(random.randrange(1, 0x3000))])


def anything(random: Random, names: Sequence[str], depth: int = 4) -> Any:
    """JSON with these names among its keys and texts."""
    kind = random.randrange(4) if depth else 0
    if kind == 2:
        return [anything(random, names, depth - 1) for _ in range(random.randrange(4))]
    if kind == 3:
        return {random.choice([*names, *TEXTS]): anything(random, names, depth - 1)
                for _ in range(random.randrange(4))}
    return leaf(random, names)


def changed(random: Random, sound: Any, names: Sequence[str]) -> Any:
    """A copy of JSON with some of its places replaced, left out, doubled or swapped."""
    value = [copy.deepcopy(sound)]
    for _ in range(random.choice([1, 1, 1, 2, 3, 8])):
        places = list(_places(value))
        holder, key = random.choice(places)
        how = random.randrange(6)
        if how < 3:
            holder[key] = anything(random, names, random.choice([0, 0, 1, 3]))
        elif how == 3 and holder is not value:
            del holder[key]
        elif how == 4 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            other, place = random.choice(places)
            holder[key] = copy.deepcopy(other[place])
    return value[0]


def _places(value: Any, depth: int = 12) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every place in it."""
    if depth and isinstance(value, list | dict):
        for key, inner in list(enumerate(value) if isinstance(value, list) else value.items()):
            yield value, key
            yield from _places(inner, depth - 1)


def spoilt(random: Random, sound: bytes, pieces: Sequence[bytes]) -> bytes:
    """Bytes with a few cuts, repeats and pieces put in."""
    content = sound
    for _ in range(random.choice([1, 1, 2, 4])):
        start = random.randint(0, len(content))
        end = min(len(content), start + random.choice([0, 1, 1, 3, 10, 40]))
        middle = random.choice([b"", content[start:end] * 3, random.randbytes(random.randrange(4)),
                                *pieces])
        content = content[:start] + middle + content[end:]
    return content


def words(random: Random, known: Sequence[str]) -> list[str]:
    """A command line."""
    made = []
    for _ in range(random.randrange(10)):
        text = random.choice([random.choice(TEXTS), random.choice(known),
                              str(random.choice(NUMBERS[:10])), str(random.randint(0, 9))])
        kind = random.randrange(4)
        made += ([random.choice(known), text] if kind < 2 else [f"{random.choice(known)}={text}"]
                 if kind == 2 else [text])
    return made
