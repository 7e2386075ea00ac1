"""A reverse proxy that knows one path prefix, as a hub's or a gateway's does.

What a page asks for outside of the prefix is refused and noted: on such a host it is another's.
"""

from __future__ import annotations

import re
import shutil
import socket
import socketserver
import threading

HEAD_LIMIT = 2**16


class Handler(socketserver.StreamRequestHandler):
    """One request a connection; after its head, bytes pass in both directions (WebSockets too)."""

    def handle(self) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.rfile.readline(HEAD_LIMIT)
            if not line or len(head) > HEAD_LIMIT:
                return
            head += line
        path = head.split(b" ", 2)[1].decode()
        if not path.startswith(self.server.prefix):
            if path != "/favicon.ico":  # browsers ask every host for it
                self.server.refused.append(path)
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n"
                             b"Connection: close\r\n\r\n")
            return
        if b"\r\nupgrade:" not in head.lower():
            head = re.sub(rb"(?i)\r\nconnection:[^\r]*", b"\r\nConnection: close", head)
        with socket.create_connection(("127.0.0.1", self.server.behind)) as upstream:
            upstream.sendall(head)
            upwards = threading.Thread(target=self.send, args=(upstream,), daemon=True)
            upwards.start()
            shutil.copyfileobj(upstream.makefile("rb", buffering=0), self.wfile)

    def send(self, upstream: socket.socket) -> None:
        try:
            while data := self.rfile.read1(2**16):
                upstream.sendall(data)
        except (OSError, ValueError):
            pass  # one of the two has closed, or our side while it was being read


class PrefixProxy(socketserver.ThreadingTCPServer):
    """Forwards what is below `prefix` to port `behind`. refused: the other paths, as asked for."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, prefix: str, behind: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.prefix, self.behind, self.refused = prefix, behind, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.prefix.rstrip('/')}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that goes away while it is answered is no error."""

    def close(self) -> None:
        self.shutdown()
        self.server_close()
