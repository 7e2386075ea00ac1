"""Assumptions of a run about values that were not computed.

A program that branches on such a value stops with the file, the line, and the expression, unless
the user states how that line decides (`--assume FILE:LINE=True`). The report lists every
assumption.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from virtualgpu.core.assumptions import Assumptions
from virtualgpu.core.errors import NoValue, VirtualGpuError
from virtualgpu.core.gpu import caller

WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Answer:
    """The value that the user states for one line: a boolean or a number."""

    file: str
    line: int
    value: bool | float

    def __str__(self) -> str:
        return f"{self.file}:{self.line}={self.value}"

    def holds_at(self, file: str, line: int) -> bool:
        return line == self.line and (file == self.file or file.endswith("/" + self.file))


def parse(text: str) -> Answer:
    """Read `FILE:LINE=True`, `=False`, or `=NUMBER`. Raises VirtualGpuError."""
    found = re.fullmatch(r"(.+):(\d+)=(.+)", text)
    if found:
        word = found[3].strip()
        try:
            value = WORDS[word.lower()] if word.lower() in WORDS else float(word)
            return Answer(found[1].removeprefix("./"), int(found[2]), value)
        except ValueError:
            pass
    raise VirtualGpuError(f"--assume {text}: expected FILE:LINE=True, FILE:LINE=False, or "
                          "FILE:LINE=NUMBER, such as --assume train.py:41=False")


class Decisions(Assumptions):
    """The assumptions of a run, and the values that the user states for unknown ones."""

    def __init__(self, answers: Iterable[Answer] = ()) -> None:
        super().__init__()
        self.answers = list(answers)
        self.used: set[Answer] = set()

    def note_here(self, text: str) -> None:
        """Note an assumption that concerns the program's current line."""
        file, line, _ = here()
        self.note(text, file, line)

    def decide(self, what: str, number: bool = False) -> bool | float:
        """Return the user's answer for the program's current line.

        Args:
            what: the kind of use, for the error message.
            number: whether a number is asked for instead of a truth value.

        Raises NoValue where the user gave none.
        """
        file, line, text = here()
        for one in self.answers:
            if one.holds_at(file, line) and (number or isinstance(one.value, bool)):
                self.used.add(one)
                self.note(f"`{text}` is {one.value}, set by --assume", file, line)
                return one.value
        answer = "NUMBER" if number else "True|False"
        raise NoValue(f"{file}, line {line}: `{text}` {what}, but the value was not computed: "
                      "virtual GPUs compute only small tensors (--values). Supply it with "
                      f"--assume {file}:{line}={answer}, or run a tiny model with --values all")

    def unused(self) -> list[Answer]:
        """Answers that no line asked for."""
        return [one for one in self.answers if one not in self.used]


def here() -> tuple[str, int, str]:
    """The program's current line; its file relative to the working directory, if it lies there."""
    file, line, text = caller()
    return file.removeprefix(os.getcwd() + os.sep), line, text
