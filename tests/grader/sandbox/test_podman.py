"""The second back-end: the same promises, with fewer repeats, since a start takes longer."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from grader.sandbox.interface import Limits, Unavailable
from grader.sandbox.podman import Podman, sweep
from grader.sandbox.selftest import self_test
from tests.grader.sandbox.conftest import (
    HOG,
    LIMITS,
    STUBBORN,
    a_killed_grader,
    finish,
    gone,
    new_marker,
)
from tests.needs import needs

pytestmark = [pytest.mark.slow, needs("podman")]


@pytest.fixture(scope="module")
def podman() -> Podman:
    return Podman()


def test_holds(podman, tmp_path):
    (tmp_path / "gradebook.db").write_text("secret")
    self_test(podman, tmp_path)
    assert not list(Path(tempfile.gettempdir()).glob(f"lab-sandbox-{os.getpid()}-*"))


def test_the_self_test_finds_holes_in_it_too(podman):
    class Leaky(Podman):
        def words(self, *arguments):
            return ["--network=host" if word == "--network=none" else word
                    for word in super().words(*arguments) if "seccomp" not in word]

    with pytest.raises(Unavailable, match="a port of the host") as refused:
        self_test(Leaky(), None)
    assert "a keyring" in str(refused.value) and "apt install bubblewrap" in str(refused.value)


def test_files_frames_and_noise_go_through(podman):
    with podman.start(["/bin/sh", "-c", "cat answer; cat; echo noise >&2; exit 3"], LIMITS,
                      files={"answer": b"42\n"}, environment={"WHATEVER": "a=b c"}) as running:
        assert os.read(running.stdout, 100) == b"42\n"
        os.write(running.stdin, b"\0\n\xff" * 1000)
        received = b""
        while len(received) < 3000:
            received += os.read(running.stdout, 5000)
        assert received == b"\0\n\xff" * 1000
    assert running.end_reason() == "it was stopped"


@pytest.mark.parametrize(("source", "why"), [
    ("raise SystemExit(3)", "exit code 3"), ("import os; os.abort()", "ended by signal 6")])
def test_says_how_it_ended(podman, source, why):
    assert finish(podman, [sys.executable, "-I", "-c", source]).why == why


def test_kill_takes_everybody_at_once(podman):
    marker = new_marker()
    running = podman.start([sys.executable, "-I", "-c", STUBBORN + marker], Limits())
    assert os.read(running.stdout, 1) == b"+"
    begun = time.monotonic()
    running.send_kill()
    assert gone(marker, 1)
    running.kill()
    assert time.monotonic() - begun < 5  # podman itself takes a while to put its things away


def test_memory_is_held_where_podman_cannot(monkeypatch):
    """The setting of an ordinary user on a machine without delegated control groups."""
    monkeypatch.setattr(Podman, "controllers", [])
    ended = finish(Podman(), [sys.executable, "-I", "-c", HOG])
    assert ended.why == "its memory passed 200 MB"


def test_ends_with_the_grader():
    before = set(Path(tempfile.gettempdir()).glob("lab-sandbox-*"))
    assert gone(a_killed_grader(Podman), 5)
    left = {folder for folder in set(Path(tempfile.gettempdir()).glob("lab-sandbox-*")) - before
            if not psutil.pid_exists(int(folder.name.split("-")[2]))}  # not another test's, in use
    sweep()
    assert left and all(folder.exists() for folder in left)  # it could be another one's, in use
    for folder in left:
        os.utime(folder, (0, 0))
    sweep()
    assert not any(folder.exists() for folder in left)
