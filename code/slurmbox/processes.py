"""Inspect and kill a cluster's processes from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from slurmbox.namespaces import MARKER


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, or None if it does not exist.

    A PID and its start time together identify a process, although PIDs are reused.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int, timeout: float = 5.0) -> None:
    """Kill all descendants of this subreaper, including orphans, and wait until none is left.

    Args:
        pid: this process.
        timeout: in seconds.
    """
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        if not left:
            return
        kill(left)
        time.sleep(0.01)


def wait_gone(pid: int, started: int, timeout: float) -> bool:
    """Return whether a process ends within `timeout` seconds.

    Args:
        pid: its ID.
        started: its start time, as from `start_time`.
        timeout: in seconds.
    """
    deadline = time.monotonic() + timeout
    while start_time(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def pids_in_cluster(identity: str) -> list[int]:
    """Return the IDs of the processes that entered the namespaces of this cluster."""
    inside = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/root{MARKER}").read_text().strip() == identity:
                inside.append(pid)
    return [pid for pid in inside if pid != os.getpid()]


def pids_with_variable(*wanted: str) -> list[int]:
    """Return the IDs of processes with one of these NAME=VALUE in their environment.

    This process and its parents are left out.
    """
    words, matches = {text.encode() for text in wanted}, []
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid not in family and words & set(
                    Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                matches.append(pid)
    return matches
