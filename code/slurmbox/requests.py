"""Exchange requests with the supervisor over its Unix socket, as one line of JSON each."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path

from labcore.errors import LabError

MAX_SIZE = 1 << 16  # bytes of a request or an answer


def listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    path.chmod(0o600)
    listener.listen(8)
    return listener


def send(path: Path, timeout: float = 10.0, **request: object) -> dict:
    """Send a request to the supervisor, and return its answer.

    Args:
        path: the supervisor's socket.
        timeout: in seconds.
        request: the request, as in `_handle`.

    Raises:
        OSError: the supervisor does not respond.
        LabError: it refuses the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout)
        connection.connect(str(path))
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = json.loads(_read_line(connection)
                            or '{"error": "the supervisor sent no answer"}')
    if "error" in answer:
        raise LabError(answer["error"])
    return answer


def _read_line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < MAX_SIZE:
        piece = connection.recv(MAX_SIZE)
        if not piece:
            break
        data += piece
    return data


def serve_one(listener: socket.socket, handle: Callable[[dict], dict]) -> None:
    """Answer one request. Never raises, because a bad request must not stop the cluster."""
    with contextlib.suppress(OSError):
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(2.0)
            try:
                answer = handle(json.loads(_read_line(connection)))
            except Exception as error:
                answer = {"error": f"{error}" or type(error).__name__}
            connection.sendall(json.dumps(answer).encode() + b"\n")
