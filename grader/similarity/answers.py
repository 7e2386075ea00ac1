"""One student's own code, split into tokens.

Only answer cells count, without the lines that the release has. Pygments splits code into tokens;
all names are equal, all strings are equal, and comments and whitespace are left out. The similarity
of two answers is the share of token sequences that they have in common, in any order, so renaming
and reordering gain nothing. MOSS (Schleimer, Wilkerson, and Aiken, "Winnowing", SIGMOD 2003)
compares a selection of such sequences; a class is small enough to compare all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pygments import lexers, token

from grader.course.reasons import Unusable

SHORTEST = 25  # tokens: shorter answers are alike by themselves
GRAM = 10  # tokens in a row that two answers have in common by copying
LONGEST = 200_000  # characters of an answer, comments included, that are split into tokens
MOST_TOKENS = 20_000  # of an answer that is compared

NAMES = (token.Name.Builtin, token.Name.Exception, token.Name.Builtin.Pseudo)


@dataclass(frozen=True)
class Answers:
    """One student's answers to one lab, by grade_id."""

    texts: Mapping[str, str]
    tokens: Mapping[str, str]  # one character for one token

    @classmethod
    def of(cls, texts: Mapping[str, str], release: Mapping[str, str]) -> Answers:
        """Return the student's own answers.

        Args:
            texts: the submitted answers.
            release: the text that everybody received.

        Raises Unusable for an answer that is too long to compare: a person must look at it.
        """
        own = {name: without(text, release.get(name, "")) for name, text in texts.items()}
        tokens = {name: _few_tokens(name, text) for name, text in own.items()}
        tokens = {name: sequence for name, sequence in tokens.items() if len(sequence) >= SHORTEST}
        return cls({name: own[name] for name in tokens}, tokens)

    @property
    def key(self) -> tuple[tuple[str, str], ...]:
        """A key that is equal for students whose code differs only in names, strings, and
        comments."""
        return tuple(sorted(self.tokens.items()))


def _few_tokens(name: str, text: str) -> str:
    """Return an answer's tokens; raise Unusable if it is too long."""
    if len(text) <= LONGEST and len(tokens := tokens_of(text)) <= MOST_TOKENS:
        return tokens
    raise Unusable(f"the answer {name} has {len(text):,} characters, too many to compare")


def grams(tokens: str) -> frozenset[str]:
    """Return all sequences of GRAM tokens."""
    return frozenset(tokens[at:at + GRAM] for at in range(len(tokens) - GRAM + 1))


def without(text: str, release: str) -> str:
    """Return the lines that the release does not have.

    Args:
        text: an answer.
        release: the released text of its cell.
    """
    given = {line.strip() for line in release.splitlines()}
    return "\n".join(line for line in text.splitlines() if line.strip() not in given)


@lru_cache(maxsize=4096)  # copies are what we look for
def tokens_of(text: str) -> str:
    """Return one character for each token that says how an answer works."""
    bash = text.lstrip().startswith(("%%writefile", "%%bash", "#!"))
    words = []
    for kind, word in (_bash() if bash else _python()).get_tokens(text):
        if kind in token.Comment or kind in token.Text or not word.strip():
            continue
        if kind in token.String:
            word = "a string" if not words or words[-1] != "a string" else ""
        elif kind in token.Name and kind not in NAMES and not bash:
            word = "a name"
        if word:
            words.append(word)
    return "".join(map(_letter, words))


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
