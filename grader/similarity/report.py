"""The findings for the page: groups, pairs across groups, and similarity to the worked solution or
to earlier submissions. All of it is bounded, so the page is readable for a class of any size."""

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
class SimilarPair:
    """Two similar submissions."""

    one: str
    other: str
    score: float  # 0 to 1, over all cells
    cells: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # code, text

    @property
    def text(self) -> float:
        """Return the similarity of the text of the most similar answer, names and comments
        included."""
        return max((text for _, text in self.cells.values()), default=0.0)


@dataclass(frozen=True)
class SimilarGroup:
    """A group of students in which every pair is similar.

    Attributes:
        same: students whose code differs only in names, strings, and comments.
        pairs: the most similar ones.
    """

    students: Sequence[str]
    lowest: float
    highest: float
    same: Sequence[Sequence[str]]
    pairs: Sequence[SimilarPair]


@dataclass(frozen=True)
class SimilarityReport:
    """All findings for one lab.

    Attributes:
        count: students who were compared.
        worked: (student, "the worked solution").
        texts: all answers, for the comparison side by side.
    """

    lab: str
    least: float
    count: int
    median: float
    groups: Sequence[SimilarGroup]
    across: Sequence[SimilarPair]
    across_count: int
    worked: Sequence[SimilarPair]
    worked_median: float
    earlier: Sequence[SimilarPair]
    left_out: Mapping[str, str]
    texts: Mapping[str, Answers] = field(repr=False, default_factory=dict)


WORKED = "the worked solution"


def report(lab: str, students: Mapping[str, Answers], least: float, *,
           worked: Answers | None = None, earlier: Mapping[str, Answers] | None = None,
           left_out: Mapping[str, str] | None = None) -> SimilarityReport:
    """Compare a class.

    Args:
        lab: the lab's name.
        students: their answers.
        least: the lowest similarity that is reported, from 0 to 1.
        worked: the worked solution.
        earlier: submissions of earlier years, by a name that no student here has.
        left_out: the reason, by student who was left out.
    """
    answers, holders = distinct(students)
    scores = matrix(answers)
    clusters = complete_linkage(scores, least)
    unclustered = set(range(len(answers))) - {at for cluster in clusters for at in cluster}
    clusters += [[at] for at in sorted(unclustered) if len(holders[at]) > 1 and answers[at].tokens]
    groups = [_group(cluster, scores, students, holders) for cluster in clusters]
    pairs, count = across(scores, clusters, least, MOST_ACROSS)
    like_worked, worked_median = _like_worked(worked, students, answers, holders, least)
    return SimilarityReport(
        lab, least, len(students), median(scores, [len(who) for who in holders]),
        sorted(groups, key=lambda group: (-len(group.students), -group.highest, group.students[0])),
        [_pair(a, b, scores, students, holders) for a, b in pairs], count,
        like_worked, worked_median, _like_earlier(earlier or {}, students, answers, holders, least),
        left_out or {}, {**(earlier or {}), **({WORKED: worked} if worked else {}), **students})


def _group(cluster: Sequence[int], scores: np.ndarray, students: Mapping[str, Answers],
           holders: Sequence[Sequence[str]]) -> SimilarGroup:
    inside = scores[np.ix_(cluster, cluster)]
    one, other = np.triu_indices(len(cluster), 1)
    values = inside[one, other]
    same = [holders[at] for at in cluster if len(holders[at]) > 1]
    pairs = [pair for who in same[:MOST_PAIRS] for pair in _of_the_same_code(who, students)]
    pairs += [_pair(cluster[one[at]], cluster[other[at]], scores, students, holders)
              for at in np.argsort(-values, kind="stable")[:MOST_PAIRS]]
    pairs.sort(key=lambda pair: (-pair.score, -pair.text))
    return SimilarGroup(sorted(student for at in cluster for student in holders[at]),
                        float(values.min()) if len(values) else 1.0,
                        1.0 if same else float(values.max()), same, pairs[:MOST_PAIRS])


def _of_the_same_code(who: Sequence[str], students: Mapping[str, Answers]) -> list[SimilarPair]:
    """Return the pairs with the most similar text, names and comments included.

    Args:
        who: students with the same code.
        students: all answers by student.
    """
    who = who[:MOST_TEXTS]
    texts = ["\n".join(text for _, text in sorted(students[one].texts.items())) for one in who]
    alike = process.cdist(texts, texts, scorer=Indel.normalized_similarity)
    one, other = np.triu_indices(len(who), 1)
    order = np.argsort(-alike[one, other], kind="stable")[:MOST_PAIRS]
    return [SimilarPair(who[one[at]], who[other[at]], 1.0,
                        cells(students[who[one[at]]], students[who[other[at]]])) for at in order]


def _pair(one: int, other: int, scores: np.ndarray, students: Mapping[str, Answers],
          holders: Sequence[Sequence[str]]) -> SimilarPair:
    first, second = holders[one][0], holders[other][0]
    return SimilarPair(first, second, float(scores[one, other]),
                       cells(students[first], students[second]))


def _like_worked(worked: Answers | None, students: Mapping[str, Answers],
                 answers: Sequence[Answers], holders: Sequence[Sequence[str]], least: float
                 ) -> tuple[list[SimilarPair], float]:
    if worked is None or not answers:
        return [], 0.0
    scores = matrix(answers, [worked])[:, 0]
    pairs = [SimilarPair(student, WORKED, float(scores[at])) for at, who in enumerate(holders)
             for student in who if scores[at] >= least]
    each = np.repeat(scores, [len(who) for who in holders])
    return _with_cells(pairs, students, {WORKED: worked}), float(np.median(each))


def _like_earlier(earlier: Mapping[str, Answers], students: Mapping[str, Answers],
                  answers: Sequence[Answers], holders: Sequence[Sequence[str]], least: float
                  ) -> list[SimilarPair]:
    before, who_before = distinct(earlier)
    if not before or not answers:
        return []
    scores, pairs = matrix(answers, before), []
    for at, who in enumerate(holders):
        for other in np.argsort(-scores[at], kind="stable")[:MOST_MATCHES]:
            if scores[at, other] >= least:
                pairs += [SimilarPair(student, who_before[other][0], float(scores[at, other]))
                          for student in who]
    return _with_cells(pairs, students, earlier)


def _with_cells(pairs: list[SimilarPair], students: Mapping[str, Answers],
                others: Mapping[str, Answers]) -> list[SimilarPair]:
    """Return the pairs, most similar first, with cells for those that the page shows.

    Args:
        pairs: the pairs.
        students: answers by student.
        others: answers that they were compared with.
    """
    pairs.sort(key=lambda pair: (-pair.score, pair.one, pair.other))
    return [replace(pair, cells=cells(students[pair.one], others[pair.other]))
            for pair in pairs[:MOST_ROWS]] + pairs[MOST_ROWS:]
