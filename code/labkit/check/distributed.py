"""`check.ranks`: run a driver on real ranks. docs/writing-labs.md is the guide."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from labcore.listing import listed
from labkit.check.cases import MOST_RANKS, cut, of_all_ranks, of_rank
from labkit.check.checks import (
    NO_RETURN,
    Case,
    Failed,
    arguments_of,
    drive,
    passed,
    shown,
    spelled,
    tally,
    with_relation,
)
from labkit.check.hints import explained, nearest, own_frames
from labkit.check.same import NEAR, difference
from labkit.check.sides import DEADLOCK, LATE, RETURNED, RanksRun, current_side

MISMATCH = "CollectiveMismatch: "  # warmranks.ranked
SECONDS = 40.0  # time limit for the ranks of one case; deadlocks are found long before
Expected = Sequence[Sequence[Any]] | Callable[..., Sequence[Any]]


class RanksRuns(list[RanksRun]):
    """The runs of a check. A notebook shows nothing for them if they end a cell."""

    def _ipython_display_(self) -> None:
        pass


def ranks(driver: Any, cases: Sequence[Case], expected: Expected | None, *,
          ranks: int | Sequence[int] = 4, hints: Mapping[str, Any] | None = None,
          rel: float = NEAR, seconds: float = SECONDS) -> RanksRuns:
    """Run a driver on ranks of torch.distributed, and assert its return value on each of them.

    Each rank is a separate process, and its process groups use the broker, with gloo's semantics.
    The driver is called on every rank with the same arguments, except for `check.by_rank`, of
    which each rank receives its own element only. It gets its rank from torch.distributed.

    Args:
        driver: a function that uses the student's names and returns plain values.
        cases: the driver's arguments: dicts of keywords, or sequences of positional arguments.
        expected: a function of (number of ranks, **case) that returns one value per rank, and that
            receives the list of all ranks' elements for `check.by_rank`. If `ranks` is a single
            number, it may also be a list that has such a list for each case. None: the check judges
            `run.values` itself, so hints can only be about deadlocks.
        ranks: the number of ranks, or several numbers; every case runs with each of them.
        hints: maps each text to the wrong values that trigger it, in the form of `expected`, or to
            "deadlock", which also stands for collectives that do not match.
        rel: the relative tolerance for numbers.
        seconds: time limit for each case, after which its ranks are killed.

    Returns:
        One Run for each number of ranks and each case, cases varying fastest. A broker on the
        trusted side recorded its communication; FLOPs are the ranks' own claims.

    Raises Failed at the first case that fails, and ValueError for arguments that check nothing.
    """
    numbers = [ranks] if isinstance(ranks, int) else list(ranks)
    _require_valid(numbers, cases)
    unused = [text for text, wrong in (hints or {}).items() if wrong != DEADLOCK]
    if expected is None and unused:
        raise ValueError(f"check.ranks: with expected=None, no value triggers the hint "
                         f"{unused[0]!r}; pass what is expected, or judge `run.values`")
    runs = RanksRuns()
    for number in numbers:
        for place, whole in enumerate(cases):
            case = cut(whole, number)
            done = _run(driver, number, case, seconds, hints or {})
            if expected is not None:
                _judge(driver, number, case, place, done, expected, hints or {}, rel)
            runs.append(done)
    counts = listed(map(str, numbers))
    tally.note(driver)
    passed(f"{current_side().title(driver)}: {'ran' if expected is None else 'right'} on {counts} "
           f"rank{'s' if counts != '1' else ''} "
           f"in {len(cases)} case{'s' if len(cases) > 1 else ''}")
    return runs


def _require_valid(numbers: Sequence[int], cases: Sequence[Case]) -> None:
    if not cases or not numbers:
        raise ValueError("check.ranks: no cases, so nothing would be checked")
    for number in numbers:
        if not 1 <= number <= MOST_RANKS:
            raise ValueError(f"check.ranks: ranks={number}: give 1 to {MOST_RANKS}")


def _run(driver: Any, number: int, case: Case, seconds: float,
         hints: Mapping[str, Any]) -> RanksRun:
    """Run one case. Raises Failed unless the driver returns on all ranks."""
    where = f"on {number} rank{'s' if number > 1 else ''}"
    what, done = drive(driver, case, where, lambda arguments, keywords: (
        current_side().ranks(driver, number, arguments, keywords, seconds)))
    if done.state == RETURNED:
        return done
    advice = "".join(f"\n{text}" for text, wrong in hints.items() if wrong == DEADLOCK)
    if done.state == DEADLOCK:
        raise Failed(f"{what} is a deadlock: {own_frames(done.text)}{advice}")
    text = own_frames(done.text) if done.state == LATE else explained(done.text)
    if MISMATCH in done.text.partition("\n")[0]:  # other backends would hang there
        text += advice
    raise Failed(f"{what}: {text}")


def _judge(driver: Any, number: int, case: Case, place: int, done: RanksRun, expected: Expected,
           hints: Mapping[str, Any], rel: float) -> None:
    """Compare the return values of all ranks with the expected ones. Raises Failed.

    Args:
        driver: the function that ran.
        number: the number of ranks.
        case: the arguments of the driver.
        place: the index of the case.
        done: what the ranks did.
        expected: the same as for `ranks`.
        hints: the same as for `ranks`.
        rel: the relative tolerance.
    """
    rights = _values(expected, number, case, place)
    mismatches = [difference(got, right, rel)
                  for got, right in zip(done.values, rights, strict=True)]
    rank = next((rank for rank, one in enumerate(mismatches) if one is not None), None)
    if rank is None:
        return
    got, mismatch = done.values[rank], mismatches[rank]
    call = spelled(driver, *of_rank(arguments_of(case), rank))
    where = f"{call} returned {shown(got)} on rank {rank} of {number}"
    wrongs: dict[str, list[Any]] = {}
    for text, wrong in hints.items():
        with contextlib.suppress(ArithmeticError):  # this mistake has no result in this case
            if wrong != DEADLOCK:
                wrongs[text] = list(_values(wrong, number, case, place))
    for text, wrong in wrongs.items():
        if difference(list(done.values), wrong, rel) is None:
            raise Failed(f"{where}. {text}")
    if text := nearest(done.values, list(rights), wrongs, rel):
        raise Failed(f"{where}. {text}")
    others = [str(other) for other, one in enumerate(mismatches) if one is None]
    right_on = f" Rank{'s' if len(others) > 1 else ''} {', '.join(others)} " \
        f"returned the right value." if others else ""
    raise Failed(f"{where}: {with_relation(mismatch, got, rights[rank])}"
                 f"{'' if got is not None else f' {NO_RETURN}'}.{right_on}")


def _values(expected: Expected, number: int, case: Case, place: int) -> Sequence[Any]:
    if not callable(expected):
        return expected[place]
    arguments, keywords = of_all_ranks(arguments_of(case), number)
    return expected(number, *arguments, **keywords)
