"""The host's devices, sealed: a sandbox can use them, but cannot set their time stamps.

bwrap shows a sandbox the host's own /dev/null. A process that may write to it may also set its
modification time to now, which every other sandbox can read. So bwrap starts in a mount namespace
in which each device is a read-only mount: data written to the device still arrives. (Where bwrap
itself mounts something read-only, it also forbids devices there.)
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from grader.sandbox import inside

NAMES = ("null", "zero", "full", "random", "urandom", "tty")
# Those of /dev itself, which an ordinary user must not take away.
OPTIONS = "bind,ro,nosuid,noexec"
TABLE = "/etc/fstab"  # where a sandbox finds the table


@cache
def mounted() -> tuple[str, ...]:
    """Return the devices that are already mounts, as in a container: `mount --all` skips those."""
    places = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return tuple(name for name in NAMES if f"/dev/{name}" in places)


@cache
def table() -> bytes:
    """Return the lines of a table like /etc/fstab that seal the other devices."""
    return "".join(f"/dev/{name} /dev/{name} none {OPTIONS}\n" for name in NAMES
                   if name not in mounted() and Path("/dev", name).exists()).encode()


def sealed(descriptor: str, *, own_user: bool) -> list[str]:
    """Return a prefix for a command line that seals the devices.

    Args:
        descriptor: number of an inherited descriptor that holds `table()`.
        own_user: whether a user namespace is needed for mounting.
    """
    user = ["--user", "--map-root-user"] if own_user else []
    steps = [f"mount --all --fstab /dev/fd/{descriptor}",
             *(f"mount -o {OPTIONS} /dev/{name} /dev/{name}" for name in mounted())]
    return [inside.program("unshare"), *user, "--mount", "/bin/sh", "-c",
            " && ".join(steps) + ' || exit 125; exec "$@"', "sh"]
