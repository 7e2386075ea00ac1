"""Control child processes on Linux, so that none is left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have this process receive a signal when its parent ends.

    Args:
        parent: the parent's process ID, as known before the fork.
        number: the signal.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the call
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parents end."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def threads() -> int:
    """Return the number of this process's threads, including native ones."""
    return len(os.listdir("/proc/self/task"))


def children() -> set[int]:
    """Return the process IDs of this process's children."""
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            pids |= set(map(int, (task / "children").read_text().split()))
    return pids


def signal_all(pids: set[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap() -> dict[int, int]:
    """Return the exit codes of the children that ended, by process ID; negative for signals."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def kill_all(pids: set[int]) -> None:
    """Kill this process's children and, after `adopt_orphans`, all descendants; wait for their end.

    Args:
        pids: children that still run.
    """
    with contextlib.suppress(ChildProcessError):
        while left := pids | children():
            signal_all(left, signal.SIGKILL)
            ended, _ = os.waitpid(-1, 0)
            pids.discard(ended)
