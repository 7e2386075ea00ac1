"""Close a rank off from everything but the broker, before it runs anybody's code.

A rank in a sandbox could otherwise reach the other ranks past the broker: through files, sockets,
signals, their memory, or a property of a process that another one can read. It keeps its files for
reading, its threads, and its channel. This adds to the sandbox's own filter
(grader/sandbox/seccomp.py), which closes what no program there needs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
from collections.abc import Sequence
from pathlib import Path

from warmranks import filters
from warmranks.filters import (
    ANY_BIT,
    ARGUMENT_0,
    ARGUMENT_1,
    ARGUMENT_2,
    EPERM,
    EQUAL,
    LOAD,
    MACHINES,
    allow,
    refuse,
)

EACCES = 13
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_NAME, MODE_FILTER = 22, 38, 15, 2
PR_SET_DUMPABLE = 4
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # Landlock's, on every architecture
PATH_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
READ_FILE, READ_DIR = 1 << 2, 1 << 3  # LANDLOCK_ACCESS_FS_*
MAKE_BLOCK = 1 << 11  # a right that nobody uses
# What a rank reads of /proc and /dev: nothing there is about another process or a terminal.
READABLE = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys", "/dev/null",
            "/dev/zero", "/dev/random", "/dev/urandom")
THREAD = 0x10000  # CLONE_THREAD
WRITING = 0x400643  # O_WRONLY, O_RDWR, O_CREAT, O_TRUNC, O_APPEND, O_TMPFILE
# name: number on x86_64, number on aarch64 and riscv64
DENIED = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200),
    "listen": (50, 201), "accept": (43, 202), "accept4": (288, 242),
    "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424),
    "creat": (85, None), "mkdir": (83, None), "mkdirat": (258, 34), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37),
    "symlink": (88, None), "symlinkat": (266, 36), "unlink": (87, None), "unlinkat": (263, 35),
    "rmdir": (84, None), "mknod": (133, None), "mknodat": (259, 33), "truncate": (76, 45),
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "chown": (92, None),
    "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7),
    # properties of a process that another one can read, and some of them set
    "setpriority": (141, 140), "ioprio_set": (251, 30), "setrlimit": (160, 164),
    "sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setattr": (314, 274), "setpgid": (109, 154),
    "setsid": (112, 157),
}
MISSING = {"clone3": (435, 435), "openat2": (437, 437)}  # their flags lie in memory
CLONE, OPEN, OPENAT, PRCTL = (56, 220), (2, None), (257, 56), (157, 167)
PRLIMIT, FCNTL, IOCTL = (302, 261), (72, 25), (16, 29)
# A descriptor's owner receives signals: F_SETOWN, F_SETSIG, F_SETOWN_EX.
OWNER_COMMANDS = (8, 10, 15)
# TCGETS and TCGETS2 (is it a terminal?), TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX. Others
# set owners of descriptors, or properties of terminals.
DESCRIPTOR_IOCTLS = (0x5401, 0x802C542A, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
SIGNALS = {"kill": (62, 129), "tgkill": (234, 131)}  # allowed to this process


def isolate() -> None:
    """Close this process off, for good. Raises OSError where the kernel refuses.

    What it prints from now on is lost.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    use_own_streams()
    _require(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    let_others_trace(False)
    enter_domain(libc, readable())
    content = program(os.getpid())
    buffer = ctypes.create_string_buffer(content, len(content))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    described = Program(len(content) // filters.INSTRUCTION.size, ctypes.addressof(buffer))
    _require(libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(described), 0, 0))


def let_others_trace(allowed: bool) -> None:
    """Let processes of the same user open this one's memory and descriptors in /proc, or none.

    Forks inherit it. Unlike a Landlock domain, it works on every kernel.
    """
    _require(ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, int(allowed), 0, 0, 0))


def use_own_streams() -> None:
    """Replace the standard streams, which all ranks share, by an opened /dev/null of this process.

    The ranks' standard error is one file: what one rank writes into it, another could read. Even
    the position and the flags of a shared stream are a message.
    """
    own = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(own, number)
    os.close(own)


