"""A thread that measures a sandbox from outside and ends it when it exceeds its limits.

If there is a control group, the kernel counts, and enforces a slightly higher limit.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grader.sandbox import mounts
from grader.sandbox.cgroups import ControlGroup
from grader.sandbox.interface import GB, MB, Limits

PERIOD = 0.05  # seconds
SHORT_OF_MEMORY = "the whole machine ran short of memory"
SCARCE = 0.03  # of the machine's memory: below this much free, the sandbox is ended
INODE = 1024  # bytes of kernel memory for a file, even an empty one
SETRESUID = {"x86_64": 117}  # 147 on other machines
PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


class Watchdog(threading.Thread):
    """Sets `verdict` and calls `end` at most once; `stop` before the sandbox is reaped."""

    def __init__(self, first: int, limits: Limits, group: ControlGroup | None,
                 end: Callable[[], None], uid: int | None = None) -> None:
        """Prepare the thread.

        Args:
            first: the pid here of the process whose PID namespace is the sandbox's.
            limits: the sandbox's limits.
            group: the sandbox's control group, if it has one.
            end: ends the sandbox.
            uid: the user who may inspect it, if it is not this process's.
        """
        super().__init__(name="sandbox watchdog", daemon=True)
        self.first, self.limits, self.group, self.end, self.uid = first, limits, group, end, uid
        self.folders: dict[str, int] = {}  # descriptors
        self.verdict = self.namespace = ""
        self._over = threading.Event()
        self._foreign: set[int] = set()
        self._forget = 0.0

    def run(self) -> None:
        if self.uid is not None:
            become_in_this_thread(self.uid)
        while not self._over.wait(PERIOD):
            verdict = self.exceeded_limit()
            if verdict:
                self.verdict = verdict
                self.end()
                return

    def stop(self) -> None:
        self._over.set()

    def close(self) -> None:
        """Check what the kernel did after the last check, and close the folders."""
        if not self.verdict and self.group and self.group.ran_out_of_memory():
            self.verdict = self.memory_verdict()
        self.join(1)
        for folder in self.folders.values():
            os.close(folder)
        self.folders.clear()

    def exceeded_limit(self) -> str:
        """Return which limit it exceeds; empty if none."""
        if self.group and (self.group.ran_out_of_memory()
                           or self.group.used() > self.limits.memory):
            return self.memory_verdict()
        if _scarce():
            return SHORT_OF_MEMORY
        if self.group or not self._entered():
            return ""
        members = list(self.members())
        if tasks(members) > self.limits.processes + 2:  # the first two are the sandbox's own
            return f"more than {self.limits.processes} processes and threads"
        files = self.file_bytes()
        if resident(members) + files <= self.limits.memory:
            return ""
        # Shared pages were counted once for every process; now exactly, which takes longer.
        exact = sum(proportional(pid) for pid in members) + files
        return self.memory_verdict() if exact > self.limits.memory else ""

    def memory_verdict(self) -> str:
        return f"its memory passed {amount(self.limits.memory)}"

    def _entered(self) -> bool:
        """Return whether it is set up. Its folders are then open, even if something is mounted over
        them."""
        if len(self.folders) == len(mounts.WRITABLE):
            return True
        root = f"/proc/{self.first}/root"
        try:
            self.namespace = os.readlink(f"/proc/{self.first}/ns/pid")
            if os.path.samefile(root, "/"):  # not in its own yet
                return False
            for path in mounts.WRITABLE:
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                self.folders.setdefault(path, os.open(root + path, flags))
        except OSError:
            return False
        return True

    def members(self) -> Iterator[int]:
        """Yield the pids here of processes in the sandbox's PID namespace."""
        if time.monotonic() > self._forget:  # a number may have come back as another process
            self._foreign.clear()
            self._forget = time.monotonic() + 1
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in self._foreign:
                continue
            try:
                inside = os.readlink(f"/proc/{name}/ns/pid") == self.namespace
            except OSError:  # it ended, or is another user's
                inside = False
            if inside:
                yield int(name)
            else:
                self._foreign.add(int(name))

    def file_bytes(self) -> int:
        """Return the bytes used in the sandbox's folders."""
        total = 0
        for folder in self.folders.values():
            usage = os.fstatvfs(folder)
            total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize
            total += (usage.f_files - usage.f_ffree) * INODE
        return total


def become_in_this_thread(uid: int) -> None:
    """Become a user in this thread only: for the kernel, users belong to threads.

    Root without rights over the machine, as in a container, may not inspect other users' processes.
    Raises OSError.
    """
    number = ctypes.c_long(SETRESUID.get(platform.machine(), 147))
    if _libc.syscall(number, uid, uid, uid):
        raise OSError(ctypes.get_errno(), "the watchdog cannot become the sandbox's user")


def amount(size: int) -> str:
    """Return a size with its unit."""
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / MB:.0f} MB"


def resident(members: list[int]) -> int:
    """Return the memory of the processes, in bytes; shared memory counts for each of them."""
    total = 0
    for pid in members:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return total


def proportional(pid: int) -> int:
    """Return the memory of one process, in bytes, with its share of shared pages; 0 if it has
    ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def tasks(members: list[int]) -> int:
    """Return the number of processes and their threads, which both count for the kernel's limit."""
    total = 0
    for pid in members:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
            total += int(text.rpartition(")")[2].split()[17])
        except (OSError, IndexError):
            continue
    return total


def _scarce() -> bool:
    """Return whether the machine is short of memory. Kernel buffers and hidden memory count only
    here."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return False
    return free < SCARCE * total
