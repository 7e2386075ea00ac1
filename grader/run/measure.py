"""Estimate a job while grading: the trainer runs in a second sandbox without any student file.

labkit.check.allowed composes the command line on the trusted side, and this module reads the
output.
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
CACHE_SIZE = 1000  # command lines; many submissions of a batch have the same one
EXIT_SECONDS = 1.0  # seconds to end after its output has
_cache: OrderedDict[str, dict[str, Any] | LabError] = OrderedDict()


class EstimateFailed(Exception):
    """Raised when there is no estimate and the submission is not to blame; the text is for
    people."""


def figures(words: Sequence[str], backend: Backend, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the trainer's estimate as JSON, from a sandbox or from this process's cache.

    Args:
        words: the trainer's command line.
        backend: starts the sandbox.
        seconds: the time limit.

    Raises LabError in the trainer's words where it refuses, and EstimateFailed where it could not
    finish within its limits.
    """
    key = hashlib.sha256("\0".join(words).encode()).hexdigest()
    if key not in _cache:
        try:
            _cache[key] = _estimate(words, backend, seconds)
        except LabError as error:
            _cache[key] = error
        if len(_cache) > CACHE_SIZE:
            _cache.popitem(last=False)
    estimate = _cache[key]
    if isinstance(estimate, LabError):
        raise LabError(str(estimate))
    return estimate


def _estimate(words: Sequence[str], backend: Backend, seconds: float) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    with backend.start(program(words), LIMITS) as running:
        out = _output(running, deadline)
        deadline = min(deadline, time.monotonic() + EXIT_SECONDS)
        while running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        code = running.poll()
        if code not in ENDS:
            raise EstimateFailed(f"the estimate of its job ended early: {running.end_reason()}"
                                 if code is not None else "the estimate of its job does not end")
    try:
        return printed(code, out, running.error_output())
    except Crashed as error:  # a library that had no memory for a thread, say
        raise EstimateFailed(f"the estimate of its job failed: {line(str(error), 200)}") from error


def _output(running: Running, deadline: float) -> bytes:
    """Return everything the process prints, up to one byte more than may be read.

    Args:
        running: the sandbox.
        deadline: monotonic time limit.

    Raises EstimateFailed.
    """
    out = bytearray()
    while len(out) <= MOST_PRINTED:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([running.stdout], [], [], left)[0]:
            raise EstimateFailed("out of time while estimating its job")
        chunk = os.read(running.stdout, 65536)
        if not chunk:
            break
        out += chunk
    return bytes(out)
