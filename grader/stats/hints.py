"""Recognize the hints that a lab's author wrote in the messages of checks.

A message of `labkit.check` is either a hint alone (`check.that`, `check.pass_mark`), or what the
answer did and then the hint. What the answer did is the student's text, so a hint only counts at
the end of a message, in the places where `labkit.check` puts one. A message that quotes a student's
exception has no hint after it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grader.cleaning import COLORS
from labkit.check.checks import HIDDEN

LEAST = 8  # letters that the author wrote: less could be anything
LONGEST_MESSAGE = 5_000  # characters; a longer one is a student's text for the most part
_SENTENCE = re.compile("[.:!?] ")  # its end is where the next one begins
_WHAT_HAPPENED = re.compile(r" (returned|raised) ")
ANYTHING = None  # a part of a hint that is put in while the check runs
HOLE = "\0"  # stands for it in a text


@dataclass(frozen=True)
class AuthoredHint:
    """One hint.

    Attributes:
        text: the hint, with `...` for the parts that are filled in.
        words: the author's words around these parts.
        is_whole: whether it is a message by itself.
    """

    text: str
    words: Sequence[str]
    is_whole: bool

    def fired(self, message: str) -> bool:
        """Return whether `message`, as `plain` makes it, carries this hint."""
        if self.is_whole:
            return self._ends(message, 0)
        happened = _WHAT_HAPPENED.search(message)
        if happened and happened[1] == "raised":
            return False
        starts = (0, *(match.end() for match in _SENTENCE.finditer(message)))
        first = next((at for at in starts if self._begins(message, at)), None)
        return first is not None and self._ends(message, first)

    def _begins(self, message: str, at: int) -> bool:
        return message.startswith(self.words[0], at) and (
            len(self.words) > 1 or len(message) == at + len(self.words[0]))

    def _ends(self, message: str, at: int) -> bool:
        """Return whether the hint is all of the message from a position on.

        Each piece is searched at its first position, which leaves the most room for the rest. A
        regular expression would try all positions of all pieces, and a message may be written to
        have many.
        """
        if not message.startswith(self.words[0], at):
            return False
        if len(self.words) == 1:
            return len(message) == at + len(self.words[0])
        at += len(self.words[0])
        for words in self.words[1:-1]:
            at = message.find(words, at) + len(words)
            if at < len(words):
                return False
        return message.endswith(self.words[-1]) and len(message) - len(self.words[-1]) >= at


def hints_in(source: str) -> list[AuthoredHint]:
    """Return the hints in the source of a check, in order; none if the source is not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    hints: dict[str, AuthoredHint] = {}
    for parts, is_whole in _written(tree):
        if (hint := _hint(parts, is_whole)) is not None:
            hints.setdefault(hint.text, hint)
    return list(hints.values())


def first_fired(hints: Sequence[AuthoredHint], message: str) -> AuthoredHint | None:
    """Return the hint in a message; if several match, the one with most of the author's words.

    Args:
        hints: the check's hints.
        message: the message.
    """
    if len(message) > LONGEST_MESSAGE:
        return None
    message = plain(message)
    return max((hint for hint in hints if hint.fired(message)),
               key=lambda hint: (len(hint.text.replace("...", "")), "..." not in hint.text),
               default=None)


def plain(message: str) -> str:
    """Return a message without colors, with single spaces, wherever it was raised."""
    return " ".join(COLORS.sub("", message).replace(HIDDEN, "").removeprefix("✗").split())


def _written(tree: ast.AST) -> Iterator[tuple[list[str | None], bool]]:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if name in ("that", "pass_mark"):
            text = call.args[1] if len(call.args) > 1 else keywords.get("hint")
            if isinstance(text, ast.IfExp):  # one of two hints
                yield _parts(text.body), True
                yield _parts(text.orelse), True
            elif text is not None:
                yield _parts(text), True
        elif "hint" in keywords:
            yield _parts(keywords["hint"]), False
        if isinstance(keywords.get("hints"), ast.Dict):
            for key in keywords["hints"].keys:
                if key is not None:
                    yield _parts(key), False


def _parts(node: ast.expr) -> list[str | None]:
    """Return the pieces of a text; ANYTHING for those that are known only when the check runs."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _parts(node.left) + _parts(node.right)
    if isinstance(node, ast.JoinedStr):
        return [part for value in node.values for part in _parts(value)]
    return [ANYTHING]


def _hint(parts: Sequence[str | None], is_whole: bool) -> AuthoredHint | None:
    if sum(sum(map(str.isalnum, part)) for part in parts if part) < LEAST:
        return None
    text = " ".join("".join(HOLE if part is ANYTHING else part for part in parts).split())
    return AuthoredHint(text.replace(HOLE, "..."), text.split(HOLE), is_whole)
