"""Explain what is wrong with an answer: the nearest hint, and advice on an error.

A hint gives the answer that one mistake leads to. An answer with that mistake agrees with it at
every number that the mistake changes, unless a second mistake changes that number, too. So a hint
applies if the answer has most of the wrong numbers that it predicts, and the hint that explains the
most of them is the nearest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from labkit.check.same import difference
from labkit.check.sides import CHECK_FILE

LEAST = 0.75  # fraction of the wrong numbers that a hint predicts, which an answer must have
LEAST_OF_WRONG = 0.5  # fraction of an answer's wrong numbers that a hint must predict
MOST_LEAVES = 20_000
FACTORS = (2, 4, 8, 10, 16, 32, 100, 1000, 1024, 10**6, 2**20, 10**9, 2**30)
EXACT = 1e-9  # relative
UNANSWERED = "The cell above still waits for your answer."
# Messages that Python and PyTorch have for common mistakes, and advice. The first match counts.
MISTAKES = tuple((re.compile(pattern), advice) for pattern, advice in (
    (r"\bNotImplementedError\b", UNANSWERED),
    (r"\bNoneType\b", "Something is None here. Does a function end without `return`? Or does a "
     "parameter have no gradient? (`.grad` is None until a backward pass has used the parameter.)"),
    (r"AttributeError: '(\w+)' object has no attribute '(\w+)'",
     r"\1 has no `\2`, which the line below uses. Is it defined, and spelled correctly?"),
    (r"ImportError: cannot import name '(\w+)' from '([\w.]+)'",
     r"\2 does not define `\1`. Is it there, and spelled correctly?"),
    (r"No module named '(mytrainer[\w.]*)'", r"Run the cell that writes the module \1."),
    (r"TypeError: [\w.<>]+\(\) (?:takes (?:\d|no|from|at|exactly)|missing|got)\b",
     "A call and its function disagree about the arguments. If it is your own function, keep the "
     "line that begins with def as it was."),
    (r"have (?:the )?same dtype|expected scalar type|Found dtype|can't be cast to|must match dtype",
     "Two tensors have different dtypes here. `torch.empty_like(x)` and `x.new_zeros(...)` keep "
     "the dtype of x."),
    (r"size of tensor a|must match the s|shapes cannot be multiplied|is invalid for input of size|"
     r"output with shape|Sizes of tensors must match|shape mismatch|same number of elements",
     "Two tensors have shapes that do not fit together here. Print both just before this line.")))
# A traceback's frame outside of the student's code and the driver.
INNER = re.compile(r'^  File "[^"\n]*/(?:site-packages|labkit|virtualgpu|warmranks|python3\.\d+)/'
                   r'[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE)

DRIVER = re.compile(rf'^  File "{CHECK_FILE}[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE)


def nearest(got: Any, expected: Any, wrongs: Mapping[str, Any], rel: float) -> str | None:
    """Return the text of the hint that explains the most wrong numbers of an answer, or None.

    Args:
        got: the answer, or a list with one per case or rank.
        expected: the expected value, of the same form.
        wrongs: for each text, the wrong answer in the same form.
        rel: the relative tolerance for numbers.
    """
    right, mine = dict(_leaves(expected)), dict(_leaves(got))
    wrong_count = sum(path not in right or difference(leaf, right[path], rel) is not None
                      for path, leaf in mine.items())
    best, most = None, 0
    for text, wrong in wrongs.items():
        predicted = {path: leaf for path, leaf in _leaves(wrong)
                     if path not in right or difference(leaf, right[path], rel) is not None}
        explained = sum(path in mine and difference(mine[path], leaf, rel) is None
                        for path, leaf in predicted.items())
        enough = max(LEAST * len(predicted), LEAST_OF_WRONG * wrong_count)
        if explained > most and explained >= enough:
            best, most = text, explained
    return best


def relation(got: Any, expected: Any) -> str:
    """Return what all wrong numbers of an answer have in common, such as a factor; empty if
    nothing.

    It does not depend on the exercise, so every check without a hint that applies can say it.
    """
    right, mine = dict(_leaves(expected)), dict(_leaves(got))
    pairs = [(mine[path], leaf) for path, leaf in right.items() if path in mine
             and difference(mine[path], leaf) is not None]
    if not pairs or right.keys() != mine.keys() or not all(
            _is_number(one) and _is_number(other) for one, other in pairs):
        return ""
    which = "it is" if len(pairs) == 1 else "all of them are"
    if all(one == -other for one, other in pairs):
        return f"{which} right except for the sign"
    steps = {one - other for one, other in pairs}
    if all(type(other) is int for _, other in pairs) and steps <= {1, -1} and len(steps) == 1:
        return f"{which} off by one"
    for factor in FACTORS:
        if all(math.isclose(one, other * factor, rel_tol=EXACT) for one, other in pairs):
            return f"{which} {factor:,} times too large"
        if all(math.isclose(one * factor, other, rel_tol=EXACT) for one, other in pairs):
            return f"{which} {factor:,} times too small"
    return ""


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 2**1000  # not inf or NaN, nor beyond floats


def _leaves(value: Any) -> Iterator[tuple[tuple, Any]]:
    """Yield the path and the value of each number, string, or None in a nested value."""
    todo, count = [((), value)], 0
    while todo and count < MOST_LEAVES:
        path, one = todo.pop()
        count += 1  # of containers, too: a million empty lists have no leaf
        if isinstance(one, np.ndarray):
            one = one.tolist() if one.size else ()
        if isinstance(one, Mapping):
            todo += [((*path, name), item) for name, item in islice(one.items(), MOST_LEAVES)]
        elif isinstance(one, Sequence) and not isinstance(one, str | bytes):
            todo += [((*path, place), item) for place, item in enumerate(one[:MOST_LEAVES])]
        else:
            # A hint for the wrong answer 1 also applies to 1.0.
            yield path, one


def advice(text: str) -> str:
    """Return advice on an error, given its class and message, perhaps with a traceback; empty for
    one that is not known."""
    for pattern, found in MISTAKES:
        if match := pattern.search(text):
            return match.expand(found)
    return ""


def explained(text: str) -> str:
    """Add advice to a rank's error, and reduce its traceback to the student's lines.

    Args:
        text: a line with the error, an empty line, and the traceback.
    """
    head, _, trace = text.partition("\n\n")
    if found := advice(text):
        head += f"\n{found}"
    trace = own_frames(trace)
    return f"{head}\n\n{trace}" if "  File " in trace else head


def own_frames(text: str) -> str:
    """Reduce the stacks in a text to the student's lines; without any, to the driver's."""
    text = INNER.sub("", f"{text}\n")
    own = DRIVER.sub("", text)
    return (own if "  File " in own else text).removesuffix("\n")
