"""Pairwise similarity: the share of token sequences that two students have in common (Dice's
coefficient), over the cells that both answered.

For a class this is a matrix multiplication: a row for each student, a column for each sequence that
occurs more than once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rapidfuzz.distance import Indel

from grader.similarity.answers import Answers, grams

BLOCK = 4096  # sequences at a time, which bounds memory


def similarity(one: Answers, other: Answers) -> float:
    """Return the similarity of two students, from 0 to 1; 0 when there is nothing to compare.

    Args:
        one: a student's answers.
        other: another student's.
    """
    common = size = 0
    for name in one.tokens.keys() & other.tokens.keys():
        first, second = grams(one.tokens[name]), grams(other.tokens[name])
        common += len(first & second)
        size += len(first) + len(second)
    return 2 * common / size if size else 0.0


def cells(one: Answers, other: Answers) -> dict[str, tuple[float, float]]:
    """Return the similarity of the code, and of the text, of each cell that both answered.

    The text includes names and comments.

    Args:
        one: a student's answers.
        other: another student's.
    """
    similarities = {}
    for name in sorted(one.tokens.keys() & other.tokens.keys()):
        first, second = grams(one.tokens[name]), grams(other.tokens[name])
        similarities[name] = (2 * len(first & second) / (len(first) + len(second)),
                              Indel.normalized_similarity(one.texts[name], other.texts[name]))
    return similarities


def matrix(rows: Sequence[Answers], columns: Sequence[Answers] | None = None) -> np.ndarray:
    """Return the similarities, `[len(rows), len(columns)]`.

    Args:
        rows: answers of students.
        columns: answers to compare with; by default `rows`.
    """
    both = [*rows, *(columns or ())]
    names = {name: at for at, name in enumerate(sorted({name for one in both
                                                        for name in one.tokens}))}
    sizes = np.zeros((len(both), len(names)), np.float32)
    ids: dict[tuple[str, str], int] = {}
    sequences: list[np.ndarray] = []  # the sequences that each of them has
    for at, one in enumerate(both):
        mine: list[int] = []
        for name, tokens in one.tokens.items():
            own = grams(tokens)
            sizes[at, names[name]] = len(own)
            mine += [ids.setdefault((name, gram), len(ids)) for gram in own]
        sequences.append(np.array(mine, np.int64))
    split = len(rows) if columns is not None else 0
    common = _common(sequences, split, len(ids))
    first, second = sizes[:len(rows)], sizes[split:]
    size = first @ (second > 0).T.astype(np.float32) + (first > 0).astype(np.float32) @ second.T
    result = np.divide(2 * common, size, out=np.zeros_like(common), where=size > 0)
    if columns is None:
        np.fill_diagonal(result, sizes.any(axis=1))
    return result


def _common(sequences: Sequence[np.ndarray], split: int, count: int) -> np.ndarray:
    """Return the number of sequences that students have in common.

    Args:
        sequences: each student's sequences.
        split: the number of rows, which are compared with the rest; 0 compares all with all,
            without the diagonal.
        count: the number of different sequences.
    """
    rows = split or len(sequences)
    result = np.zeros((rows, len(sequences) - split), np.float32)
    if not count:
        return result
    gram = np.concatenate(sequences)
    who = np.repeat(np.arange(len(sequences)), [len(one) for one in sequences])
    before = np.bincount(gram[who < rows], minlength=count)
    behind = np.bincount(gram[who >= split], minlength=count)
    shared = (before > 0) & (behind > 0) if split else before > 1
    number, kept = np.cumsum(shared) - 1, shared[gram]
    gram, who = number[gram[kept]], who[kept]
    order = np.argsort(gram, kind="stable")
    gram, who = gram[order], who[order]
    for start in range(0, int(gram[-1]) + 1 if len(gram) else 0, BLOCK):
        here = slice(*np.searchsorted(gram, [start, start + BLOCK]))
        block = np.zeros((len(sequences), BLOCK), np.float32)
        block[who[here], gram[here] - start] = 1
        result += block[:rows] @ block[split:].T
    return result


def median(scores: np.ndarray, times: Sequence[int]) -> float:
    """Return the median over all pairs of a class.

    Args:
        scores: the score of every two different answers, `[n, n]`.
        times: how many students have each of them.
    """
    count = np.asarray(times, np.float64)
    weights = np.outer(count, count)
    upper = np.triu_indices(len(count), 1)
    values = np.concatenate([scores[upper], np.diag(scores)])
    weight = np.concatenate([weights[upper], count * (count - 1) / 2])
    if not weight.sum():
        return 0.0
    order = np.argsort(values)
    at = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2, side="right")
    return float(values[order][min(at, len(values) - 1)])


def distinct(students: Mapping[str, Answers]) -> tuple[list[Answers], list[list[str]]]:
    """Return the distinct answers of a class, and the students who gave each one."""
    holders: dict[tuple, list[str]] = {}
    for student in sorted(students):
        holders.setdefault(students[student].key, []).append(student)
    return [students[who[0]] for who in holders.values()], list(holders.values())
