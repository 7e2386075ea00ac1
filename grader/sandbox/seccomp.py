"""A filter program for the kernel that blocks system calls students' code does not need.

Namespaces leave some of the kernel shared: keyrings, AF_VSOCK, memory that no folder shows. They
also leave files shared. Two sandboxes that see the same read-only file see the same inode, and what
the kernel attaches to an inode (locks, leases, watches, cached pages) carries messages between
them.
"""

from __future__ import annotations

import platform

from labcore.errors import LabError
from warmranks import filters
from warmranks.filters import (
    ANY_BIT,
    ARGUMENT_0,
    ARGUMENT_1,
    ARGUMENT_2,
    ENOSYS,
    EPERM,
    EQUAL,
    LOAD,
    MACHINES,
    allow,
    only,
    refuse,
)

# name: number on x86_64, number on aarch64 and riscv64
DENIED = {
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # other processes, and namespaces of one's own
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "pidfd_getfd": (438, 438), "kcmp": (312, 272), "unshare": (272, 97), "setns": (308, 268),
    # mounts
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433),
    "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    # large attack surfaces of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    # memory that counts neither for a process nor for a folder
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194),
    "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
}
# Each of these shows what another sandbox does with a file that both see. They fail as on a kernel
# without them (ENOSYS), which libraries are prepared for: filelock falls back to a lock file.
UNSUPPORTED = {
    "flock": (73, 32), "inotify_init": (253, None), "inotify_init1": (294, 26),
    "fanotify_init": (300, 262),
    # cached pages of a file: which there are (preadv2 with RWF_NOWAIT), and dropping them
    "mincore": (27, 232), "cachestat": (451, 451), "preadv2": (327, 286), "fadvise64": (221, 223),
    "process_madvise": (440, 440),
}
CLONE3, CLONE, IOCTL, SOCKET = (435, 435), (56, 220), (16, 29), (41, 198)
FCNTL, MADVISE = (72, 25), (28, 233)
# Commands of fcntl about descriptors, pipes, and seals. All others are about inodes: record locks,
# leases, directory notifications, write hints.
DESCRIPTOR_COMMANDS = (0, 1, 2, 3, 4, 8, 9, 10, 11, 15, 16, 17, 1027, 1030, 1031, 1032, 1033, 1034)
# All advice but MADV_COLD and MADV_PAGEOUT, which drop cached pages of a mapped file.
ADVICE = (4, *range(4), *range(8, 20), *range(22, 26), 102, 103)
NEW_NAMESPACE = 0x7E020000  # clone's flags CLONE_NEW*
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into somebody's terminal
FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK


def oci(default: dict) -> dict:
    """Return a container engine's default profile without those calls, in the engine's own
    format."""
    conditional = {"clone", "clone3", "socket", "fcntl", "madvise"}
    closed = {*DENIED, *UNSUPPORTED, *conditional}
    rules = []
    for rule in default["syscalls"]:
        names = [name for name in rule["names"]
                 if rule["action"] != "SCMP_ACT_ALLOW" or name not in closed]
        if names and not conditional & set(names):
            rules.append(rule | {"names": names})
    rules.append({"names": ["clone3", *UNSUPPORTED], "action": "SCMP_ACT_ERRNO",
                  "errnoRet": ENOSYS})
    rules.append(_when("clone", 0, "SCMP_CMP_MASKED_EQ", NEW_NAMESPACE))
    rules += [_when("socket", 0, "SCMP_CMP_EQ", family) for family in FAMILIES]
    rules += [_when("fcntl", 1, "SCMP_CMP_EQ", command) for command in DESCRIPTOR_COMMANDS]
    rules += [_when("madvise", 2, "SCMP_CMP_EQ", advice) for advice in ADVICE]
    return default | {"syscalls": rules}


def _when(name: str, index: int, comparison: str, value: int) -> dict:
    """Return the rule that allows a call if one of its arguments passes a comparison.

    Args:
        name: the system call's name.
        index: the argument's position, from 0.
        comparison: libseccomp's; SCMP_CMP_MASKED_EQ means that the bits of `value` are all clear.
        value: what the argument is compared with.
    """
    return {"names": [name], "action": "SCMP_ACT_ALLOW",
            "args": [{"index": index, "value": value, "valueTwo": 0, "op": comparison}]}


def program(machine: str | None = None) -> bytes:
    """Return the filter as struct sock_filter[]. Raises LabError for an unknown machine."""
    machine = platform.machine() if machine is None else machine
    if machine not in MACHINES:
        raise LabError(f"the bubblewrap sandbox has no system call numbers for {machine}: "
                       f"{', '.join(MACHINES)}; podman is the other back-end")
    _, column = MACHINES[machine]
    lines = filters.prologue(machine)
    for calls, error in ((DENIED, EPERM), (UNSUPPORTED, ENOSYS)):
        for numbers in calls.values():
            if numbers[column] is not None:
                lines += [(EQUAL, 0, 1, numbers[column]), refuse(error)]
    # Its flags lie in memory, which a filter cannot read; libc then falls back to clone.
    lines += [(EQUAL, 0, 1, CLONE3[column]), refuse(ENOSYS)]
    lines += [(EQUAL, 0, 4, CLONE[column]), (LOAD, 0, 0, ARGUMENT_0),
              (ANY_BIT, 0, 1, NEW_NAMESPACE), refuse(EPERM), allow()]
    lines += [(EQUAL, 0, 5, IOCTL[column]), (LOAD, 0, 0, ARGUMENT_1),
              (EQUAL, 1, 0, TERMINAL_INPUT[0]), (EQUAL, 0, 1, TERMINAL_INPUT[1]),
              refuse(EPERM), allow()]
    lines += only(MADVISE[column], ARGUMENT_2, ADVICE)
    lines += only(FCNTL[column], ARGUMENT_1, DESCRIPTOR_COMMANDS)
    lines += [*only(SOCKET[column], ARGUMENT_0, FAMILIES), allow()]
    return filters.assembled(lines)
