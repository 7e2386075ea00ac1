"""What was found, ready to be shown: groups, pairs across groups, and who is like the worked
solution or an earlier submission. All of it is bounded, so that the page of any class is readable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from rapidfuzz import process
from rapidfuzz.distance import Indel

from grader.similarity.answers import Answers
from grader.similarity.clusters import across, complete_linkage
from grader.similarity.scores import cells, distinct, matrix, median

MOST_PAIRS = 5  # of one group
MOST_ACROSS = 100  # pairs across groups
MOST_MATCHES = 3  # earlier submissions of one student
MOST_TEXTS = 40  # students with the same code whose texts are compared
MOST_ROWS = 500  # of one table


@dataclass(frozen=True)
class Pair:
    """Two similar submissions."""

    one: str
    other: str
    score: float  # 0 to 1, over all cells
    cells: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # code, text

    @property
    def text(self) -> float:
        """How alike the text of the most similar answer is, names and comments included."""
        return max((text for _, text in self.cells.values()), default=0.0)


@dataclass(frozen=True)
class Group:
    """A group of students in which every pair is similar."""

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
    groups = [_group(found, scores, students, holders) for found in clusters]
    pairs, count = across(scores, clusters, least, MOST_ACROSS)
    like_worked, worked_median = _like_worked(worked, students, answers, holders, least)
    return Report(
        lab, least, len(students), median(scores, [len(who) for who in holders]),
        sorted(groups, key=lambda group: (-len(group.students), -group.highest, group.students[0])),
        [_pair(a, b, scores, students, holders) for a, b in pairs], count,
        like_worked, worked_median, _like_earlier(earlier or {}, students, answers, holders, least),
        left_out or {}, {**(earlier or {}), **({WORKED: worked} if worked else {}), **students})


def _group(found: Sequence[int], scores: np.ndarray, students: Mapping[str, Answers],
           holders: Sequence[Sequence[str]]) -> Group:
    inside = scores[np.ix_(found, found)]
    one, other = np.triu_indices(len(found), 1)
    values = inside[one, other]
    same = [holders[at] for at in found if len(holders[at]) > 1]
    pairs = [pair for who in same[:MOST_PAIRS] for pair in _of_the_same_code(who, students)]
    pairs += [_pair(found[one[at]], found[other[at]], scores, students, holders)
              for at in np.argsort(-values, kind="stable")[:MOST_PAIRS]]
    pairs.sort(key=lambda pair: (-pair.score, -pair.text))
    return Group(sorted(student for at in found for student in holders[at]),
                 float(values.min()) if len(values) else 1.0,
                 1.0 if same else float(values.max()), same, pairs[:MOST_PAIRS])


def _of_the_same_code(who: Sequence[str], students: Mapping[str, Answers]) -> list[Pair]:
    """The pairs whose text is most alike too, names and comments included."""
    who = who[:MOST_TEXTS]
    texts = ["\n".join(text for _, text in sorted(students[one].texts.items())) for one in who]
    alike = process.cdist(texts, texts, scorer=Indel.normalized_similarity)
    one, other = np.triu_indices(len(who), 1)
    order = np.argsort(-alike[one, other], kind="stable")[:MOST_PAIRS]
    return [Pair(who[one[at]], who[other[at]], 1.0,
                 cells(students[who[one[at]]], students[who[other[at]]])) for at in order]


def _pair(one: int, other: int, scores: np.ndarray, students: Mapping[str, Answers],
          holders: Sequence[Sequence[str]]) -> Pair:
    first, second = holders[one][0], holders[other][0]
    return Pair(first, second, float(scores[one, other]),
                cells(students[first], students[second]))


def _like_worked(worked: Answers | None, students: Mapping[str, Answers],
                 answers: Sequence[Answers], holders: Sequence[Sequence[str]], least: float
                 ) -> tuple[list[Pair], float]:
    if worked is None or not answers:
        return [], 0.0
    scores = matrix(answers, [worked])[:, 0]
    found = [Pair(student, WORKED, float(scores[at])) for at, who in enumerate(holders)
             for student in who if scores[at] >= least]
    each = np.repeat(scores, [len(who) for who in holders])
    return _with_cells(found, students, {WORKED: worked}), float(np.median(each))


def _like_earlier(earlier: Mapping[str, Answers], students: Mapping[str, Answers],
                  answers: Sequence[Answers], holders: Sequence[Sequence[str]], least: float
                  ) -> list[Pair]:
    before, who_before = distinct(earlier)
    if not before or not answers:
        return []
    scores, found = matrix(answers, before), []
    for at, who in enumerate(holders):
        for other in np.argsort(-scores[at], kind="stable")[:MOST_MATCHES]:
            if scores[at, other] >= least:
                found += [Pair(student, who_before[other][0], float(scores[at, other]))
                          for student in who]
    return _with_cells(found, students, earlier)


def _with_cells(found: list[Pair], students: Mapping[str, Answers],
                others: Mapping[str, Answers]) -> list[Pair]:
    """The pairs, most alike first; with their cells as far as a page shows them."""
    found.sort(key=lambda pair: (-pair.score, pair.one, pair.other))
    return [replace(pair, cells=cells(students[pair.one], others[pair.other]))
            for pair in found[:MOST_ROWS]] + found[MOST_ROWS:]
