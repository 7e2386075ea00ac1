"""Expand mutants that are written as edits of a long answer.

A mutant whose lines all begin with - or + is the answer with the - lines replaced by the + lines
that follow them.
"""

from __future__ import annotations

import itertools


def is_edit(source: str) -> bool:
    lines = source.splitlines()
    return source.startswith("-") and all(line[:1] in ("-", "+") for line in lines)


def edited(reference: str, edit: str) -> str:
    """Return the complete mutant.

    Raises ValueError unless each group of - lines occurs in the answer exactly once.
    """
    text = f"\n{reference}\n"
    groups = [(sign, [line[1:] for line in lines])
              for sign, lines in itertools.groupby(edit.splitlines(), key=lambda line: line[0])]
    for number, (sign, lines) in enumerate(groups):
        if sign == "+":
            continue
        old = "\n".join(["", *lines, ""])
        if text.count(old) != 1:
            raise ValueError(f"{lines[0]!r} occurs {text.count(old)} times in the answer, not once")
        follows = groups[number + 1][1] if number + 1 < len(groups) else []
        text = text.replace(old, "\n".join(["", *follows, ""]))
    return text[1:-1]
