"""The first steps inside a sandbox: set limits, unpack files, and run the command."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Sequence

from grader.sandbox import mounts
from grader.sandbox.interface import GB, Limits, Unavailable

_UNPACK = 'tar -xf {files} -C {home} --no-same-owner && exec "$@"'


def program(name: str) -> str:
    """Return a program's path in the system's folders. Raises Unavailable if it is missing."""
    path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
    if path is None:
        package = "tar" if name == "tar" else "util-linux"
        raise Unavailable(f"the sandbox needs {name}: apt install {package}")
    return path


def stage(command: Sequence[str], limits: Limits, *, uid: int | None, unpack: bool) -> list[str]:
    """Return the whole command line.

    Args:
        command: the program and its arguments.
        limits: the sandbox's limits.
        uid: start as root and become this user permanently; None to stay.
        unpack: whether there are files to unpack.
    """
    words = [program("prlimit"), *rlimits(limits), program("setpriv"), "--no-new-privs"]
    if uid is not None:
        words += [f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all"]
    words += ["--inh-caps=-all", "--ambient-caps=-all"]
    if unpack:
        program("tar")
        script = _UNPACK.format(files=mounts.FILES, home=mounts.HOME)
        words += ["/bin/sh", "-c", script, "sh"]
    return [*words, *command]


def rlimits(limits: Limits) -> list[str]:
    """Return the options of prlimit. None exceeds this process's own limits."""
    # Not the limit on memory, only a stop for absurd requests: torch maps far more than it uses.
    values = {"as": (resource.RLIMIT_AS, 4 * limits.memory + 16 * GB),
              "fsize": (resource.RLIMIT_FSIZE, limits.file_size),
              "nofile": (resource.RLIMIT_NOFILE, limits.open_files),
              "nproc": (resource.RLIMIT_NPROC, limits.processes),
              "core": (resource.RLIMIT_CORE, 0),
              "memlock": (resource.RLIMIT_MEMLOCK, 0),
              "msgqueue": (resource.RLIMIT_MSGQUEUE, 0),
              "sigpending": (resource.RLIMIT_SIGPENDING, 1024)}
    if limits.cpu_seconds is not None:
        values["cpu"] = (resource.RLIMIT_CPU, limits.cpu_seconds)
    words = []
    for name, (kind, value) in values.items():
        most = resource.getrlimit(kind)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        hard = value
        if name == "cpu":  # the soft one's signal says what happened
            hard = value + 1 if most == resource.RLIM_INFINITY else min(value + 1, most)
        words.append(f"--{name}={value}:{hard}")
    return words
