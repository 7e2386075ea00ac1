"""A thread that measures a sandbox from outside and ends it when it takes too much.

Where there is a control group, the kernel counts, and holds a limit a little above.
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
SETRESUID = {"x86_64": 117}  # elsewhere 147
PAGE = os.sysconf("SC_PAGE_SIZE")
_libc = ctypes.CDLL(None, use_errno=True)


class Watchdog(threading.Thread):
    """Sets `verdict` and calls `end` at most once; `stop` before the sandbox is reaped."""

    def __init__(self, first: int, limits: Limits, group: ControlGroup | None,
                 end: Callable[[], None], uid: int | None = None) -> None:
        """`first`: the number, here, of the process whose PID namespace is the sandbox's.

        `uid`: the user who may look into it, if that is another one than this process's.
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
            verdict = self.look()
            if verdict:
                self.verdict = verdict
                self.end()
                return

    def stop(self) -> None:
        self._over.set()

    def close(self) -> None:
        """After the end: what the kernel did between two looks; then let go of the folders."""
        if not self.verdict and self.group and self.group.memory_passed():
            self.verdict = self.memory_words()
        self.join(1)
        for folder in self.folders.values():
            os.close(folder)
        self.folders.clear()

    def look(self) -> str:
        """What it took too much of, in words; empty when all is well."""
        if self.group and (self.group.memory_passed() or self.group.used() > self.limits.memory):
            return self.memory_words()
        if _scarce():
            return SHORT_OF_MEMORY
        if self.group or not self._entered():
            return ""
        members = list(self.members())
        if tasks(members) > self.limits.processes + 2:  # the first two are the sandbox's own
            return f"more than {self.limits.processes} processes and threads"
        files = self.in_files()
        if resident(members) + files <= self.limits.memory:
            return ""
        # Shared pages were counted once for every process; now exactly, which takes longer.
        exact = sum(proportional(pid) for pid in members) + files
        return self.memory_words() if exact > self.limits.memory else ""

    def memory_words(self) -> str:
        return f"its memory passed {amount(self.limits.memory)}"

    def _entered(self) -> bool:
        """Whether it is set up; its folders are then open, whatever is mounted over them later."""
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
        """Processes in the sandbox's PID namespace, by their numbers here."""
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

    def in_files(self) -> int:
        """Bytes that the sandbox's folders take."""
        total = 0
        for folder in self.folders.values():
            usage = os.fstatvfs(folder)
            total += (usage.f_blocks - usage.f_bfree) * usage.f_frsize
            total += (usage.f_files - usage.f_ffree) * INODE
        return total


def become_in_this_thread(uid: int) -> None:
    """For the kernel, users belong to threads; only the C library makes them the process's.

    Root without rights over the machine, as in a container, may look into no one else's processes.
    Raises OSError.
    """
    number = ctypes.c_long(SETRESUID.get(platform.machine(), 147))
    if _libc.syscall(number, uid, uid, uid):
        raise OSError(ctypes.get_errno(), "the watchdog cannot become the sandbox's user")


def amount(size: int) -> str:
    """Bytes as people say them."""
    return f"{size / GB:.1f} GB" if size >= GB else f"{size / MB:.0f} MB"


def resident(members: list[int]) -> int:
    """Bytes of memory of the processes; what they share counts for each."""
    total = 0
    for pid in members:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            continue  # it ended meanwhile
    return total


def proportional(pid: int) -> int:
    """Bytes of one process; of shared pages, its part. 0 when it has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def tasks(members: list[int]) -> int:
    """Processes and their threads: both count for the kernel's limit."""
    total = 0
    for pid in members:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
            total += int(text.rpartition(")")[2].split()[17])
        except (OSError, IndexError):
            continue
    return total


def _scarce() -> bool:
    """Kernel buffers and hidden memory are in no process's figure, but in the machine's."""
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":") for line in file)
        total, free = (int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    except (OSError, KeyError, ValueError):
        return False
    return free < SCARCE * total
