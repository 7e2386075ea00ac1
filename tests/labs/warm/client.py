"""Ask the node's server for a fork. Standard library only: starting this takes milliseconds.

python -I -S client.py FOLDER torchrun|launch|python ARGUMENT...
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def command(folder: Path | str) -> list[str]:
    """Return the words that ask the server whose socket is in `folder`."""
    return [sys.executable, "-I", "-S", __file__, str(folder)]


class Fork:
    """A running fork.

    Args:
        folder: holds the servers' sockets, each named after its host.
        words: "torchrun", "launch", or "python", and the arguments; or "nodes", and those of
            `server.more_nodes`.
        env: the fork's environment.
        descriptors: the fork's standard input, output, and error.
    """

    def __init__(self, folder: str, words: Sequence[str], env: Mapping[str, str],
                 descriptors: Sequence[int] = (0, 1, 2)) -> None:
        self.returncode: int | None = None
        self.connection = socket.socket(socket.AF_UNIX)
        self.connection.connect(f"{folder}/{socket.gethostname()}")
        request = json.dumps({"words": list(words), "env": dict(env), "cwd": os.getcwd(),
                              "cpus": [*os.sched_getaffinity(0)]}).encode()
        socket.send_fds(self.connection, [len(request).to_bytes(8, "big")], descriptors)
        self.connection.sendall(request)
        self.pid = self._number()

    def _number(self) -> int:
        data = self.connection.recv(8, socket.MSG_WAITALL)
        if len(data) < 8:
            raise ConnectionError(f"the warm server of {socket.gethostname()} ended early")
        return int.from_bytes(data, "big", signed=True)

    def send_signal(self, number: int) -> None:
        self.connection.sendall(bytes([number]))

    def wait(self) -> int:
        """Return the exit code; a negative one is the signal that killed the process."""
        if self.returncode is None:
            self.returncode = self._number()
        return self.returncode


def main(folder: str, *words: str) -> None:
    """Be the command: the same output and signals, and the same end."""
    fork = Fork(folder, words, os.environ)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: fork.send_signal(number))
    code = fork.wait()
    if code < 0:
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
