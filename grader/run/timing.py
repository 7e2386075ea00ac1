"""Time limits for what runs in this process: a check whose loop a student's value steers, say."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

AGAIN = 0.5  # seconds until somebody who swallowed the first Late gets another


class Late(BaseException):
    """The time is up. No Exception, so that `except Exception` does not take it for the code's."""


_interrupted = False


def interrupted() -> bool:
    """Whether a Late was ever raised in this process. It may have struck in an import, which leaves
    a library half made for whoever uses it next."""
    return _interrupted


class Budget:
    """Seconds that pass from now on."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[list[float]]:
    """Raise Late inside the block, once it has taken longer, until it ends. What it yields is empty
    as long as that has not happened, whatever the block did with the exception.

    For the main thread. One long operation of C is not interrupted: that is the worker's keeper's
    business.
    """
    rang: list[float] = []
    inside = True

    def ring(*frame: Any) -> None:
        global _interrupted
        _interrupted = True
        rang.append(time.monotonic())
        if inside:
            raise Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), AGAIN)
    try:
        try:
            yield rang
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
