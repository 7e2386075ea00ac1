"""Records for tests: of real runs, made once, and written by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

import virtualgpu
from virtualgpu.launch.cluster import parse
from virtualgpu.launch.result import Rank
from virtualgpu.replay import Priced, price, read_record

GPUS = "a100:2"


@cache
def run(program: Callable[[], object], gpus: str = GPUS, nodes: int = 1,
        present: tuple[int, ...] | None = None) -> list[Rank]:
    """The ranks of a program that succeeded, with their records."""
    result = virtualgpu.run(program, gpus, nodes, present=present, record=True)
    assert [rank.error for rank in result] == [None] * len(result)
    return result


def priced(texts: list[str], gpus: str = GPUS, nodes: int = 1) -> list[Priced]:
    return price([read_record(text) for text in texts], parse(gpus, nodes).topology())


def texts(found: list[Rank]) -> list[str]:
    return [rank.record for rank in found]


def by_hand(rank: int, *entries: list, groups: tuple = ({"name": "all", "ranks": [0, 1]},),
            **other: object) -> str:
    """The record of one of two ranks, with these entries."""
    return json.dumps({"format": "virtualgpu record", "version": 1, "rank": rank, "world": 2,
                       "streams": ["compute"], "groups": list(groups), "operations": [],
                       "entries": list(entries), **other})


def edited(text: str, edit: Callable[[dict], None]) -> str:
    """The record after somebody has forged it."""
    data = json.loads(text)
    edit(data)
    return json.dumps(data)
