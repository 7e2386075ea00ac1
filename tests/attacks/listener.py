"""Somebody outside of the sandbox who writes down whatever reaches him."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from pathlib import Path

from tests.attacks.rows.stages import PORT, SOCKET


class Listener:
    """On the loopback, on an abstract socket, and on a socket file in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.got: list[str] = []
        self.path = folder / SOCKET
        self.sockets: list[socket.socket] = []

    def __enter__(self) -> Listener:
        for family, place in ((socket.AF_INET, ("127.0.0.1", PORT)),
                              (socket.AF_UNIX, "\0" + SOCKET), (socket.AF_UNIX, str(self.path))):
            one = socket.socket(family)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.bind(place)
            one.listen()
            self.sockets.append(one)
            threading.Thread(target=self._accept, args=(one,), daemon=True).start()
        os.chmod(self.path, 0o777)
        return self

    def __exit__(self, *error: object) -> None:
        for one in self.sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.path.unlink(missing_ok=True)

    def _accept(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                other, _ = one.accept()
                with other:
                    other.settimeout(2)
                    self.got.append("a connection")
                    with contextlib.suppress(OSError):
                        self.got.append(other.recv(1000).decode(errors="replace"))
