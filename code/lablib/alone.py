"""Call a student's function under limits: without the other files, or with a limit of CPU time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from typing import NoReturn


class _Refuse(MetaPathFinder):
    """Refuses to import a package."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == self.package:
            self._fail()

    def _fail(self) -> NoReturn:
        raise ImportError(f"The contest runs this file alone, so it cannot import {self.package}. "
                          "Copy what you need into it.")


@contextmanager
def without(package: str) -> Iterator[None]:
    """Let every import of a package fail within a `with` block.

    Args:
        package: its name.
    """
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules)
              if name.partition(".")[0] == package}
    finder = _Refuse(package)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        sys.modules.update(hidden)


class _TooSlowError(BaseException):
    """Stops a function. No `except Exception` of it can catch this."""


def within(seconds: float, function: Callable, *arguments: object) -> object:
    """Return a function's result, or "too slow" if it needs more CPU time.

    CPU time, so that a busy machine stops nobody.

    Args:
        seconds: the limit.
        function: runs in the main thread.
        arguments: of the function.
    """
    def stop(*_: object) -> NoReturn:
        raise _TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return function(*arguments)
    except _TooSlowError:
        return "too slow"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
