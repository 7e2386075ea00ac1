"""Time limits for code in this process, such as a check whose loop depends on a student's value."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from typing import Any

REPEAT_SECONDS = 0.5  # seconds until code that caught the first TimeLimitReached gets another


class TimeLimitReached(BaseException):
    """Raised when the time is up. It is not an Exception, so `except Exception` does not catch
    it."""


_interrupted = False


def interrupted() -> bool:
    """Return whether a time limit was ever reached in this process.

    The exception may have interrupted an import and left a library partly initialized.
    """
    return _interrupted


class Budget:
    """A number of seconds that starts to count down at once."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the remaining seconds."""
        return max(0.0, self.end - time.monotonic())


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[list[float]]:
    """Raise TimeLimitReached in the block once it has taken `seconds`, repeatedly until it ends.

    Yields a list that stays empty until the limit is reached, even if the block catches the
    exception. Use it in the main thread only. It cannot interrupt one long C call; the worker pool
    handles that.
    """
    rang: list[float] = []
    inside = True

    def ring(*frame: Any) -> None:
        global _interrupted
        _interrupted = True
        rang.append(time.monotonic())
        if inside:
            raise TimeLimitReached

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), REPEAT_SECONDS)
    try:
        try:
            yield rang
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
