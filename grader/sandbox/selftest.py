"""Before each batch, try to break out of a sandbox. Grading requires every attempt to fail."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from grader.sandbox import advice, devices, mounts
from grader.sandbox.interface import MB, Backend, Limits, Unavailable
from grader.sandbox.running import Running
from labcore.errors import LabError
from labcore.workspace import CHECKOUT, CODE

LIMITS = Limits(memory=96 * MB, processes=16, file_size=4 * MB, disk=1 * MB, open_files=64)
PROGRAM = Path(__file__).with_name("breakout.py")
ATTEMPTS = ("network", "abstract_socket", "machine_socket", "reading", "writing", "environment",
            "descriptors", "seeing_processes", "signalling_processes", "another_user",
            "capabilities", "mounting", "namespace", "tracing", "keyring", "locking", "watching",
            "stamping", "counting", "processes", "disk", "file_size", "survival")
VICTIM = "victim:"
SECONDS = 20  # for one answer; on an idle machine it takes a fraction of one
SOME = 40  # files to try in a folder


def self_test(backend: Backend, course_root: Path | None) -> None:
    """Try every attempt.

    Args:
        backend: starts the sandbox.
        course_root: the course folder, if there is one.

    Raises Unavailable with what leaked and what to install or change, and LabError for a course
    folder inside something that students' code has to see.
    """
    require_hidden(course_root)
    with bait(course_root) as task:
        # Memory last and alone: it ends the sandbox, or takes seconds.
        got = attempt(backend, task, ATTEMPTS) or attempt(backend, task, ("memory",))
        if not task.victim_lives():
            got["signalling_processes"] = "signals to the host's processes"
    if got:
        raise Unavailable(
            f"the {backend.name} sandbox is not safe, so nothing is graded. Code in it reached "
            + "; ".join(got.values()) + ".\n" + advice.for_leaks(backend.name))


def require_hidden(course_root: Path | None) -> None:
    """Raise LabError if the course folder or its submissions are inside something that is shown."""
    view = mounts.visible(0)
    folders = [course_root, *(path for path in course_root.glob("*") if path.is_dir())
               ] if course_root else []
    for folder in folders:
        if view.shows(folder):
            raise LabError(f"{folder.resolve()} lies inside a folder that students' code has to "
                           f"see ({sys.prefix}, /usr, ...): move the course elsewhere, and set "
                           "LAB_COURSE to it")


class Bait:
    """The targets on the host, and the processes that would notice an attempt."""

    def __init__(self, victim: subprocess.Popen, **task: object) -> None:
        self.victim, self.task = victim, task

    def victim_lives(self) -> bool:
        return self.victim.poll() is None

    def words(self, attempts: tuple[str, ...]) -> str:
        return json.dumps(self.task | {"attempts": attempts, "victim": self.victim.pid})


@contextlib.contextmanager
def bait(course_root: Path | None) -> Iterator[Bait]:
    """Provide listeners, a process, and files with secrets for as long as the test takes."""
    name = f"lab-sandbox-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server((address, 0)))
                     for address in _addresses()]
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind("\0" + name)
        abstract.listen()
        for folder in {tempfile.gettempdir(), course_root} - {None}:
            canary = stack.enter_context(tempfile.NamedTemporaryFile(
                dir=folder, prefix=".sandbox-canary-"))
            canary.write(name.encode())
            canary.flush()
        victim = subprocess.Popen(["/bin/sh", "-c", "read line", VICTIM + name],
                                  stdin=subprocess.PIPE)
        stack.enter_context(victim)
        stack.callback(victim.kill)
        yield Bait(victim, marker=[VICTIM, name], abstract=name, home=mounts.HOME,
                   listeners=[one.getsockname()[:2] for one in listeners],
                   secrets=[(what, str(path)) for what, path in _secrets(course_root)],
                   closed=["/", "/usr", "/etc", "/dev", "/run", "/proc/sys/kernel", str(CODE),
                           sys.prefix],
                   variables=[*mounts.environment({}), "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME",
                              "container", "LC_CTYPE"],
                   devices=dict(_devices()), folders=mounts.WRITABLE,
                   processes=LIMITS.processes, disk=LIMITS.disk,
                   file_size=LIMITS.file_size, memory=LIMITS.memory)


def _addresses() -> list[str]:
    """Return the host's loopback address, and its own address if it has another."""
    addresses = ["127.0.0.1"]
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 53))  # sends nothing
        addresses.append(asked.getsockname()[0])
    return list(dict.fromkeys(addresses))


