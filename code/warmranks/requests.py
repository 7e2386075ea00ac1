"""Define the messages between the caller, the fork server, and the ranks."""

from __future__ import annotations

import json
import pickle
import selectors
import socket
import struct
from collections import deque
from dataclasses import asdict, dataclass
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
        is_brokered: whether every rank has a channel, whose messages go to the caller.
        is_raw: whether the function returns bytes, which are passed on as they are.
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
    is_brokered: bool = False
    is_raw: bool = False


@dataclass
class RankOutcome:
    """The result of one rank.

    Attributes:
        state: "running", "returned", "raised", or "died" (it ended without a report).
        value: the return value of a rank that returned: pickled, or raw bytes.
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


    def encoded(self) -> bytes:
        """Return the outcome as bytes that hold no code, whoever has written them."""
        fields = asdict(self) | {"value": ""}
        text = json.dumps(fields).encode()
        return HEADER.pack(len(text)) + text + self.value

    @classmethod
    def decoded(cls, content: bytes) -> RankOutcome:
        """Return the outcome in some bytes. Raises ValueError or TypeError if there is none."""
        (length,) = HEADER.unpack_from(content)
        end = HEADER.size + length
        outcome = cls(**json.loads(content[HEADER.size:end]) | {"value": content[end:]})
        texts = (outcome.state, outcome.error, outcome.traceback, outcome.stack, outcome.waits)
        if not (all(isinstance(text, str) for text in texts)
                and isinstance(outcome.seconds, int | float)):
            raise TypeError("a rank's outcome has a field of the wrong type")
        return outcome


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


class Connection:
    """A stream socket on which neither reading nor writing ever blocks, with frames."""

    def __init__(self, channel: socket.socket, selector: selectors.BaseSelector, data: Any) -> None:
        """Register the socket.

        Args:
            selector: tells when there is something to read, or room to write.
            data: what the selector returns for it.
        """
        self.channel, self.selector, self.data = channel, selector, data
        channel.setblocking(False)
        selector.register(channel, selectors.EVENT_READ, data)
        self._read = bytearray()
        self._unsent: deque[memoryview] = deque()

    def send(self, body: bytes) -> None:
        """Send a frame, as far as there is room now."""
        self._unsent.append(memoryview(HEADER.pack(len(body)) + body))
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as there is room."""
        try:
            while self._unsent:
                view = self._unsent[0]
                sent = self.channel.send(view)
                if sent < len(view):
                    self._unsent[0] = view[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):  # the reader finds out by itself
            self._unsent.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        self.selector.modify(self.channel, events, self.data)

    def frames(self) -> list[bytes]:
        """Return the frames that have arrived. Raises EOFError if the other end is closed."""
        closed = False
        try:
            while part := self.channel.recv(CHUNK):
                self._read += part
            closed = True
        except BlockingIOError:
            pass
        except ConnectionResetError:
            closed = True
        found, start = [], 0
        while len(self._read) - start >= HEADER.size:
            (size,) = HEADER.unpack_from(self._read, start)
            end = start + HEADER.size + size
            if len(self._read) < end:
                break
            found.append(bytes(self._read[start + HEADER.size:end]))
            start = end
        del self._read[:start]
        if closed and not found:
            raise EOFError
        return found

    def finish(self, body: bytes) -> None:
        """Send the last frame, and wait until all are sent."""
        self.channel.setblocking(True)
        for view in [*self._unsent, HEADER.pack(len(body)) + body]:
            self.channel.sendall(view)
