"""A back-end with small limits, and programs to run inside it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

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
        with open(running.stdout, "rb", closefd=False) as file:
            out = file.read().decode()
        code = wait(running)
        return Ended(out, running.noise(), code, running.why(), time.monotonic() - begun)


def wait(running, seconds: float = 20) -> int:
    deadline = time.monotonic() + seconds
    while running.poll() is None:
        assert time.monotonic() < deadline, "the sandbox does not end"
        time.sleep(0.005)
    return running.poll()
