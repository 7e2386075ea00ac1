"""Replacements in a sandbox's /proc for entries that describe the whole machine.

A fresh /proc hides the processes of other sandboxes but not their effects. It shows the host's free
memory, its processor times, and its numbers of threads, open files, and terminals. One sandbox can
drive such a counter, and another one can read it.
"""

from __future__ import annotations

import os
import time
from functools import cache
from pathlib import Path

from grader.sandbox.interface import Limits

ROOT = Path("/proc")
# About the reader's own process and namespaces, or the same for as long as the machine runs.
UNCHANGED = frozenset({
    "acpi", "asound", "bus", "bootconfig", "cmdline", "config.gz", "consoles", "crypto", "devices",
    "device-tree", "dma", "driver", "execdomains", "fb", "filesystems", "iomem", "ioports",
    "kallsyms", "misc", "modules", "mounts", "mtrr", "net", "partitions", "scsi", "self", "sys",
    "sysvipc", "thread-self", "tty", "version", "version_signature"})
# The same in a folder that is otherwise kept.
COUNTERS = ("sys/fs", "sys/kernel/pty", "sys/kernel/random/entropy_avail")
MEMORY = ("MemTotal", "MemFree", "MemAvailable")
UNUSED = ("Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem",
          "Slab", "SReclaimable", "SUnreclaim")


def texts(limits: Limits) -> dict[str, bytes]:
    """Return the made-up files by path: an idle machine with as much memory as the limit."""
    memory = [f"{name}: {limits.memory // 1024} kB\n" for name in MEMORY]
    memory += [f"{name}: 0 kB\n" for name in UNUSED]
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {"/proc/cpuinfo": _read("cpuinfo"),
            "/proc/loadavg": b"0.00 0.00 0.00 1/1 1\n",
            "/proc/meminfo": "".join(memory).encode(),
            "/proc/stat": _stat(),
            "/proc/uptime": f"{now:.2f} 0.00\n".encode()}


@cache
def hidden() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files and the folders of this machine's /proc that are shown empty.

    What only root may read is not among them: nobody in a sandbox is root.
    """
    names = [path.name for path in ROOT.iterdir()
             if not path.name.isdigit() and path.name not in UNCHANGED]
    paths = [ROOT / name for name in (*sorted(names), *COUNTERS)]
    readable = [path for path in paths if path.exists() and path.stat().st_mode & 0o4]
    return (tuple(str(path) for path in readable if not path.is_dir()),
            tuple(str(path) for path in readable if path.is_dir()))


@cache
def _read(name: str) -> bytes:
    return (ROOT / name).read_bytes()


@cache
def _stat() -> bytes:
    """Return a /proc/stat without times; it still tells the processors and the time of boot."""
    processors = ["cpu", *(f"cpu{number}" for number in range(os.cpu_count() or 1))]
    lines = [f"{name} 0 0 0 0 0 0 0 0 0 0" for name in processors]
    boot = [line for line in _read("stat").decode().splitlines() if line.startswith("btime ")]
    return "\n".join([*lines, "intr 0", "ctxt 0", *boot, "processes 1", "procs_running 1",
                      "procs_blocked 0", ""]).encode()
