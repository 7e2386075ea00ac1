"""What a rank tries after it has been closed off."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Callable
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from warmranks.filters import MACHINES
from warmranks.isolation import DENIED, PR_SET_DUMPABLE, SIGNALS, enter_domain, isolate

COLUMN = MACHINES[platform.machine()][1]
TGKILL = SIGNALS["tgkill"][COLUMN]
IOPRIO_SET, SETRLIMIT = DENIED["ioprio_set"][COLUMN], DENIED["setrlimit"][COLUMN]
LIBC = ctypes.CDLL(None, use_errno=True)
FIOSETOWN, F_SETOWN_EX, TIOCSWINSZ = 0x8901, 15, 0x5414


def raw(number: int, *arguments: Any) -> None:
    """Make a system call. Raises OSError."""
    _required(LIBC.syscall(number, *arguments))


REFUSED: dict[str, Callable[[Path, int], Any]] = {
    "a socket": lambda folder, other: socket.socket(),
    "a pair of sockets": lambda folder, other: socket.socketpair(),
    "a new file": lambda folder, other: (folder / "new").write_text("x"),
    "a file for writing": lambda folder, other: (folder / "there").open("r+"),
    "a file for appending": lambda folder, other: (folder / "there").open("a"),
    "os.open": lambda folder, other: os.open(folder / "there", os.O_WRONLY),
    "a folder": lambda folder, other: (folder / "new").mkdir(),
    "another name": lambda folder, other: (folder / "there").rename(folder / "new"),
    "a hard link": lambda folder, other: os.link(folder / "there", folder / "new"),
    "a symbolic link": lambda folder, other: (folder / "new").symlink_to("there"),
    "a deletion": lambda folder, other: (folder / "there").unlink(),
    "other permissions": lambda folder, other: (folder / "there").chmod(0o700),
    "another time": lambda folder, other: os.utime(folder / "there"),
    "truncating": lambda folder, other: os.truncate(folder / "there", 0),
    "a named pipe": lambda folder, other: os.mkfifo(folder / "new"),
    "an attribute": lambda folder, other: os.setxattr(folder / "there", "user.x", b"x"),
    "a fork": lambda folder, other: os.fork(),
    "a program": lambda folder, other: subprocess.run(["true"], check=True),
    "exec": lambda folder, other: os.execv("/bin/true", ["true"]),
    "a signal": lambda folder, other: os.kill(other, 0),
    "a signal to a thread": lambda folder, other: raw(TGKILL, other, other, 0),
    "shared memory": lambda folder, other: shared_memory.SharedMemory(create=True, size=10),
    "a priority": lambda folder, other: os.setpriority(os.PRIO_PROCESS, 0, 5),
    "the process as a file": lambda folder, other: os.pidfd_open(other),
    "another one's limit": lambda folder, other: resource.prlimit(
        other, resource.RLIMIT_CORE, (0, 0)),
    "a limit": lambda folder, other: raw(SETRLIMIT, resource.RLIMIT_CORE, bytes(16)),
    "a limit by another call": lambda folder, other: _required(
        LIBC.prlimit(0, resource.RLIMIT_CORE, bytes(16), None)),
    "another one's processors": lambda folder, other: os.sched_setaffinity(
        other, os.sched_getaffinity(0)),
    "another one's scheduler": lambda folder, other: os.sched_setscheduler(
        other, os.SCHED_OTHER, os.sched_param(0)),
    "another one's disk priority": lambda folder, other: raw(IOPRIO_SET, 1, other, 0x4004),
    "a process group": lambda folder, other: os.setpgid(0, 0),
    "a session": lambda folder, other: os.setsid(),
    "an owner of a descriptor": lambda folder, other: fcntl.fcntl(0, fcntl.F_SETOWN, other),
    "an owner by its kind": lambda folder, other: fcntl.fcntl(
        0, F_SETOWN_EX, struct.pack("ii", 1, other)),
    "an owner by ioctl": lambda folder, other: fcntl.ioctl(0, FIOSETOWN, struct.pack("i", other)),
    "a size of a terminal": lambda folder, other: fcntl.ioctl(0, TIOCSWINSZ, bytes(8)),
    "another process's state": lambda folder, other: open(f"/proc/{other}/status").close(),
    "another process's files": lambda folder, other: os.listdir(f"/proc/{other}/fd"),
    "a terminal": lambda folder, other: os.close(os.open("/dev/ptmx", os.O_RDONLY)),
    "letting others trace it": lambda folder, other: _required(LIBC.prctl(PR_SET_DUMPABLE, 1)),
}


def _required(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _thread(folder: Path) -> None:
    thread = threading.Thread(target=lambda: torch.ones(50, 50) @ torch.ones(50, 50))
    thread.start()
    thread.join()


def _own_signal(folder: Path) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os.kill(os.getpid(), signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)


ALLOWED: dict[str, Callable[[Path], Any]] = {
    "reading": lambda folder: (folder / "there").read_text(),
    "listing": lambda folder: os.listdir(folder),
    "a thread": _thread, "a signal to itself": _own_signal,
    "a gradient": lambda folder: torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward(),
    "an optimizer": lambda folder: torch.optim.AdamW(torch.nn.Linear(3, 3).parameters()).step(),
    "a pipe": lambda folder: os.pipe(),
    "reading a limit": lambda folder: resource.getrlimit(resource.RLIMIT_NOFILE),
    "its own memory map": lambda folder: open("/proc/self/maps").close(),
    "random numbers": lambda folder: open("/dev/urandom", "rb").close(),
    "printing": lambda folder: print("x", flush=True),
    "an import": lambda folder: __import__("colorsys"),
}


def tries_everything(folder: str, other: int) -> dict[str, dict[str, str]]:
    """Return what becomes of each attempt."""
    isolate()
    return {"refused": {name: outcome(attempt, Path(folder), other)
                        for name, attempt in REFUSED.items()},
            "allowed": {name: outcome(attempt, Path(folder)) for name, attempt in ALLOWED.items()}}


def outcome(attempt: Callable[..., Any], *arguments: Any) -> str:
    try:
        attempt(*arguments)
    except OSError as error:
        return "ENOSYS" if error.errno == errno.ENOSYS else type(error).__name__
    return "ok"


def looks_at_the_other() -> dict[str, Any]:
    """Open what /proc shows of the other rank, each of which is in a domain of its own."""
    pids = [0, 0]
    dist.all_gather_object(pids, os.getpid())
    other = pids[1 - dist.get_rank()]
    dist.barrier()
    landlock = enter_domain()
    dist.barrier()
    found = {"landlock": landlock,
             "mem": outcome(lambda: open(f"/proc/{other}/mem", "rb").close()),
             "fd": outcome(lambda: os.readlink(f"/proc/{other}/fd/0"))}
    dist.barrier()
    return found
