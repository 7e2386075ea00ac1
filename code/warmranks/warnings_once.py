"""Show what ranks write to their standard error, with each warning only once."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator

MOST_ERRORS = 1_000_000  # bytes of the ranks' standard error
# As Python prints them: where, what (PyTorch's have several lines), and the line of code, indented.
WARNING = re.compile(r"^\S.*:\d+: \w*Warning: .*\n(?:(?!.*:\d+: \w*Warning: )"
                     r"\S.*\n){0,3}(?:  .*\n)?", re.MULTILINE)
_shown: set[str] = set()  # in this process


@contextlib.contextmanager
def shown_once() -> Iterator[int]:
    """Yield a descriptor for the ranks' standard error, and print at the end what they wrote there.

    A warning is printed only once in this process, although every rank of every run repeats it.
    """
    with tempfile.TemporaryFile() as errors:
        try:
            yield errors.fileno()
        finally:
            errors.seek(0)
            text = errors.read(MOST_ERRORS).decode(errors="replace")
            new = [warning for warning in dict.fromkeys(WARNING.findall(text))
                   if warning not in _shown]
            _shown.update(new)
            sys.stderr.write("".join([*new, WARNING.sub("", text)]))
