"""A back-end with small limits, and programs to run inside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from grader.sandbox.bubblewrap import Bubblewrap
from grader.sandbox.interface import MB, Limits

LIMITS = Limits(memory=200 * MB, processes=24, file_size=8 * MB, disk=16 * MB, open_files=64)


@dataclass(frozen=True)
class Ended:
    out: str
    noise: str
    code: int
    why: str
    seconds: float


@pytest.fixture(scope="session")
def backend() -> Bubblewrap:
    return Bubblewrap()


@pytest.fixture
def python(backend) -> Callable[..., Ended]:
    """Run a program inside, to its end."""
    def python(source: str, limits: Limits = LIMITS, **more) -> Ended:
        return finish(backend, [sys.executable, "-I", "-c", source], limits, **more)

    return python


def finish(backend, command: list[str], limits: Limits = LIMITS, **more) -> Ended:
    begun = time.monotonic()
    with backend.start(command, limits, **more) as running:
        out = received(running)
        code = wait(running)
        return Ended(out, running.error_output(), code, running.end_reason(),
                     time.monotonic() - begun)


def received(running) -> str:
    """All that it writes, to its end."""
    with open(running.stdout, "rb", closefd=False) as file:
        return file.read().decode()


def wait(running, seconds: float = 20) -> int:
    deadline = time.monotonic() + seconds
    while running.poll() is None:
        assert time.monotonic() < deadline, "the sandbox does not end"
        time.sleep(0.005)
    return running.poll()


# Four processes, each below the limit.
HOG = """
import os, time
for i in range(4):
    if os.fork() == 0:
        x = bytearray(80 * 2**20)
        time.sleep(20)
time.sleep(20)
"""

STUBBORN = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.kill(os.getpid(), signal.SIGSTOP)
        break
os.write(1, b"+")
time.sleep(1000)
"""


def new_marker() -> str:
    """A comment, at the end of a program by which its processes are known."""
    return f"#{os.getpid()}-{time.monotonic_ns()}"


def processes_of(marker: str) -> list[str]:
    collected = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in path.read_bytes().decode(errors="replace"):
                collected.append(path.parent.name)
        except OSError:
            continue
    return collected


def gone(marker: str, seconds: float) -> bool:
    """Return True if every process with the marker ends in time."""
    deadline = time.monotonic() + seconds
    while processes_of(marker):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def a_killed_grader(kind: type) -> str:
    """Start a stubborn program from a grader that is then killed; the program's marker."""
    marker = new_marker()
    source = (f"import os, sys, time; from {kind.__module__} import {kind.__name__} as Backend\n"
              "from grader.sandbox.interface import Limits\n"
              "one = Backend().start([sys.executable, '-I', '-c', sys.argv[1]], Limits())\n"
              "os.read(one.stdout, 1)\nprint('+', flush=True); time.sleep(100)")
    grader = subprocess.Popen([sys.executable, "-c", source, STUBBORN + marker],
                              stdout=subprocess.PIPE)
    with grader:
        assert grader.stdout.read(1) == b"+"
        time.sleep(0.2)
        assert len(processes_of(marker)) > 2
        grader.kill()
    return marker