def readable() -> list[str]:
    """Return the files and folders that a rank may read: all but other processes' and devices."""
    roots = [str(path) for path in Path("/").iterdir() if path.name not in ("proc", "dev")]
    return [path for path in (*roots, *READABLE) if os.path.exists(path)]


def enter_domain(libc: ctypes.CDLL | None = None, paths: Sequence[str] | None = None) -> bool:
    """Enter a Landlock domain of this process's own, whose descendants are in it, too.

    A process in a domain can neither trace one outside of it nor open its memory, descriptors, or
    environment in /proc. Returns whether the kernel has Landlock (Linux 5.13).

    Args:
        libc: the C library.
        paths: the only files and folders that can be read from now on; None for no such limit.

    Raises OSError if one of them cannot be opened.
    """
    libc = libc or ctypes.CDLL(None, use_errno=True)
    _require(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    handled = ctypes.c_uint64(MAKE_BLOCK if paths is None else READ_FILE | READ_DIR)
    ruleset = libc.syscall(CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    if ruleset < 0:
        return False
    try:
        for path in paths or ():
            _let_read(libc, ruleset, path)
        return libc.syscall(RESTRICT_SELF, ruleset, 0) == 0
    finally:
        with contextlib.suppress(OSError):
            os.close(ruleset)


def _let_read(libc: ctypes.CDLL, ruleset: int, path: str) -> None:
    access = READ_FILE | READ_DIR if os.path.isdir(path) else READ_FILE
    opened = os.open(path, os.O_PATH)
    try:
        rule = struct.pack("=Qi", access, opened)
        _require(libc.syscall(ADD_RULE, ruleset, PATH_BENEATH, rule, 0))
    finally:
        os.close(opened)


def program(process: int, machine: str | None = None) -> bytes:
    """Return the filter.

    Args:
        process: the process that may receive its signals.
        machine: the kernel's name of the architecture; this machine's by default.
    """
    machine = machine or platform.machine()
    if machine not in MACHINES:
        raise OSError(f"ranks cannot be isolated on {machine}: {', '.join(MACHINES)}")
    _, column = MACHINES[machine]
    lines = filters.prologue(machine)
    for calls, error in ((DENIED, EPERM), (MISSING, filters.ENOSYS)):
        for numbers in calls.values():
            if numbers[column] is not None:
                lines += [(EQUAL, 0, 1, numbers[column]), refuse(error)]
    lines += [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, ARGUMENT_0), (ANY_BIT, 1, 0, THREAD),
              refuse(EPERM), allow()]
    for number, argument in ((OPEN[column], ARGUMENT_1),
                             (OPENAT[column], ARGUMENT_2)):
        if number is not None:
            lines += [(EQUAL, 0, 4, number), (LOAD, 0, 0, argument), (ANY_BIT, 0, 1, WRITING),
                      refuse(EACCES), allow()]
    for numbers in SIGNALS.values():
        lines += filters.only(numbers[column], ARGUMENT_0, (process,))
    lines += filters.only(IOCTL[column], ARGUMENT_1, DESCRIPTOR_IOCTLS)
    lines += filters.never(FCNTL[column], ARGUMENT_1, OWNER_COMMANDS)
    # Limits can be read, and not set: the pointer to new ones has two halves, both 0.
    lines += [(EQUAL, 0, 6, PRLIMIT[column]), (LOAD, 0, 0, ARGUMENT_2), (EQUAL, 0, 2, 0),
              (LOAD, 0, 0, ARGUMENT_2 + 4), (EQUAL, 1, 0, 0), refuse(EPERM), allow()]
    # A thread's name can be read by others: setting it does nothing, and succeeds.
    lines += [(EQUAL, 0, 6, PRCTL[column]), (LOAD, 0, 0, ARGUMENT_0), (EQUAL, 0, 1, PR_SET_NAME),
              refuse(0), (EQUAL, 0, 1, PR_SET_DUMPABLE), refuse(EPERM), allow()]
    return filters.assembled([*lines, allow()])


def _require(result: int) -> None:
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"a rank cannot be isolated: {os.strerror(error)}")
