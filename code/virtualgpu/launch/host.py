"""What ranks need of this machine's memory."""

from __future__ import annotations

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.core.memory import amount

RANK = 150 * 2**20  # what a forked rank adds: Python's objects, plans, and a small model's twins
BASE = 500 * 2**20  # torch itself, which forked ranks share


def available() -> int | None:
    """Bytes that programs can still take; None where the system does not tell."""
    try:
        with open("/proc/meminfo") as lines:
            found = dict(line.split(":") for line in lines)
        free = int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    return min(free, limit() or free)


def limit() -> int | None:
    """What a control group leaves this process; None without one."""
    try:
        with open("/sys/fs/cgroup/memory.max") as most, open(
                "/sys/fs/cgroup/memory.current") as now:
            return int(most.read()) - int(now.read())
    except (OSError, ValueError):  # "max"
        return None


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


