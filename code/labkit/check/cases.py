"""Draw the cases of a check, which differ between submissions but stay the same when repeated.

A value of a case may differ between ranks: each receives its own element and no other. What
a rank computes on must be no function of its rank and of arguments that all ranks have, or else
every rank could compute what the others should send it. docs/writing-labs.md is the guide.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.check.sides import current_side

MOST_RANKS = 16  # how many ranks a check can start, and thus how many elements are drawn


def draw(n: int, /, **choices: Sequence[Any] | Callable[[random.Random], Any]
         ) -> list[dict[str, Any]]:
    """Return `n` random cases, each with one of `choices` for every name.

    A choice is a sequence (`range(1, 9)`, `[2, 4, 8]`) or a function of a random.Random. The seed
    depends on the submission during grading, and is fixed in a notebook; the names of the choices
    make several draws in one cell differ. Raises ValueError if a sequence is empty.
    """
    source = random.Random(f"{current_side().seed}/{n}/{','.join(choices)}")
    return [{name: choice(source) if callable(choice) else _one_of(name, choice, source)
             for name, choice in choices.items()} for _ in range(n)]


def _one_of(name: str, choice: Sequence[Any], source: random.Random) -> Any:
    if not len(choice):
        raise ValueError(f"check.draw: the choices for {name} are empty")
    return source.choice(choice)


def between(low: float, high: float, digits: int = 6) -> Callable[[random.Random], float]:
    """Return a choice for `draw`: a float from `low` to `high`, rounded to `digits` decimals."""
    return lambda source: round(source.uniform(low, high), digits)


@dataclass(frozen=True)
class EachRank:
    """One element per rank, by rank. Elements beyond the last rank are not used."""

    elements: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"check.by_rank({list(self.elements)!r})"


def by_rank(elements: Sequence[Any]) -> EachRank:
    """Return an argument for the driver of `check.ranks` that differs between ranks.

    Args:
        elements: one plain value per rank; more than there are ranks are allowed.
    """
    return EachRank(tuple(elements))


def for_each_rank(choice: Sequence[Any] | Callable[[random.Random], Any],
                  shape: Sequence[int] = ()) -> Callable[[random.Random], EachRank]:
    """Return a choice for `check.draw` that draws separately for each rank.

    It draws for as many ranks as a check can start, so the case fits any number of them.

    Args:
        choice: a sequence or a function of a random.Random, as in `check.draw`.
        shape: of nested lists, of which each element is drawn; () for the choice itself.
    """
    def one(source: random.Random, shape: Sequence[int]) -> Any:
        if shape:
            return [one(source, shape[1:]) for _ in range(shape[0])]
        return choice(source) if callable(choice) else source.choice(choice)

    def draw(source: random.Random) -> EachRank:
        return EachRank(tuple(one(source, shape) for _ in range(MOST_RANKS)))

    return draw


def of_rank(value: Any, rank: int) -> Any:
    """Return a driver's arguments, or any part of them, as one rank receives them.

    Args:
        value: a plain value that may contain EachRank.
        rank: the rank whose element replaces every EachRank.
    """
    return _replaced(value, lambda one: one.elements[rank])


def of_all_ranks(value: Any, ranks: int) -> Any:
    """Return the same arguments with a list of all ranks' elements for every EachRank.

    Args:
        value: a plain value that may contain EachRank.
        ranks: the number of elements that each list has.
    """
    return _replaced(value, lambda one: list(one.elements[:ranks]))


def cut(value: Any, ranks: int) -> Any:
    """Return the same arguments without the elements that no rank receives.

    Args:
        value: a plain value that may contain EachRank.

    Raises ValueError if an EachRank has fewer elements than there are ranks.
    """
    def shortened(one: EachRank) -> EachRank:
        if len(one.elements) < ranks:
            raise ValueError(f"check.by_rank: {len(one.elements)} elements for {ranks} ranks: "
                             "give one for each rank")
        return EachRank(one.elements[:ranks])

    return _replaced(value, shortened)


def require_none(value: Any, where: str) -> None:
    """Raise TypeError if a value contains EachRank.

    Args:
        value: the arguments of a call that does not run on ranks.
        where: the call, such as "check.function".
    """
    def refuse(_: EachRank) -> None:
        raise TypeError(f"{where}: check.by_rank and check.for_each_rank are for check.ranks, "
                        "where every rank receives its own element")

    _replaced(value, refuse)


def _replaced(value: Any, replace: Callable[[EachRank], Any]) -> Any:
    """Return a copy of a value in which `replace` has replaced every EachRank, at any depth."""
    if type(value) is EachRank:  # a student's name on the trusted side refuses isinstance
        return replace(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, replace) for item in value)
    if issubclass(type(value), Mapping):
        return {name: _replaced(item, replace) for name, item in value.items()}
    return value