def _devices() -> Iterator[tuple[str, list[int]]]:
    """Yield the name and the inode of each of the host's own devices."""
    for name in devices.NAMES:
        with contextlib.suppress(OSError):
            status = os.stat(f"/dev/{name}")
            yield name, [status.st_dev, status.st_ino]


def _secrets(course_root: Path | None) -> Iterator[tuple[str, Path]]:
    """Yield descriptions and paths of files that no student's code may read."""
    yield "the accounts of the machine", Path("/etc/shadow")
    yield "the grader itself", Path(__file__)
    kinds = [("solutions", CHECKOUT / "solutions"), ("the grader's sources",
             CHECKOUT / "grader" / "source"), ("the tests", CHECKOUT / "tests"),
             ("the history", CHECKOUT / ".git"), ("a home folder", Path.home()),
             ("a temporary file of the host", Path(tempfile.gettempdir()))]
    if course_root:
        kinds += [("the course folder", course_root)]
        kinds += [(f"the course's {path.name}", path) for path in sorted(course_root.glob("*"))
                  if path.is_dir()]
    view = mounts.visible(0)
    for what, folder in kinds:
        for path in itertools.islice(_files(folder), SOME):
            # A home may hold nothing but the Python environment, which is no secret.
            if folder != Path.home() or not view.shows(path):
                yield what, path


def _files(folder: Path) -> Iterator[Path]:
    """Yield regular files in a folder, or below it if it has none itself."""
    for _, folders, names in os.walk(folder):
        files = [folder / name for name in sorted(names)]
        yield from (path for path in files if path.is_file() and os.access(path, os.R_OK))
        if not files and folders:
            yield from _files(folder / sorted(folders)[0])
        return


def attempt(backend: Backend, task: Bait, names: tuple[str, ...]) -> dict[str, str]:
    """Return the attempts by name that reached something, with a description.

    Args:
        backend: starts the sandbox.
        task: the targets.
        names: the attempts.

    Raises Unavailable without an answer.
    """
    command = [sys.executable, "-I", "-S", "-c", PROGRAM.read_text(), task.words(names)]
    with backend.start(command, LIMITS) as running:
        answer = _answer(running)
        if "memory" in names:
            return _ended_for_memory(running, answer)
        try:
            result = json.loads(answer)
        except ValueError:
            _wait(running, 1)
            running.kill()
            raise Unavailable(
                f"the {backend.name} sandbox gives no answer ({running.end_reason()}): "
                f"{running.error_output().strip()[-2000:] or 'it printed nothing'}\n"
                + advice.for_start(backend.name, running.error_output())) from None
        if result["done"] != list(names):
            raise Unavailable(f"the {backend.name} sandbox did not try everything: {result}")
        begun = time.monotonic()
        running.kill()
        if time.monotonic() - begun > 2 or _alive(task.task["abstract"]):
            result["got"]["survival"] = "a process that outlives the sandbox"
        return result["got"]


def _ended_for_memory(running: Running, answer: bytes) -> dict[str, str]:
    if answer:
        return json.loads(answer)["got"]
    _wait(running, 2)
    if "memory" not in running.end_reason():
        return {"memory": f"no effective memory limit ({running.end_reason() or 'it runs on'})"}
    return {}


def _wait(running: Running, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)


def _answer(running: Running) -> bytes:
    """Return one line, or the output up to its end or up to SECONDS."""
    deadline, line = time.monotonic() + SECONDS, b""
    while not line.endswith(b"\n"):
        ready, _, _ = select.select([running.stdout], [], [], max(0, deadline - time.monotonic()))
        chunk = os.read(running.stdout, 65536) if ready else b""
        if not chunk:
            break
        line += chunk
    return line


def _alive(marker: str) -> bool:
    """Return whether a process of the test still runs: its command line contains the marker."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes()
            if marker.encode() in line and PROGRAM.read_bytes()[:40] in line:
                return True
    return False
