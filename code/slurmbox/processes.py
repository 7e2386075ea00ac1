"""Processes of a cluster, seen from outside: is it alive, what is left, end it."""

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
    """In clock ticks since boot; with the PID it names one process for ever. None: no process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants(pid: int, patience: float = 5.0) -> None:
    """Kill all descendants of this subreaper, including orphans, and return when none is left."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        left = [child.pid for child in psutil.Process(pid).children(recursive=True)]
        if not left:
            return
        kill(left)
        time.sleep(0.01)


def wait_gone(pid: int, started: int, patience: float) -> bool:
    deadline = time.monotonic() + patience
    while start_time(pid) == started:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def in_root(identity: str) -> list[int]:
    """Processes that see the root folder of this cluster: they entered its namespaces."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/root{MARKER}").read_text().strip() == identity:
                found.append(pid)
    return [pid for pid in found if pid != os.getpid()]


def with_variable(*wanted: str) -> list[int]:
    """Processes with one of these NAME=VALUE in their environment, but not this one's family."""
    words, found = {text.encode() for text in wanted}, []
    family = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if pid not in family and words & set(
                    Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
                found.append(pid)
    return found
