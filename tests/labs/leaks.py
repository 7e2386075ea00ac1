"""Predictions that a lab gives away: the number, or one close to it, stands above the guess."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from labkit.build import Cell, Lab, Role
from labkit.build.stubs import unanswered

NUMBER = re.compile(r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?")
# What stands behind a number, by a word of what is predicted.
UNITS = {"milliseconds": r"ms|milliseconds", "minutes": r"min|minutes", "times": r"x|×|times|fold",
         "share": r"%|percent", "percent": r"%|percent", "percentage": r"%|percent",
         "MB/s": r"MB/s", "GFLOP/s": r"GFLOP/s", "days": r"days"}
# What the lab measures on this machine: it can equal any number by chance.
ON_THIS_MACHINE = ("MB/s", "GFLOP/s")
NEIGHBOR = 0.05  # a number with this unit gives the prediction away if it is this close
EQUAL = 0.005  # and any number of three digits or more without a unit, if it is this close
ANY_UNIT = r"ms|us|s|[KMGT]i?B|bytes|TFLOP/s|tokens|GPUs|steps|%"
# What a run finds, and what it is.
KNOWN = {
    ("03_multi_node", "percent of the step in the bubble (virtual)"): "what another job waits",
    ("05_mixed_precision", "percentage of kernel time on Tensor Cores"): "the MFU of another job",
    ("14_heterogeneous_clusters", "times as fast"): "milliseconds of a layer"}
GUESSED = re.compile(r"^(.*): you guessed \S+, it is ([\d,.]+(?:e[+-]?\d+)?)$", re.MULTILINE)


@dataclass(frozen=True)
class Prediction:
    """A number to guess, the `what` of check.compare, and the answer cell of the guess."""

    what: str
    cell: Cell
    reference: float


def predictions(lab: Lab) -> Iterator[Prediction]:
    """Yield the predictions of a lab that a check.compare reveals."""
    for cell in lab.of(Role.EXPLORE):
        for call in ast.walk(cell.tree) if cell.tree else ():
            if not (isinstance(call, ast.Call) and ast.unparse(call.func) == "check.compare"):
                continue
            what, guess = call.args[:2]
            for answer in lab.of(Role.ANSWER):
                value = reference(answer, ast.unparse(guess))
                if value is not None and isinstance(what, ast.Constant):
                    yield Prediction(what.value, answer, value)


def reference(answer: Cell, name: str) -> float | None:
    """Return the number that the reference answer guesses; None if it does not bind this name."""
    for line in ast.walk(answer.tree) if answer.tree else ():
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == name:
            return float(ast.literal_eval(line.value))
    return None


def above(lab: Lab, prediction: Prediction) -> list[str]:
    """Return what a student can read above a guess: prose, and code without answers."""
    shown = [cell for cell in lab.cells if cell.line < prediction.cell.line
             and cell.role not in (Role.MUTANT, Role.CHECK)]
    return [unanswered(cell.source) if cell.role is Role.ANSWER else cell.source for cell in shown]


def leaks(what: str, value: float, texts: Iterable[str], *, measured: bool = True) -> list[str]:
    """Return the numbers in the texts that give a prediction away, with what stands around them.

    Args:
        what: the quantity, as check.compare prints it.
        value: the number.
        texts: what a student reads before the guess.
        measured: whether it is the right number, and not only a round one that is plausible.
    """
    units = "|".join(pattern for word, pattern in UNITS.items() if word in what.split())
    values = {value, 100 * value} if "share" in what.split() else {value}
    found = []
    for text in texts:
        for match in NUMBER.finditer(text):
            number = float(match[0].replace(",", ""))
            digits = len(match[0].replace(",", "").replace(".", "").strip("0"))
            has_unit = units and re.match(rf"\s*(?:[a-z]+ )?(?:{units})(?!\w)", text[match.end():])
            off = min((abs(number / one - 1) for one in values if one), default=1.0)
            other = re.match(rf"\s*(?:{ANY_UNIT})(?!\w)", text[match.end():])
            equal = measured and digits >= 3 and off <= EQUAL and not other
            if equal or (has_unit and off <= NEIGHBOR):
                found.append(text[max(0, match.start() - 40):match.end() + 20].replace("\n", " "))
    return found
