"""Call a driver and explain its errors, for `check.ranks` and `check.gpus`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from labkit.check.checks import UNANSWERED, Case, Failed, arguments_of, spelled
from labkit.check.wire import CannotCross

# A traceback's frame outside of the student's code and the driver.
INNER = re.compile(r'^  File "[^"\n]*/(?:site-packages|labkit|virtualgpu|warmranks|python3\.\d+)/'
                   r'[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE)
# Messages of PyTorch, Gloo, and Python for common mistakes, with advice. The first match counts.
MISTAKES = tuple((re.compile(pattern), advice) for pattern, advice in (
    (r"\bNotImplementedError\b", UNANSWERED),
    (r"\bNoneType\b", "Something is None here. Does a function end without `return`? Or does a "
     "parameter have no gradient? (`.grad` is None until a backward pass has used the parameter.)"),
    (r"AttributeError: '(\w+)' object has no attribute '(\w+)'",
     r"\1 has no `\2`, which the line below uses. Is it defined, and spelled correctly?"),
    (r"ImportError: cannot import name '(\w+)' from '([\w.]+)'",
     r"\2 does not define `\1`. Is it there, and spelled correctly?"),
    (r"No module named '(mytrainer[\w.]*)'", r"Run the cell that writes the module \1."),
    (r"TypeError: [\w.<>]+\(\) (?:takes|missing|got)\b",
     "A call and its function disagree about the arguments. If it is your own function, keep the "
     "line that begins with def as it was."),
    (r"op\.preamble\.length|killed by signal 6", "Gloo aborts a rank when more bytes arrive "
     "than its tensor has room for. Sender and receiver need tensors of the same shape and dtype."),
    (r"have (?:the )?same dtype|expected scalar type|Found dtype|can't be cast to|must match dtype",
     "Two tensors have different dtypes here. `torch.empty_like(x)` and `x.new_zeros(...)` keep "
     "the dtype of x."),
    (r"size of tensor a|must match the s|shapes cannot be multiplied|is invalid for input of size|"
     r"output with shape|Sizes of tensors must match|shape mismatch|same number of elements",
     "Two tensors have shapes that do not fit together here. Print both just before this line.")))


def drive(driver: Any, case: Case, where: str,
          run: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> tuple[str, Any]:
    """Run a driver. Return its call as shown in messages, and the outcome.

    Args:
        driver: the function.
        case: its arguments.
        where: what it runs on, such as "on 4 ranks".
        run: a function that runs the driver with given positional and keyword arguments.

    Raises Failed for a value that cannot cross.
    """
    arguments, keywords = arguments_of(case)
    what = f"{spelled(driver, arguments, keywords)} {where}"
    try:
        return what, run(arguments, keywords)
    except CannotCross as error:
        raise Failed(f"{what}: {error}") from None


def explained(text: str) -> str:
    """Add advice to a rank's error, and reduce its traceback to the student's and driver's lines.

    Args:
        text: a line with the error, an empty line, and the traceback.
    """
    head, _, trace = text.partition("\n\n")
    for pattern, advice in MISTAKES:
        if match := pattern.search(text):
            head += f"\n{match.expand(advice)}"
            break
    trace = INNER.sub("", trace)
    return f"{head}\n\n{trace}" if "  File " in trace else head
