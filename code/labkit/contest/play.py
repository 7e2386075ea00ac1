"""Score cases, with the same code for a student's function, a ghost, and a sandboxed submission."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from labkit.check import wire
from labkit.check.sides import Raised
from labkit.contest.declaration import Case, Contest, Disqualified, Given

FLOOR = 0.01  # score of a disqualified case
MOST_TEXT = 1_000  # characters of a reason
DIGITS = 2  # decimals of points; totals that look equal in a table are equal
NEAR = 1e-9  # relative

# Returns the function's value for a case, or the exception it raised. Raises wire.CannotCross, and
# Disqualified if there was no answer at all.
Ask = Callable[[Given], Any | Raised]


@dataclass(frozen=True)
class CaseResult:
    """The outcome of one case for one player. `kind` is empty if the answer counts."""

    case: str
    group: str
    score: float
    note: str = ""
    kind: str = ""
    reason: str = ""
    hint: str = ""


def play(contest: Contest, cases: Iterable[Case], ask: Ask) -> list[CaseResult]:
    """Score every case; a failure in one of them does not stop the others.

    Args:
        contest: the contest.
        cases: its open or its secret cases.
        ask: calls the player's function.
    """
    return [play_one(contest, case, ask) for case in cases]


def play_one(contest: Contest, case: Case, ask: Ask) -> CaseResult:
    """Score one case.

    Args:
        ask: calls the player's function.

    Raises ValueError if the contest's own scorer returns an invalid score.
    """
    try:
        scored = contest.score(case.given, _answer(contest, case, ask))
    except Disqualified as error:
        return CaseResult(case.name, case.group, FLOOR, kind=error.kind,
                          reason=error.reason[:MOST_TEXT], hint=error.hint)
    if not (isinstance(scored.score, float) and 0 < scored.score <= 1 + NEAR):
        raise ValueError(f"contest {contest.name}: {scored.score!r} is not a valid score for "
                         f"{case.name}")
    return CaseResult(case.name, case.group, min(1.0, max(FLOOR, scored.score)), scored.note)


def _answer(contest: Contest, case: Case, ask: Ask) -> Any:
    try:
        got = ask(case.given)
    except wire.CannotCross as error:
        raise Disqualified("not a plain value", f"{contest.entry} did not return a plain value: "
                                                f"{error}",
                           "Return numbers, strings, lists, and dictionaries.") from error
    if isinstance(got, Raised):
        raise Disqualified("error", f"{contest.entry} raised {got}",
                           "Every case counts: catch what you cannot handle, and return a simpler "
                           "answer.")
    return got


def ghost(answer: Callable[[dict[str, Any]], Any]) -> Ask:
    """Return a published algorithm as a player, with its values copied like a student's."""
    def ask(given: Given) -> Any | Raised:
        from labkit.check.sides import called

        got = called(answer, (wire.copy(dict(given)),), {})
        return got if isinstance(got, Raised) else wire.copy(got)

    return ask


def ghosts(contest: Contest, cases: Sequence[Case]) -> dict[str, list[CaseResult]]:
    """Return the outcomes of all published algorithms, by name.

    Args:
        contest: the contest.
        cases: its open or its secret cases.
    """
    return {one.name: play(contest, cases, ghost(one.answer)) for one in contest.ghosts}


def points(outcomes: Sequence[CaseResult]) -> float:
    """Return the total: 100 times the geometric mean of the scores, rounded to two decimals."""
    logarithms = math.fsum(math.log(max(outcome.score, FLOOR)) for outcome in outcomes)
    return round(100 * math.exp(logarithms / len(outcomes)), DIGITS)


def points_by_group(outcomes: Sequence[CaseResult]) -> dict[str, float]:
    """Return the points of each group of cases."""
    groups = dict.fromkeys(outcome.group for outcome in outcomes)
    return {group: points([outcome for outcome in outcomes if outcome.group == group])
            for group in groups}
