"""A contest that has nothing to do with schedules: name a small multiple of a number."""

from __future__ import annotations

from random import Random
from typing import Any

from labkit.contest.declaration import CaseGroup, Contest, Disqualified, Ghost, Given, Scored


def score(case: Given, answer: Any) -> Scored:
    if type(answer) is not int or answer < case["x"] or answer % case["x"]:
        raise Disqualified("no multiple", f"{str(answer)[:50]} is no multiple of {case['x']}",
                           "Return x.")
    return Scored(case["x"] / answer, f"{answer // case['x']} times x")


def draw(random: Random) -> dict[str, int]:
    return {"x": random.randrange(100, 10**9)}


def toy(cases: int = 3, seconds: float = 5, **changed: Any) -> Contest:
    """Cases 1 to `cases` are open, in one group, and another group has ten more."""
    given = {
        "name": "toy", "title": "A toy", "rules": "", "file": "toy.py", "entry": "answer",
        "seconds": seconds, "score": score,
        "groups": (CaseGroup("small", "small x", [{"x": x} for x in range(1, cases + 1)], draw, 2),
                   CaseGroup("large", "large x", [{"x": 10}], draw, 3)),
        "ghosts": (Ghost("x itself", "nobody", lambda case: case["x"]),
                   Ghost("twice", "nobody", lambda case: 2 * case["x"]))}
    return Contest(**given | changed)
