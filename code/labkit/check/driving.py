"""Call a driver and explain its errors, for `check.ranks` and `check.gpus`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from labkit.check.checks import Case, Failed, arguments_of, spelled
from labkit.check.mistakes import advice
from labkit.check.wire import CannotCross

# A traceback's frame outside of the student's code and the driver.
INNER = re.compile(r'^  File "[^"\n]*/(?:site-packages|labkit|virtualgpu|warmranks|python3\.\d+)/'
                   r'[^"\n]*", line .*\n(?:    .*\n)*', re.MULTILINE)


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
    if found := advice(text):
        head += f"\n{found}"
    trace = own_frames(trace)
    return f"{head}\n\n{trace}" if "  File " in trace else head


def own_frames(text: str) -> str:
    """Reduce the stacks in a text to the student's and the driver's lines."""
    return INNER.sub("", f"{text}\n").removesuffix("\n")
