"""Define the messages between the caller, the fork server, and the ranks."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct(">Q")
CHUNK = 1 << 20
READY = b"ready"  # the server's first packet; any other first packet is an error message
MAX_PACKET = 60_000  # bytes


@dataclass(frozen=True)
class RunRequest:
    """A request to run one function on some ranks.

    Attributes:
        task: a pickled (function, arguments); see `pickling.py`.
        ranks: the number of processes; 0 for one process without a rank's environment.
        backend: the backend of the default process group, or None to create no group.
        is_program: whether the function is a program's `main`, which ends with an exit code.
        argv: `sys.argv` of a program.
        env: the whole environment.
        cwd: the working directory.
        path: `sys.path`.
        sources: `linecache` entries of code that is in no file, for tracebacks.
        timeout: seconds until all ranks are killed.
        umask: the umask for new files.
        stall: seconds after which ranks that all wait for each other are a deadlock; None to check
            for no deadlock.
    """

    task: bytes
    ranks: int
    backend: str | None
    is_program: bool
    argv: list[str]
    env: dict[str, str]
    cwd: str
    path: list[str]
    sources: dict[str, Any]
    timeout: float
    umask: int
    stall: float | None = None


@dataclass
class RankOutcome:
    """The result of one rank.

    Attributes:
        state: "running", "returned", "raised", or "died" (it ended without a report).
        value: the pickled return value of a rank that returned.
        error: the exception's type name and message, on one line.
        traceback: the exception's traceback, without this package's frames.
        code: the exit code of a process that ended; negative for a signal.
        stack: the frames of a running rank at the timeout, as faulthandler prints them.
        waits: what a running rank waited for at the timeout.
        seconds: elapsed time at its end.
    """

    state: str = "running"
    value: bytes = b""
    error: str = ""
    traceback: str = ""
    code: int | None = None
    stack: str = ""
    waits: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class RunReport:
    """The result of a run.

    Attributes:
        outcomes: the outcome of each rank.
        cause: the rank whose failure ended the run.
        timed_out: whether the run was ended at its timeout, or earlier because of a deadlock.
        deadlock: whether all ranks that still ran waited for each other.
        problem: the traceback of an error before any rank was started.
    """

    outcomes: list[RankOutcome]
    cause: int | None = None
    timed_out: bool = False
    deadlock: bool = False
    problem: str = ""


def send(channel: socket.socket, message: Any) -> None:
    """Send one pickled message."""
    body = pickle.dumps(message)
    channel.sendall(HEADER.pack(len(body)) + body)


def receive(channel: socket.socket) -> Any:
    """Return the next message. Raises EOFError if the other end is closed."""
    (size,) = HEADER.unpack(_read(channel, HEADER.size))
    return pickle.loads(_read(channel, size))


def _read(channel: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        try:
            part = channel.recv(min(CHUNK, count - len(parts)))
        except ConnectionResetError:
            part = b""
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
