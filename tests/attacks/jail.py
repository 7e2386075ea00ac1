"""The outer jail: what attacks a grader runs in here, so that it cannot harm the machine.

Inside there is a read-only system, the checkout (read-only), an ordinary user, process numbers and
a loopback of its own, and /scratch, a file system of limited size, for everything that is written.
Limits: the memory of all processes together, processes, disk, seconds. The jail is bubblewrap and
shares no code with grader/sandbox, which is among what is attacked.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

CHECKOUT = Path(__file__).resolve().parents[2]
SCRATCH = "/scratch"
HOSTNAME = "jail"
FIRST_UID = 62000  # of nobody on a usual system; each jail has one, so that limits do not add up
LOOK_EVERY = 0.1  # seconds
TAIL = 4_000_000  # bytes of output that are kept


@dataclass(frozen=True)
class Limits:
    """Limits of one jail as a whole; sizes are in bytes."""

    memory: int = 3_000_000_000
    processes: int = 500
    disk: int = 400_000_000
    seconds: float = 240


@dataclass(frozen=True)
class Done:
    """The end of a jailed program."""

    code: int
    output: str
    errors: str
    killed: str  # by which limit; empty: by none
    seconds: float


def command(words: list[str], limits: Limits, readable: dict[str, Path], uid: int) -> list[str]:
    """The bubblewrap command line that runs `words`; `readable`: more folders, by inner path."""
    line = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
            "--die-with-parent", "--new-session", "--hostname", HOSTNAME, "--clearenv",
            "--tmpfs", "/", "--dev", "/dev"]
    root = os.geteuid() == 0
    line += ["--dir", "/proc"] if root else ["--unshare-user", "--proc", "/proc"]
    for folder in ("/tmp", SCRATCH):
        line += ["--size", str(limits.disk), "--perms", "1777", "--tmpfs", folder]
    roots = [*(Path("/") / name for name in ("usr", "bin", "sbin", "lib", "lib64", "etc")),
             Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), CHECKOUT]
    binds = {str(path): path for path in roots if path.exists()} | readable
    above = {str(folder): None for inside in binds for folder in reversed(Path(inside).parents)}
    for folder in set(above) - {"/", "/tmp", *binds}:  # bubblewrap's own would be root's alone
        above[folder] = True
    for folder in (name for name, ours in above.items() if ours):
        line += ["--perms", "0755", "--dir", folder]
    for inside, path in binds.items():
        line += ["--ro-bind", str(path), inside]
    line += ["--remount-ro", "/", "--chdir", SCRATCH]
    for name, value in environment().items():
        line += ["--setenv", name, value]
    caps = [f"--nproc={limits.processes}", "--core=0", f"--as={16 * limits.memory}"]
    if root:  # an ordinary user outside, too: limits on processes spare root
        for name in ("SETUID", "SETGID", "SETPCAP", "SYS_ADMIN"):
            line += ["--cap-add", f"CAP_{name}"]
        # bubblewrap covers parts of a /proc that it mounts as root, and the kernel then refuses
        # one to the sandboxes within; this is a whole one, and its reader an ordinary user.
        line += ["--", "sh", "-c", 'mount -t proc proc /proc && exec "$@"', "sh",
                 "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
                 "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    else:
        line.append("--")
    return [*line, "prlimit", *caps, "--", *words]


def environment() -> dict[str, str]:
    """The environment of a program in the jail; it has none of our variables but these."""
    return {"PATH": f"{Path(sys.prefix) / 'bin'}:/usr/bin:/bin", "HOME": f"{SCRATCH}/home",
            "LANG": "C.UTF-8", "TMPDIR": SCRATCH, "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": f"{CHECKOUT / 'code'}:{CHECKOUT}", "OMP_NUM_THREADS": "1",
            "LAB_HOME": f"{SCRATCH}/workspace"}


def run(words: list[str], limits: Limits | None = None, readable: dict[str, Path] | None = None
        ) -> Done:
    """Run `words` in a jail until they end, or pass a limit; then every process of it is gone."""
    limits, start = limits or Limits(), time.monotonic()
    uid = FIRST_UID + os.getpid() % 1000
    process = subprocess.Popen(command(words, limits, readable or {}, uid), text=True,
                               errors="replace", stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watch = _Watch(process.pid, limits)
    watch.start()
    try:
        output, errors = process.communicate(timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        watch.killed = f"its time passed {limits.seconds:g} s"
        process.kill()
        output, errors = process.communicate()
    finally:
        process.kill()
        watch.over.set()
        watch.join()
    return Done(process.returncode, output[-TAIL:], errors[-TAIL:], watch.killed,
                time.monotonic() - start)


class _Watch(threading.Thread):
    """Kills the jail when its processes together hold too much memory."""

    def __init__(self, pid: int, limits: Limits) -> None:
        super().__init__(daemon=True)
        self.root, self.limits, self.killed = psutil.Process(pid), limits, ""
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(LOOK_EVERY):
            try:
                inside = self.root.children(recursive=True)
                # Shared pages count for each process first; only then exactly, which takes longer.
                if (sum(map(_resident, inside)) > self.limits.memory
                        and sum(map(_proportional, inside)) > self.limits.memory):
                    self.killed = f"its memory passed {self.limits.memory / 1e9:.1f} GB"
                    self.root.kill()
            except psutil.Error:
                return


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.Error:
        return 0


def _proportional(process: psutil.Process) -> int:
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def available() -> str:
    """Why there can be no jail here; empty when there can."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed (apt install bubblewrap)"
    done = run(["true"], Limits(seconds=20))
    return "" if done.code == 0 else f"bubblewrap does not work here: {done.errors.strip()[:200]}"
