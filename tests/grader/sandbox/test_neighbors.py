"""Two sandboxes at once: neither notices what the other does to kernel objects that both share."""

from __future__ import annotations

import ast
import os
import sys
from contextlib import contextmanager

import pytest

from grader.sandbox.interface import Limits
from grader.sandbox.podman import Podman
from tests.attacks.rows import neighbors
from tests.grader.sandbox.conftest import LIMITS, received
from tests.grader.sandbox.test_selftest import Leaky, with_, without
from tests.needs import needs

# What one sandbox holds on to, one per line of input ...
HOLDER = r"""
import fcntl, os, pty, socket, struct, sys, threading
SHARED, kept = os.__file__, []
READ_LOCK = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0)
def flock():
    kept.append(open(SHARED))
    fcntl.flock(kept[-1], fcntl.LOCK_EX)
def record_lock():
    kept.append(open(SHARED))
    fcntl.fcntl(kept[-1], fcntl.F_SETLK, READ_LOCK)
def open_file_lock():
    kept.append(open(SHARED))
    fcntl.fcntl(kept[-1], 37, READ_LOCK)
def lease():
    kept.append(open(SHARED))
    fcntl.fcntl(kept[-1], fcntl.F_SETLEASE, fcntl.F_RDLCK)
def write_hint():
    kept.append(open(SHARED))
    fcntl.fcntl(kept[-1], 1036, struct.pack("Q", 5))
def access(): open(SHARED).read()
def access_time(): os.utime(SHARED)
def device_time():
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        try: os.utime("/dev/" + name)
        except OSError: pass
def threads():
    waiting = threading.Event()
    for _ in range(15): threading.Thread(target=waiting.wait, daemon=True).start()
def files(): kept.extend(os.pipe() for _ in range(20))
def terminals(): kept.extend(pty.openpty() for _ in range(5))
def memory(): kept.append(b"x" * 50_000_000)
for line in sys.stdin:
    try: globals()[line.strip()]()
    except OSError: pass
    os.write(1, b"+")
"""
# ... and what the other one looks at meanwhile.
LOOKER = r"""
import ctypes, fcntl, os, struct, sys
SHARED, watch = os.__file__, None
WRITE_LOCK = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
def flock():
    with open(SHARED) as file: fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
def record_lock():
    with open(SHARED) as file:
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, fcntl.F_GETLK, WRITE_LOCK))[0]
def open_file_lock():
    with open(SHARED) as file:
        return struct.unpack("hhqqi4x", fcntl.fcntl(file, 36, WRITE_LOCK))[0]
def lease():
    with open(SHARED) as file: return fcntl.fcntl(file, fcntl.F_GETLEASE)
def write_hint():
    with open(SHARED) as file: return fcntl.fcntl(file, 1035, bytes(8))
def access():
    global watch
    libc = ctypes.CDLL(None, use_errno=True)
    if watch is None:
        watch = libc.inotify_init1(os.O_NONBLOCK)
        libc.inotify_add_watch(watch, SHARED.encode(), 1)
    return os.read(watch, 4096)
def access_time(): return os.stat(SHARED).st_atime_ns, os.stat(SHARED).st_mtime_ns
def device_time():
    return [os.stat("/dev/" + name).st_mtime_ns
            for name in ("null", "zero", "full", "random", "urandom", "tty")]
def read(*names):
    got = []
    for name in names:
        try: got.append(open(name).read())
        except FileNotFoundError: pass
    return got
def threads(): return read("/proc/loadavg", "/proc/schedstat", "/proc/stat", "/proc/uptime",
                           "/proc/interrupts", "/proc/softirqs", "/proc/pressure/cpu")
def files(): return read("/proc/sys/fs/file-nr", "/proc/sys/fs/inode-nr",
                         "/proc/sys/fs/inode-state", "/proc/sys/fs/dentry-state")
def terminals(): return read("/proc/sys/kernel/pty/nr")
def memory(): return read("/proc/meminfo", "/proc/vmstat", "/proc/zoneinfo", "/proc/buddyinfo",
                          "/proc/slabinfo", "/proc/diskstats", "/proc/cgroups")
for line in sys.stdin:
    try: seen = globals()[line.strip()]()
    except OSError as error: seen = error.strerror
    print(repr(repr(seen)), flush=True)
"""
CHANNELS = ("flock", "record_lock", "open_file_lock", "lease", "write_hint", "access",
            "access_time", "device_time", "threads", "files", "terminals", "memory")
BACKENDS = ["bubblewrap", pytest.param("podman", marks=[pytest.mark.slow, needs("podman")])]


@contextmanager
def two(backend):
    """A function that asks one sandbox to act and returns what the other saw before and after."""
    words = [sys.executable, "-I", "-c"]
    with (backend.start([*words, HOLDER], LIMITS) as holder,
          backend.start([*words, LOOKER], LIMITS) as looker):
        def looked(channel: str) -> str:
            os.write(looker.stdin, f"{channel}\n".encode())
            line = b""
            while not line.endswith(b"\n"):
                chunk = os.read(looker.stdout, 65536)
                assert chunk, looker.error_output()
                line += chunk
            return ast.literal_eval(line.decode())

        def seen(channel: str) -> tuple[str, str]:
            before = looked(channel)
            os.write(holder.stdin, f"{channel}\n".encode())
            assert os.read(holder.stdout, 1) == b"+", holder.error_output()
            return before, looked(channel)

        yield seen


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_sandbox_does_not_notice_its_neighbor(kind, backend):
    with two(backend if kind == "bubblewrap" else Podman()) as seen:
        results = {channel: seen(channel) for channel in CHANNELS}
    assert not {channel: pair for channel, pair in results.items() if pair[0] != pair[1]}


def unprotected(line, data):
    """bubblewrap's command line without the filter, with the host's devices and all of /proc."""
    line = line[line.index("/bin/sh") + 4:]
    return with_("--proc", "/proc")(without("--seccomp", words=2)(line, data), data)


@pytest.mark.slow
@pytest.mark.parametrize("channel", neighbors.CHANNELS)
def test_the_attacks_win_where_nothing_keeps_them_apart(channel):
    """The positive control of rows m1 to m5 of docs/attacks.md. Two of them depend on timing, which
    a busy machine may spoil a few times."""
    programs = ["\n".join([*answers, "print(double(21), triple(5), flush=True)"])
                for answers in neighbors.pair(channel)]
    backend = Leaky(unprotected)
    for _ in range(8):
        with (backend.start([sys.executable, "-I", "-c", programs[0]], Limits()),
              backend.start([sys.executable, "-I", "-c", programs[1]], Limits()) as listener):
            heard = received(listener)
        if heard == "42 15\n":
            return
    pytest.fail(f"the listener heard nothing: {heard!r} {listener.error_output()}")
