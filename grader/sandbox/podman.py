"""The podman back end: the same view in a container without an image, if bubblewrap is
unavailable."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from grader.sandbox import cgroups, inside, mounts, proc, seccomp, slots
from grader.sandbox.interface import Limits, Unavailable
from grader.sandbox.masks import SandboxMasks
from grader.sandbox.running import Running
from grader.sandbox.watchdog import Watchdog

DEFAULT_PROFILES = ("/etc/containers/seccomp.json", "/usr/share/containers/seccomp.json")
PREFIX = "lab-sandbox-"
START_SECONDS = 30.0  # seconds that a container may take to start; it takes less than one
LONGEST = 4 * 3600  # seconds; if all else fails, podman itself ends the container then
# The command must not be PID 1, which the kernel spares most signals.
_FIRST = '"$@"; exit $?'
# Ends the container when the grader exits for any reason, which closes its end of the pipe.
_LIFELINE = 'read nothing; exec "$@"'


class Podman:
    """A container whose root is an empty skeleton with the sandbox's view mounted into it."""

    name = "podman"

    @cached_property
    def podman(self) -> list[str]:
        """The program and its options for this machine. Raises Unavailable if it is missing."""
        path = shutil.which("podman", path=os.environ.get("PATH", "") + ":/usr/bin")
        if path is None:
            raise Unavailable("podman is not installed: apt install podman")
        sweep()
        words = [path]
        if not Path("/run/systemd/system").is_dir():  # nothing creates cgroups or keeps a journal
            words += ["--cgroup-manager=cgroupfs", "--events-backend=file"]
        if not Path("/sys/fs/cgroup/cgroup.controllers").exists() and shutil.which("runc"):
            words += ["--runtime=runc"]  # crun wants cgroups of version 2
        return words

    @cached_property
    def controllers(self) -> list[str]:
        """The control group controllers that podman can use here. Raises Unavailable."""
        asked = subprocess.run([*self.podman, "info", "--format",
                                "{{json .Host.CgroupControllers}}"], capture_output=True, text=True)
        with contextlib.suppress(ValueError):
            if asked.returncode == 0:
                return json.loads(asked.stdout) or []
        raise Unavailable("podman does not work here: "
                          + (asked.stderr + asked.stdout).strip()[-500:])

    @cached_property
    def profile(self) -> dict | None:
        """podman's default profile for system calls, without the ones that we forbid."""
        for path in DEFAULT_PROFILES:
            if os.path.exists(path):
                return seccomp.oci(json.loads(Path(path).read_text()))
        return None

    def start(self, command: Sequence[str], limits: Limits, *,
              files: Mapping[str, bytes] | None = None,
              environment: Mapping[str, str] | None = None,
              masks: SandboxMasks | None = None) -> Running:
        packed = mounts.archive(dict(files or {}))
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        with contextlib.ExitStack() as undo:
            uid = slots.FIRST
            if os.geteuid() == 0 and slots.mapped():
                slot = slots.take()
                undo.callback(slot.free)
                uid = slot.uid
            scratch = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
            undo.callback(shutil.rmtree, scratch, ignore_errors=True)
            words = self.words(command, limits, uid, scratch, packed, environment or {}, name,
                               masks)
            process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                bufsize=0, cwd="/", start_new_session=True)
            undo.callback(self._end, name, process)
            first, pid = _first_process(scratch / "pid", process)
            running = Running(process, first)
            lifeline = subprocess.Popen(
                ["/bin/sh", "-c", _LIFELINE, "sh", *self.podman, "kill", "--signal=KILL", name],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                start_new_session=True)
            undo.callback(_stop_lifeline, lifeline)
            if first is not None:
                group = cgroups.of_process(pid) if "memory" in self.controllers else None
                running.watch(Watchdog(pid, limits, group, running.send_kill))
            running.at_end(undo.pop_all().close)
        return running

    def words(self, command: Sequence[str], limits: Limits, uid: int, scratch: Path,
              packed: bytes | None, environment: Mapping[str, str], name: str,
              masks: SandboxMasks | None = None) -> list[str]:
        """Return the whole command line.

        Args:
            command: the program and its arguments.
            limits: the sandbox's limits.
            uid: the user inside.
            scratch: the folder for files that it mounts.
            packed: a tar of extra files.
            environment: extra variables.
            name: the container's name.
            masks: what programs cannot see or import.
        """
        words = [*self.podman, "run", "--rm", "--interactive", f"--name={name}", "--network=none",
                 "--read-only", "--read-only-tmpfs=false", "--cap-drop=all",
                 "--security-opt=no-new-privileges", f"--user={uid}:{uid}",
                 f"--hostname={mounts.HOSTNAME}", f"--workdir={mounts.HOME}", "--no-hosts",
                 "--passwd=false", "--http-proxy=false", "--unsetenv-all", "--ipc=private",
                 "--log-driver=none", "--systemd=false", "--oom-score-adj=1000",
                 f"--timeout={LONGEST}", f"--pidfile={scratch / 'pid'}", "--umask=0022",
                 f"--ulimit=nofile={limits.open_files}:{limits.open_files}",
                 f"--ulimit=nproc={limits.processes}:{limits.processes}"]
        if "memory" in self.controllers:
            words += [f"--memory={cgroups.kernel_memory_limit(limits)}b",
                      f"--memory-swap={cgroups.kernel_memory_limit(limits)}b"]
        if "pids" in self.controllers:
            words += [f"--pids-limit={limits.processes + cgroups.HELPERS}"]
        if self.profile is not None:
            (scratch / "seccomp.json").write_text(json.dumps(self.profile))
            words += [f"--security-opt=seccomp={scratch / 'seccomp.json'}"]
        for pair in mounts.environment(dict(environment)).items():
            words += ["--env", "=".join(pair)]
        words += _proc(limits, scratch)
        view = mounts.visible(uid, shown=masks.shown if masks else None)
        words += _mounted(view, limits, scratch / "root", packed)
        return [*words, "--rootfs", str(scratch / "root"), "/bin/sh", "-c", _FIRST, "sh",
                *inside.stage(command, limits, uid=None, unpack=packed is not None)]

    def _end(self, name: str, process: subprocess.Popen) -> None:
        """Remove the container unless podman has already done it.

        Args:
            name: the container's name.
            process: `podman run`.
        """
        if process.poll() is None or process.returncode < 0:
            subprocess.run([*self.podman, "rm", "--force", "--time=0", name], capture_output=True)


