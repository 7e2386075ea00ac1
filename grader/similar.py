"""Whose answers look alike: for a person to look at. It never changes a grade.

Only the students' answer cells are compared, without the lines that the release has. Code is cut
into tokens by pygments; names and strings are all alike, comments and blanks are left out. Two
answers are as alike as they have sequences of tokens in common, in whatever order (as MOSS and
copydetect do it, but with all sequences): who renames or reorders gains nothing by it. How much of
the text is the same, names and comments too, is rapidfuzz's measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pygments import lexers, token
from rapidfuzz.distance import Indel

SHORTEST = 25  # tokens: shorter answers are alike by themselves
GRAM = 10  # tokens in a row that two answers have in common by copying
LONGEST = 20_000  # characters of an answer that are looked at

NAMES = (token.Name.Builtin, token.Name.Exception, token.Name.Builtin.Pseudo)


@dataclass(frozen=True)
class Answers:
    """One student's answers to one lab, by the cell's name."""

    texts: Mapping[str, str]
    tokens: Mapping[str, str]  # one character for one token
    grams: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, texts: Mapping[str, str], release: Mapping[str, str]) -> Answers:
        own = {name: without(text[:LONGEST], release.get(name, "")) for name, text in texts.items()}
        tokens = {name: tokens_of(text) for name, text in own.items()}
        tokens = {name: found for name, found in tokens.items() if len(found) >= SHORTEST}
        grams = {name: frozenset(found[at:at + GRAM] for at in range(len(found) - GRAM + 1))
                 for name, found in tokens.items()}
        return cls({name: own[name] for name in tokens}, tokens, grams)


@dataclass(frozen=True)
class Pair:
    """Two students, and how much of what both wrote is alike."""

    one: str
    other: str
    score: float  # 0 to 1, over all cells
    cells: Mapping[str, tuple[float, float]]  # how alike the code is, how alike the text


def without(text: str, release: str) -> str:
    """The lines that the release does not have."""
    given = {line.strip() for line in release.splitlines()}
    return "\n".join(line for line in text.splitlines() if line.strip() not in given)


def tokens_of(text: str) -> str:
    """One character for each token that says how an answer works."""
    bash = text.lstrip().startswith(("%%writefile", "%%bash", "#!"))
    found = []
    for kind, word in (_bash() if bash else _python()).get_tokens(text):
        if kind in token.Comment or kind in token.Text or not word.strip():
            continue
        if kind in token.String:
            word = "a string" if not found or found[-1] != "a string" else ""
        elif kind in token.Name and kind not in NAMES and not bash:
            word = "a name"
        if word:
            found.append(word)
    return "".join(map(_letter, found))


_letters: dict[str, str] = {}


def _letter(word: str) -> str:
    return _letters.setdefault(word, chr(0xE000 + len(_letters) if len(_letters) < 6000
                                         else 0x20000 + len(_letters) % 900_000))


@lru_cache
def _python():
    return lexers.PythonLexer()


@lru_cache
def _bash():
    return lexers.BashLexer()


def alike(one: Answers, other: Answers) -> Iterator[tuple[str, float, int]]:
    """(cell, how alike from 0 to 1, sequences of both) for the cells that both answered."""
    for name in one.tokens.keys() & other.tokens.keys():
        first, second = one.grams[name], other.grams[name]
        size = len(first) + len(second)
        yield name, 2 * len(first & second) / size, size


def similarity(one: Answers, other: Answers) -> float:
    """Over all cells, longer ones counting more; 0 when there is nothing to compare."""
    found = list(alike(one, other))
    total = sum(size for _, _, size in found)
    return sum(score * size for _, score, size in found) / total if total else 0.0


def _cells(one: Answers, other: Answers) -> dict[str, tuple[float, float]]:
    return {name: (score, Indel.normalized_similarity(one.texts[name], other.texts[name]))
            for name, score, _ in sorted(alike(one, other))}


def pairs(students: Mapping[str, Answers], least: float) -> tuple[list[Pair], float]:
    """Pairs that are at least that alike, most alike first; and the median of all pairs, since in
    a lab with short answers everybody's look alike."""
    names, found, scores = sorted(students), [], []
    for index, one in enumerate(names):
        for other in names[index + 1:]:
            score = similarity(students[one], students[other])
            scores.append(score)
            if score >= least:
                found.append(Pair(one, other, score, _cells(students[one], students[other])))
    scores.sort()
    return (sorted(found, key=lambda pair: (-pair.score, pair.one, pair.other)),
            scores[len(scores) // 2] if scores else 0.0)
