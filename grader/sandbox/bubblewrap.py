"""The bubblewrap back end: namespaces made by `bwrap`, as root or as an ordinary user."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from grader.sandbox import cgroups, devices, inside, mounts, proc, seccomp, slots
from grader.sandbox.interface import Limits, Unavailable
from grader.sandbox.masks import SandboxMasks
from grader.sandbox.running import Running
from grader.sandbox.watchdog import Watchdog

OLDEST = (0, 6)  # the first with --size and --perms
CAP_SYS_ADMIN = 21
# Not needed for isolation: a host name, and a separate /proc instead of a few fixed files.
OPTIONAL = {"hostname": ("--hostname", mounts.HOSTNAME), "proc": ("--proc", "/proc")}
# What inside.stage needs to become an ordinary user, and gives up with it.
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
# Before bwrap: be the kernel's first choice when the machine is out of memory; enter the groups.
_ENTER = ('echo 1000 2>/dev/null >/proc/self/oom_score_adj; '
          'while [ "$1" != -- ]; do echo $$ >"$1" || exit 125; shift; done; shift; exec "$@"')


class Bubblewrap:
    """Runs a command in new namespaces of every kind.

    With root's rights over the machine, bwrap mounts as root, and the command continues as an
    ordinary user; without them, bwrap makes a user namespace.
    """

    name = "bubblewrap"

    @cached_property
    def bwrap(self) -> str:
        """Return the path of bwrap. Raises Unavailable if it is missing or too old."""
        path = shutil.which("bwrap", path=os.environ.get("PATH", "") + ":/usr/bin:/usr/local/bin")
        if path is None:
            raise Unavailable("bubblewrap is not installed: apt install bubblewrap")
        version = subprocess.run([path, "--version"], capture_output=True, text=True).stdout.strip()
        numbers = tuple(int(part) for part in version.rpartition(" ")[2].split(".")[:2]
                        if part.isdigit())
        if numbers < OLDEST:
            raise Unavailable(f"{version or path} is too old: 0.6 or newer is needed, which Debian "
                              "12 and Ubuntu 22.04 have")
        return path

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """Return the available OPTIONAL features. In some containers the kernel refuses them."""
        cgroups.sweep()
        uid = slots.FIRST
        bwrap, available = self.bwrap, []
        for option, words in OPTIONAL.items():
            with Inherited() as inherited:
                tried = subprocess.run(
                    [*bwrap_prefix(uid, inherited.data(devices.table())), bwrap,
                     *namespace_options(uid), "--ro-bind", "/", "/", *words, "/bin/true"],
                    capture_output=True, pass_fds=tuple(inherited.for_child()))
            available += [] if tried.returncode else [option]
        return tuple(available)

    def start(self, command: Sequence[str], limits: Limits, *,
              files: Mapping[str, bytes] | None = None,
              environment: Mapping[str, str] | None = None,
              masks: SandboxMasks | None = None) -> Running:
        packed = mounts.archive(dict(files or {}))
        with contextlib.ExitStack() as undo:
            uid = slots.FIRST
            if os.geteuid() == 0 and slots.mapped():
                slot = slots.take()
                undo.callback(slot.free)
                uid = slot.uid
            group = cgroups.make(limits)
            if group:
                undo.callback(group.remove)
            with Inherited() as inherited:
                words = self.words(command, limits, uid, packed, environment or {}, inherited.data,
                                   masks)
                enter_files = group.enter_files if group else []
                running, pid = launched(["/bin/sh", "-c", _ENTER, "sh", *enter_files, "--", *words],
                                        inherited)
            if pid:
                running.watch(Watchdog(pid, limits, group, running.send_kill,
                                       uid if unprivileged_prefix(uid) else None))
            running.at_end(undo.pop_all().close)
        return running

    def words(self, command: Sequence[str], limits: Limits, uid: int, packed: bytes | None,
              environment: Mapping[str, str], data: Callable[[bytes], str],
              masks: SandboxMasks | None = None) -> list[str]:
        """Return the whole command line.

        Args:
            command: the program and its arguments.
            limits: the sandbox's limits.
            uid: the user inside.
            packed: a tar of extra files.
            environment: extra variables.
            data: makes an inherited descriptor with the given content.
            masks: what programs cannot see or import.
        """
        bwrap, table = self.bwrap, data(devices.table())
        words = [*bwrap_prefix(uid, table), bwrap, *namespace_options(uid),
                 "--seccomp", data(seccomp.program())]
        for option in self.optional:
            words += OPTIONAL[option]
        words += _proc(limits, fresh="proc" in self.optional, data=data)
        view = mounts.visible(uid, shown=masks.shown if masks else None)
        words += mount_options(view, limits, data)
        for pair in mounts.environment(dict(environment)).items():
            words += ["--setenv", *pair]
        words += ["--ro-bind-data", table, devices.TABLE]  # or the command would inherit it
        if packed is not None:
            words += ["--perms", "0444", "--ro-bind-data", data(packed), mounts.FILES]
        return [*words, "--remount-ro", "/", "--", *inside.stage(
            command, limits, uid=uid if privileged() else None, unpack=packed is not None)]


def privileged() -> bool:
    """Return whether this process may mount and change users itself."""
    if os.geteuid() or not slots.mapped():
        return False
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        effective = next(line for line in lines if line.startswith("CapEff:"))
        return bool(int(effective.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def unprivileged_prefix(uid: int) -> list[str]:
    """Return a prefix for bwrap: root without rights over the machine first becomes an ordinary
    user."""
    if os.geteuid() or privileged() or not slots.mapped():
        return []
    return [inside.program("setpriv"), f"--reuid={uid}", f"--regid={uid}", "--clear-groups",
            "--inh-caps=-all", "--"]


def bwrap_prefix(uid: int, table: str) -> list[str]:
    """Return the prefix of bwrap's command line: it sets the user and seals the host's devices.

    Args:
        uid: the sandbox's user.
        table: number of an inherited descriptor that holds `devices.table()`.
    """
    return [*unprivileged_prefix(uid), *devices.sealed(table, own_user=not privileged())]


def namespace_options(uid: int) -> list[str]:
    """Return bwrap's options for isolation, and for ending with the grader."""
    words = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts",
             "--unshare-cgroup-try", "--die-with-parent", "--new-session", "--clearenv"]
    if privileged():
        return words + [word for name in CAPABILITIES for word in ("--cap-add", name)]
    return [*words, "--unshare-user", "--uid", str(uid), "--gid", str(uid), "--cap-drop", "ALL"]