def sweep() -> None:
    """Remove the skeletons that this user's killed graders left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}[0-9]*-*"):
        with contextlib.suppress(OSError):  # gone by now
            status = folder.lstat()
            if status.st_uid == os.getuid() and time.time() - status.st_mtime > LONGEST:
                shutil.rmtree(folder, ignore_errors=True)


def _mounted(view: mounts.Visible, limits: Limits, root: Path, packed: bytes | None) -> list[str]:
    """Create the skeleton, and return podman's options for all mounts.

    Args:
        view: what the sandbox sees.
        limits: the sandbox's limits.
        root: the skeleton's folder.
        packed: a tar of extra files.
    """
    words = [f"--shm-size={limits.disk}b"]
    root.mkdir()
    for where in ("/proc", "/dev", "/sys", *mounts.WRITABLE):
        _inside(root, where).mkdir(parents=True, exist_ok=True)
    for where in mounts.WRITABLE:  # a folder in memory takes over the mode of what it covers
        _inside(root, where).chmod(0o1777)
    for where, target in view.links:
        _inside(root, where).symlink_to(target)
    for where, text in view.texts:
        _inside(root, where).parent.mkdir(exist_ok=True)
        _inside(root, where).write_bytes(text)
    if packed is not None:
        _inside(root, mounts.FILES).parent.mkdir()
        _inside(root, mounts.FILES).write_bytes(packed)
    for where in mounts.WRITABLE:
        if where != "/dev/shm":
            words.append(f"--tmpfs={where}:rw,nosuid,nodev,exec,mode=1777,size={limits.disk}")
    for kind, where, source in view.steps:
        if kind == "mask":
            words.append(f"--tmpfs={where}:rw,nosuid,nodev,mode=0755,size=64k")
        else:
            words.append(f"--mount=type=bind,src={source},dst={where},ro=true")
    return words


def _proc(limits: Limits, scratch: Path) -> list[str]:
    """Return podman's options for /proc, as grader/sandbox/proc.py describes it, and for /sys.

    Args:
        limits: the sandbox's limits; /proc/meminfo shows the one on memory.
        scratch: folder for the replaced files.
    """
    texts = proc.texts(limits)
    files, folders = proc.hidden()
    masked = ["/sys", *(path for path in (*files, *folders) if path not in texts)]
    words = [f"--security-opt=mask={':'.join(masked)}"]
    for where, text in texts.items():
        made_up = scratch / where.replace("/", "-")
        made_up.write_bytes(text)
        words.append(f"--mount=type=bind,src={made_up},dst={where},ro=true")
    return words


def _inside(root: Path, where: str) -> Path:
    return root / where.lstrip("/")


def _first_process(pidfile: Path, process: subprocess.Popen) -> tuple[int | None, int]:
    """Return (pidfd, pid) of the container's PID 1; (None, 0) if it never started.

    Args:
        pidfile: podman writes the pid into it.
        process: `podman run`.
    """
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            pid = int(pidfile.read_text())
            return os.pidfd_open(pid), pid
        if process.poll() is not None:
            break
        time.sleep(0.01)
    return None, 0


def _stop_lifeline(lifeline: subprocess.Popen) -> None:
    """Stop the lifeline of a container that has ended."""
    lifeline.kill()
    lifeline.stdin.close()
    lifeline.wait()
