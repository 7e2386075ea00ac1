"""Draw random cases that differ between submissions but stay the same when repeated."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.check.sides import side


def draw(n: int, /, **choices: Sequence[Any] | Callable[[random.Random], Any]
         ) -> list[dict[str, Any]]:
    """Return `n` random cases, each with one of `choices` for every name.

    A choice is a sequence (`range(1, 9)`, `[2, 4, 8]`) or a function of a random.Random. The seed
    depends on the submission during grading, and is fixed in a notebook; the names of the choices
    make several draws in one cell differ. Raises ValueError if a sequence is empty.
    """
    source = random.Random(f"{side().seed}/{n}/{','.join(choices)}")
    return [{name: choice(source) if callable(choice) else _one_of(name, choice, source)
             for name, choice in choices.items()} for _ in range(n)]


def _one_of(name: str, choice: Sequence[Any], source: random.Random) -> Any:
    if not len(choice):
        raise ValueError(f"check.draw: the choices for {name} are empty")
    return source.choice(choice)


def between(low: float, high: float, digits: int = 6) -> Callable[[random.Random], float]:
    """Return a choice for `draw`: a float from `low` to `high`, rounded to `digits` decimals."""
    return lambda source: round(source.uniform(low, high), digits)
