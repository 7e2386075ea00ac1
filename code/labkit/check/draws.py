"""Cases that are other ones for every submission, and the same at every repeat."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from labkit.check.sides import side


def draw(n: int, /, **choices: Sequence[Any] | Callable[[random.Random], Any]
         ) -> list[dict[str, Any]]:
    """`n` cases, each with one of `choices` for every name.

    A choice is a sequence (`range(1, 9)`, `[2, 4, 8]`) or a function of a random.Random. The seed
    is the submission's when it is graded and a fixed one in a notebook; the names of the choices
    make draws in one cell differ. Raises ValueError when a sequence is empty.
    """
    source = random.Random(f"{side().seed}/{n}/{','.join(choices)}")
    return [{name: choice(source) if callable(choice) else _one_of(name, choice, source)
             for name, choice in choices.items()} for _ in range(n)]


def _one_of(name: str, choice: Sequence[Any], source: random.Random) -> Any:
    if not len(choice):
        raise ValueError(f"check.draw: nothing to choose from for {name}")
    return source.choice(choice)


def between(low: float, high: float, digits: int = 6) -> Callable[[random.Random], float]:
    """A choice for `draw`: a float from `low` to `high`, rounded to `digits` decimals."""
    return lambda source: round(source.uniform(low, high), digits)
