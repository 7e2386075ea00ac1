"""Measure the agreement of two graders on the answers that both scored."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FEW = 10  # answers below which kappa says little


@dataclass(frozen=True)
class ScorePair:
    """One answer with both graders' scores.

    Attributes:
        points: the maximum points of the answer.
        first, second: the two scores.
    """

    answer: str
    student: str
    cell: str
    points: float
    first: float
    second: float
    comment: str = ""

    @property
    def difference(self) -> float:
        return self.second - self.first


@dataclass(frozen=True)
class Agreement:
    """The agreement on one written answer.

    Attributes:
        count: answers that both graders scored.
        mean_difference: mean absolute difference, in points.
        bias: mean of second minus first, in points; above 0 where the second grader gives more.
        kappa: Cohen's kappa with quadratic weights; None where it is not defined.
    """

    count: int
    mean_difference: float
    bias: float
    kappa: float | None


def agreement(pairs: Sequence[ScorePair]) -> Agreement:
    """Return the agreement of at least one pair."""
    differences = [pair.difference for pair in pairs]
    return Agreement(len(pairs), statistics.fmean(map(abs, differences)),
                     statistics.fmean(differences),
                     weighted_kappa([(pair.first, pair.second) for pair in pairs]))


def weighted_kappa(scores: Sequence[tuple[float, float]]) -> float | None:
    """Return Cohen's weighted kappa (Cohen, 1968) with quadratic weights: 1 for equal scores, 0
    for what graders with these distributions of scores would reach by chance. None if both give
    every answer the same score, so that there is nothing to agree on by chance.

    The weights are squared differences of scores, so partial points need no categories.
    """
    observed = statistics.fmean((first - second) ** 2 for first, second in scores)
    expected = statistics.fmean((first - second) ** 2 for first, _ in scores
                                for _, second in scores)
    return None if expected == 0 else 1 - observed / expected
