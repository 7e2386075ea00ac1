"""Check that this machine has enough memory for the ranks."""

from __future__ import annotations

from pathlib import Path

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.memory import amount

BYTES_PER_RANK = 150 * 2**20  # of a forked rank: Python objects, plans, and values of small tensors
BASE_BYTES = 500 * 2**20  # torch itself, which forked ranks share
MEMBERSHIP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
RECLAIMABLE = ("active_file", "inactive_file")  # what the kernel reclaims when programs need memory


def available() -> int | None:
    """Return the bytes that programs can still allocate, or None if they are not reported."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except FileNotFoundError:  # not Linux
        return None
    free = int(dict(line.split(":") for line in lines)["MemAvailable"].split()[0]) * 1024
    remaining = cgroup_free()
    return free if remaining is None else min(free, remaining)


def cgroup_free(membership: Path = MEMBERSHIP, groups: Path = GROUPS) -> int | None:
    """Return the bytes that control groups allow this process, or None without a limit.

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
    return min((remaining for folder in chain if (remaining := free_in(folder)) is not None),
               default=None)


def free_in(group: Path) -> int | None:
    """Return the bytes left in one control group, page cache included; None without a limit."""
    try:
        most = (group / "memory.max").read_text().strip()
        if most == "max":
            return None
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
    except FileNotFoundError:  # the root has no limit, nor has a group outside this namespace
        return None
    cache = sum(int(size) for name, size in map(str.split, lines) if name in RECLAIMABLE)
    return max(0, int(most) - used + cache)


def needed(ranks: int) -> int:
    """Return the approximate memory, in bytes, of this many forked ranks."""
    return BASE_BYTES + ranks * BYTES_PER_RANK


def check(ranks: int) -> str:
    """Return a sentence with the memory that the ranks need.

    Raises:
        VirtualGpuError: not enough memory is free.
    """
    free, need = available(), needed(ranks)
    sentence = f"{ranks} ranks need about {amount(need)} of this machine's memory"
    if free is None:
        return sentence
    if need > free:
        fit = max(1, (free - BASE_BYTES) // BYTES_PER_RANK)
        raise VirtualGpuError(
            f"{sentence}, but only {amount(free)} is free: {fit} ranks fit. Use --solo to run one "
            "process for all ranks of a symmetric program, or --present to run only some of "
            "the ranks")
    return f"{sentence}; {amount(free)} is free"
