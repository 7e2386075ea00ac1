"""Figures of a job when it is graded: the trainer estimates in a second sandbox, in which nothing
of the student's is.

labkit.check.allowed composes the command line on the trusted side; what is printed is read here.
"""

from __future__ import annotations

import hashlib
import os
import select
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from grader.cleaning import line
from grader.sandbox.interface import GB, MB, Backend, Limits
from grader.sandbox.running import Running
from labcore.errors import LabError
from labkit.check.measure import MOST_PRINTED, REFUSED, SECONDS, Crashed, printed, program

LIMITS = Limits(memory=2 * GB, processes=64, file_size=1 * MB, disk=16 * MB, open_files=256)
ENDS = (0, REFUSED)  # exit codes: estimated, or refused in words
MOST_KEPT = 1000  # command lines; many submissions of a batch have the same one
LAST_WORDS = 1.0  # seconds to end after its output has
_kept: OrderedDict[str, dict[str, Any] | LabError] = OrderedDict()


class Unmeasured(Exception):
    """No figures, and the submission is not to blame; the text is a reason for people."""


def figures(words: Sequence[str], backend: Backend, seconds: float = SECONDS) -> dict[str, Any]:
    """The trainer's estimate as JSON, from a sandbox or as it was before in this process.

    Raises LabError in the trainer's words where it refuses, and Unmeasured where it could not
    finish in `seconds` or within its limits.
    """
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()
    if key not in _kept:
        try:
            _kept[key] = _estimate(words, backend, seconds)
        except LabError as error:
            _kept[key] = error
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    found = _kept[key]
    if isinstance(found, LabError):
        raise LabError(str(found))
    return found


def _estimate(words: Sequence[str], backend: Backend, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    with backend.start(program(words), LIMITS) as running:
        out = _output(running, deadline)
        deadline = min(deadline, time.monotonic() + LAST_WORDS)
        while running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        code = running.poll()
        if code not in ENDS:
            raise Unmeasured(f"the estimate of its job ended early: {running.why()}"
                             if code is not None else "the estimate of its job does not end")
    try:
        return printed(code, out, running.noise())
    except Crashed as error:  # a library that had no memory for a thread, say
        raise Unmeasured(f"the estimate of its job failed: {line(str(error), 200)}") from error


def _output(running: Running, deadline: float) -> bytes:
    """All that it prints, up to one byte more than may be read. Raises Unmeasured."""
    out = bytearray()
    while len(out) <= MOST_PRINTED:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([running.stdout], [], [], left)[0]:
            raise Unmeasured("out of time at the estimate of its job")
        chunk = os.read(running.stdout, 65536)
        if not chunk:
            break
        out += chunk
    return bytes(out)
