"""Call Linux functions that the standard library lacks before Python 3.12, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWUSER = 0x00020000, 0x04000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 1 << 19
MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_CAP_AMBIENT = 1, 36, 47
PR_CAP_AMBIENT_RAISE = 2
CAP_NET_ADMIN, CAP_SYS_ADMIN = 12, 21
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41, "ppc64le": 203}
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, name: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(descriptor: int) -> None:
    _check(_libc.setns(ctypes.c_int(descriptor), ctypes.c_int(0)), "setns")


def mount(source: str, target: str, kind: str | None = None, flags: int = 0,
          data: str | None = None) -> None:
    words = [word.encode() if word is not None else None for word in (source, target, kind, data)]
    result = _libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])
    _check(result, f"mount {target}")


def umount_lazily(target: str) -> None:
    _check(_libc.umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"umount {target}")


def pivot_root(new: str, old: str) -> None:
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"pivot_root: unknown on {platform.machine()}")
    _check(_libc.syscall(ctypes.c_long(number), new.encode(), old.encode()), "pivot_root")


def sethostname(name: str) -> None:
    _check(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def prctl(option: int, value: int, third: int = 0) -> None:
    arguments = [ctypes.c_ulong(number) for number in (value, third, 0, 0)]
    _check(_libc.prctl(ctypes.c_int(option), *arguments), f"prctl {option}")


def keep_capabilities(*capabilities: int) -> None:
    """Keep capabilities across the next exec, which drops those that unshare gave to a user.

    Only `ip` and `tc` get them; daemons and jobs do not.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)()  # low words: effective, permitted, inheritable; then high words
    _check(_libc.capget(header, data), "capget")
    for capability in capabilities:
        data[2] |= 1 << capability  # ours are all below 32
    _check(_libc.capset(header, data), "capset")
    for capability in capabilities:
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)
