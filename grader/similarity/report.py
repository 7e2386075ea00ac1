"""What was found, ready to be shown: groups, pairs across groups, and who is like the worked
solution or an earlier submission. All of it is bounded, so that the page of any class is readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from grader.similarity.answers import Answers
from grader.similarity.clusters import across, complete_linkage
from grader.similarity.scores import cells, distinct, matrix, median

MOST_PAIRS = 5  # of one group
MOST_ACROSS = 100  # pairs across groups
MOST_MATCHES = 3  # earlier submissions of one student


@dataclass(frozen=True)
class Pair:
    """Two who are alike."""

    one: str
    other: str
    score: float  # 0 to 1, over all cells
    cells: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # code, text


@dataclass(frozen=True)
class Group:
    """Students of whom every two are alike."""

    students: Sequence[str]
    lowest: float
    highest: float
    same: Sequence[Sequence[str]]  # those whose code differs in names, strings, and comments alone
    pairs: Sequence[Pair]  # the most alike


@dataclass(frozen=True)
class Report:
    """All of it, for one lab."""

    lab: str
    least: float
    count: int  # students who were compared
    median: float
    groups: Sequence[Group]
    across: Sequence[Pair]
    across_count: int
    worked: Sequence[Pair]  # (student, "the worked solution")
    worked_median: float
    earlier: Sequence[Pair]
    left_out: Mapping[str, str]
    texts: Mapping[str, Answers] = field(repr=False, default_factory=dict)  # for side by side


WORKED = "the worked solution"


def report(lab: str, students: Mapping[str, Answers], least: float, *,
           worked: Answers | None = None, earlier: Mapping[str, Answers] | None = None,
           left_out: Mapping[str, str] | None = None) -> Report:
    """Compare a class.

    Args:
        lab: its name.
        students: their answers.
        least: how alike two have to be to be named, from 0 to 1.
        worked: the worked solution.
        earlier: submissions of earlier years, by a name that is no student's here.
        left_out: reasons, by student.
    """
    answers, holders = distinct(students)
    scores = matrix(answers)
    clusters = complete_linkage(scores, least)
    alone = set(range(len(answers))) - {at for found in clusters for at in found}
    clusters += [[at] for at in sorted(alone) if len(holders[at]) > 1 and answers[at].tokens]
    groups = [_group(found, scores, answers, holders) for found in clusters]
    pairs, count = across(scores, clusters, least, MOST_ACROSS)
    like_worked, worked_median = _like_worked(worked, answers, holders, least)
    return Report(
        lab, least, len(students), median(scores, [len(who) for who in holders]),
        sorted(groups, key=lambda group: (-len(group.students), -group.highest, group.students[0])),
        [_pair(a, b, scores, answers, holders) for a, b in pairs], count,
        like_worked, worked_median, _like_earlier(earlier or {}, answers, holders, least),
        left_out or {}, {**(earlier or {}), **({WORKED: worked} if worked else {}), **students})


def _group(found: Sequence[int], scores: np.ndarray, answers: Sequence[Answers],
           holders: Sequence[Sequence[str]]) -> Group:
    inside = scores[np.ix_(found, found)]
    one, other = np.triu_indices(len(found), 1)
    values = inside[one, other]
    same = [holders[at] for at in found if len(holders[at]) > 1]
    pairs = [Pair(who[0], who[1], 1.0, cells(answers[at], answers[at]))
             for at in found if len(who := holders[at]) > 1]
    pairs += [_pair(found[one[at]], found[other[at]], scores, answers, holders)
              for at in np.argsort(-values, kind="stable")[:MOST_PAIRS]]
    highest = 1.0 if same else float(values.max())
    return Group(sorted(student for at in found for student in holders[at]),
                 float(values.min()) if len(values) else 1.0, highest, same, pairs[:MOST_PAIRS])


def _pair(one: int, other: int, scores: np.ndarray, answers: Sequence[Answers],
          holders: Sequence[Sequence[str]]) -> Pair:
    return Pair(holders[one][0], holders[other][0], float(scores[one, other]),
                cells(answers[one], answers[other]))


def _like_worked(worked: Answers | None, answers: Sequence[Answers],
                 holders: Sequence[Sequence[str]], least: float) -> tuple[list[Pair], float]:
    if worked is None or not answers:
        return [], 0.0
    scores = matrix(answers, [worked])[:, 0]
    found = [Pair(student, WORKED, float(scores[at])) for at, who in enumerate(holders)
             for student in who if scores[at] >= least]
    each = np.repeat(scores, [len(who) for who in holders])
    return sorted(found, key=lambda pair: (-pair.score, pair.one)), float(np.median(each))


def _like_earlier(earlier: Mapping[str, Answers], answers: Sequence[Answers],
                  holders: Sequence[Sequence[str]], least: float) -> list[Pair]:
    before, who_before = distinct(earlier)
    if not before or not answers:
        return []
    scores, found = matrix(answers, before), []
    for at, who in enumerate(holders):
        for other in np.argsort(-scores[at], kind="stable")[:MOST_MATCHES]:
            if scores[at, other] >= least:
                found += [Pair(student, who_before[other][0], float(scores[at, other]),
                               cells(answers[at], before[other])) for student in who]
    return sorted(found, key=lambda pair: (-pair.score, pair.one, pair.other))
