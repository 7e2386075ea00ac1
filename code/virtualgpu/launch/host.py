"""Memory of this machine that the ranks need."""

from __future__ import annotations

from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.memory import amount

RANK = 150 * 2**20  # what a forked rank adds: Python's objects, plans, and a small model's twins
BASE = 500 * 2**20  # torch itself, which forked ranks share
MEMBERSHIP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
CACHE = ("active_file", "inactive_file")  # what the kernel reclaims when programs need memory


def available() -> int | None:
    """Bytes that programs can still take; None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux
        return None
    free = int(dict(line.split(":") for line in lines)["MemAvailable"].split()[0]) * 1024
    left = limit()
    return free if left is None else min(free, left)


def limit(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> int | None:
    """Return the bytes that control groups leave this process; None where none has a limit.

    Args:
        membership: the file that names this process's control group (version 2).
        groups: the folder of all control groups.
    """
    try:
        lines = membership.read_text().splitlines()
    except FileNotFoundError:
        return None
    path = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), None)
    if path is None:
        return None
    own = groups / path
    chain = [folder for folder in (own, *own.parents) if folder.is_relative_to(groups)]
    return min((left for folder in chain if (left := left_in(folder)) is not None), default=None)


def left_in(group: Path) -> int | None:
    """Return the bytes left in one control group, page cache included; None without a limit."""
    try:
        most = (group / "memory.max").read_text().strip()
        if most == "max":
            return None
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
    except FileNotFoundError:  # the root has none, nor a group outside of this namespace
        return None
    cache = sum(int(size) for name, size in map(str.split, lines) if name in CACHE)
    return max(0, int(most) - used + cache)


def needed(ranks: int) -> int:
    """Bytes that so many forked ranks take, roughly."""
    return BASE + ranks * RANK


def check(ranks: int) -> str:
    """Return what the ranks need, in words. Raises VirtualGpuError where that is not there."""
    free, need = available(), needed(ranks)
    said = f"{ranks} ranks need about {amount(need)} of this machine's memory"
    if free is None:
        return said
    if need > free:
        fit = max(1, (free - BASE) // RANK)
        raise VirtualGpuError(
            f"{said}, but only {amount(free)} is free: {fit} ranks fit. Use --solo to run one "
            "process for all ranks of a symmetric program, or --present to run only some of "
            "the ranks")
    return f"{said}; {amount(free)} is free"
