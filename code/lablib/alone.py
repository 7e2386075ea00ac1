"""Call a function of a file that must not need the student's other files, as a contest's."""

from __future__ import annotations

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


def timed(function: Callable, *arguments: object) -> list:
    """Return a function's result, and the seconds that it took."""
    from time import monotonic

    start = monotonic()
    answer = function(*arguments)
    return [answer, monotonic() - start]