def mount_options(view: mounts.Visible, limits: Limits,
            data: Callable[[bytes], str]) -> list[str]:
    """Return bwrap's options for all mounts.

    Args:
        view: what the sandbox sees.
        limits: the sandbox's limits.
        data: makes an inherited descriptor with the given content.
    """
    words, masks = [], []
    for where, target in view.links:
        words += ["--symlink", target, where]
    words += ["--dev", "/dev"]
    for where in mounts.folders_above([*mounts.WRITABLE, mounts.FILES]):
        words += _folder(where)
    for where in mounts.WRITABLE:
        words += ["--perms", "1777", "--size", str(limits.disk), "--tmpfs", where]
    words += ["--remount-ro", "/dev", "--chdir", mounts.HOME]
    for where, text in view.texts:
        words += [*_folder(os.path.dirname(where)),
                  "--perms", "0444", "--ro-bind-data", data(text), where]
    for kind, where, source in view.steps:
        for above in mounts.folders_above([where]):
            if not view.covered(above):
                words += _folder(above)
        if kind == "mask":
            words += ["--perms", "0755", "--size", "65536", "--tmpfs", where]
            masks += ["--remount-ro", where]
        else:
            words += ["--ro-bind", source, where]
    return words + masks


def _folder(where: str) -> list[str]:
    return ["--perms", "0755", "--dir", where]


def _proc(limits: Limits, *, fresh: bool, data: Callable[[bytes], str]) -> list[str]:
    """Return bwrap's options for /proc, as grader/sandbox/proc.py describes it.

    Args:
        limits: the sandbox's limits; /proc/meminfo shows the one on memory.
        fresh: whether a new /proc has been mounted, of which parts must be covered.
        data: makes an inherited descriptor with the given content.
    """
    texts = proc.texts(limits)
    if not fresh:
        texts["/proc/version"] = Path("/proc/version").read_bytes()
    files, folders = proc.hidden() if fresh else ((), ())
    words = [] if fresh else _folder("/proc")
    for where, text in (dict.fromkeys(files, b"") | texts).items():
        words += ["--perms", "0444", "--ro-bind-data", data(text), where]
    for where in folders:
        words += ["--perms", "0555", "--size", "65536", "--tmpfs", where, "--remount-ro", where]
    return words


class Inherited:
    """Descriptors for one child process: contents that it reads, and a pipe for its answer."""

    def __enter__(self) -> Inherited:
        self.descriptors: list[int] = []
        self.answer, self.asked = os.pipe()
        return self

    def data(self, content: bytes) -> str:
        descriptor = os.memfd_create("sandbox")
        self.descriptors.append(descriptor)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return str(descriptor)

    def for_child(self) -> Iterator[int]:
        yield from self.descriptors
        yield self.asked

    def close_own_copies(self) -> None:
        """Close our copies once the child has them, so that the end of its answer can be
        detected."""
        for descriptor in self.for_child():
            os.close(descriptor)
        self.descriptors, self.asked = [], -1

    def __exit__(self, *error: object) -> None:
        if self.asked >= 0:
            self.close_own_copies()
        os.close(self.answer)


def launched(words: list[str], inherited: Inherited) -> tuple[Running, int]:
    """Start the command line; return the sandbox and the pid here of its PID 1, 0 if there is none.

    Args:
        words: the command line.
        inherited: the descriptors for it.
    """
    at = words.index("--unshare-ipc")
    words = [*words[:at], "--info-fd", str(inherited.asked), *words[at:]]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0,
                               stderr=subprocess.PIPE, pass_fds=tuple(inherited.for_child()),
                               # Ctrl-C is for the grader alone
                               env={}, cwd="/", start_new_session=True)
    inherited.close_own_copies()
    first, pid = _first_process(inherited.answer)
    return Running(process, first), pid


def _first_process(answer: int) -> tuple[int | None, int]:
    """Return (pidfd, pid) of the sandbox's PID 1 from bwrap's answer; (None, 0) if it failed."""
    with open(answer, "rb", closefd=False) as file:
        answer_text = file.read()  # until bwrap closes its side or ends
    try:
        pid = int(json.loads(answer_text)["child-pid"])
        return os.pidfd_open(pid), pid
    except (ValueError, KeyError, TypeError, ProcessLookupError):
        return None, 0
