"""The numbers of a lab, by classical test theory. A number that is not defined is None.

Difficulty is the mean share of an exercise's points (0: nobody has any, 1: all have all of them).
Discrimination is the corrected item-total correlation (Henrysson, "Correction of item-total
correlations in item analysis", Psychometrika 28, 1963, https://doi.org/10.1007/BF02289618), in the
form of the Pearson correlation of an exercise's points with the sum of all other exercises' points:
the exercise itself is left out, since it would correlate with itself. For an exercise that is
either right or wrong it is the point-biserial correlation.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from grader.stats.reading import Check, StoredResults

NEAR = 1e-9  # points
FEWEST = 3  # submissions for a correlation
LOW = 0.2  # below that, an exercise tells students apart poorly
BINS = 10


@dataclass(frozen=True)
class Exercise:
    """One check."""

    name: str
    points: float
    submissions: int
    scored: int
    full: int
    partial: int
    zero: int
    tried: int  # submissions in which an answer is not as released
    mean: float | None
    difficulty: float | None
    discrimination: float | None
    hints: Sequence[tuple[str, int]] = ()  # most frequent first
    without_hint: int = 0

    @property
    def unscored(self) -> int:
        return self.submissions - self.scored


@dataclass(frozen=True)
class LabStatistics:
    """The statistics of one lab."""

    lab: str
    most: float  # points
    submissions: int
    graded: int
    excused: int
    mean: float | None
    median: float | None
    deviation: float | None  # standard deviation of the class
    attempts: float | None  # mean
    most_attempts: int
    again: int  # submissions that are not the first attempt
    bins: Sequence[int]  # complete submissions by their share of the points, in tenths
    exercises: Sequence[Exercise] = field(repr=False, default=())


def figures(stored: StoredResults) -> LabStatistics:
    """Compute all figures of a lab."""
    complete = [[scores[check.name] for check in stored.checks] for scores in stored.scores
                if all(check.name in scores for check in stored.checks)] if stored.checks else []
    totals = [sum(points) for points in complete]
    most = sum(check.points for check in stored.checks)
    bins = [0] * BINS
    for total in totals if most else ():
        bins[min(BINS - 1, max(0, int(total / most * BINS + NEAR)))] += 1
    tries = [count for count in stored.attempts if count]
    return LabStatistics(
        stored.lab, most, len(stored.scores), sum(stored.graded), stored.excused,
        _mean(totals), statistics.median(totals) if totals else None,
        statistics.stdev(totals) if len(totals) > 1 else None,
        _mean(tries), max(tries, default=0), sum(count > 1 for count in tries), bins,
        [_exercise(stored, check, [points[at] for points in complete], totals)
         for at, check in enumerate(stored.checks)])


def _exercise(stored: StoredResults, check: Check, complete: Sequence[float],
              totals: Sequence[float]) -> Exercise:
    points = [scores[check.name] for scores in stored.scores if check.name in scores]
    full = sum(score >= check.points - NEAR for score in points)
    zero = sum(score <= NEAR for score in points) if check.points else 0
    mean = _mean(points)
    given = stored.fired.get(check.name, {})
    rest = [total - score for total, score in zip(totals, complete, strict=True)]
    return Exercise(
        check.name, check.points, len(stored.scores), len(points), full,
        len(points) - full - zero, zero,
        sum(not tried.isdisjoint(check.answers) for tried in stored.tried), mean,
        mean / check.points if mean is not None and check.points else None,
        correlation(complete, rest),
        sorted(((hint.text, given.get(hint.text, 0)) for hint in check.hints),
               key=lambda one: -one[1]), stored.without_hint[check.name])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def correlation(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Pearson's correlation; None for fewer than FEWEST values, or constant ones.

    Args:
        one: a list of numbers.
        other: a list of the same length.
    """
    if len(one) < FEWEST:
        return None
    if max(one) - min(one) <= NEAR or max(other) - min(other) <= NEAR:
        return None
    return max(-1.0, min(1.0, statistics.correlation(one, other)))
