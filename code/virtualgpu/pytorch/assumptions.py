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

# What to write where nobody can supply a value.
WITHOUT_READING = ("virtual GPUs compute no values of large tensors. Reduce the tensor to one "
                   "number first, such as x.abs().amax(), and compare that; or choose on the GPU, "
                   "with torch.where(condition, a, b)")
BRANCHES = "branches on a value"  # the use of a value that asks for True or False
WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class AssumedValue:
    """A value that the user supplies for one line (--assume): a boolean or a number."""

    file: str
    line: int
    value: bool | float

    def __str__(self) -> str:
        return f"{self.file}:{self.line}={self.value}"

    def holds_at(self, file: str, line: int) -> bool:
        return line == self.line and (file == self.file or file.endswith("/" + self.file))


def parse(text: str) -> AssumedValue:
    """Read `FILE:LINE=True`, `=False`, or `=NUMBER`. Raises VirtualGpuError."""
    match = re.fullmatch(r"(.+):(\d+)=(.+)", text)
    if match:
        word = match[3].strip()
        try:
            value = WORDS[word.lower()] if word.lower() in WORDS else float(word)
            return AssumedValue(match[1].removeprefix("./"), int(match[2]), value)
        except ValueError:
            pass
    raise VirtualGpuError(f"--assume {text}: expected FILE:LINE=True, FILE:LINE=False, or "
                          "FILE:LINE=NUMBER, such as --assume train.py:41=False")


class Decisions(Assumptions):
    """The assumptions of a run, with the values that the user supplies for unknown ones."""

    def __init__(self, answers: Iterable[AssumedValue] = (), command_line: bool = True) -> None:
        """Begin without assumptions.

        Args:
            answers: the values that the user supplies.
            command_line: whether the user can supply more of them. A check's driver has none.
        """
        super().__init__()
        self.command_line = command_line
        self.answers = list(answers)
        self.used: set[AssumedValue] = set()

    def note_here(self, text: str) -> None:
        """Record an assumption that concerns the program's current line."""
        file, line, _ = here()
        self.note(text, *((file, line) if line else ()))

    def decide(self, use: str, number: bool = False) -> bool | float:
        """Return the user's value for the program's current line.

        Args:
            use: what the line does with the value, for the error message.
            number: whether a number will do, too.

        Raises:
            NoValue: the user supplied no value for this line.
        """
        file, line, text = here()
        for answer in self.answers:
            if answer.holds_at(file, line) and (number or isinstance(answer.value, bool)):
                self.used.add(answer)
                self.note(f"`{text}` is {answer.value}, set by --assume", file, line)
                return answer.value
        what = f"{describe_line(file, line, text)} {use}, but the value was not computed: "
        if not self.command_line:
            raise NoValue(what + WITHOUT_READING)
        form = "True|False" if use == BRANCHES else "NUMBER"
        supply = f"Supply it with --assume {file}:{line}={form}, or run" if line else "Run"
        raise NoValue(what + f"virtual GPUs compute only small tensors (--values). {supply} a tiny "
                      "model with --values all")

    def unused(self) -> list[AssumedValue]:
        """Return the values that no line needed."""
        return [answer for answer in self.answers if answer not in self.used]


def describe_line(file: str, line: int, text: str) -> str:
    """Return the subject of a message about a line; `here` returns the arguments."""
    if not line:
        return "code that runs outside of the program, such as a finalizer,"
    return f"{file}, line {line}: " + (f"`{text}`" if text else "this line")


def here() -> tuple[str, int, str]:
    """Return the program's current line, with a relative path inside the working directory."""
    file, line, text = caller()
    return file.removeprefix(os.getcwd() + os.sep), line, text
