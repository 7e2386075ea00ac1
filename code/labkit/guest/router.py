"""The guest's first process, which never runs the student's code.

It alone has the trusted side's descriptors, and it started the fork server of the checks' ranks
before any of the student's code ran. The student's cells run in its child, the shell (serving.py):
requests for the shell are passed on, with its responses. When a check runs a driver on ranks, the
shell only provides the driver; the router has the ranks started, and passes their messages to the
broker on the trusted side. So code in the shell can neither forge a rank's messages nor see the
inputs that ranks receive.
"""

from __future__ import annotations

import base64
import linecache
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from labkit.check.sides import RAISED
from labkit.guest import protocol
from labkit.guest.protocol import read_exactly, write_all

if TYPE_CHECKING:
    from warmranks.broker import Event, Reply

MOST_SOURCES = 200  # cells whose lines are shown in a rank's stack


class Router:
    """Passes on requests to the shell, except for those that run ranks."""

    def __init__(self, requests: int, responses: int, shell: int, process: int) -> None:
        """Args:
            requests: the descriptor that requests are read from.
            responses: the descriptor that responses are written to.
            shell: the descriptor of a socket to the shell.
            process: the shell's process ID.
        """
        self.requests, self.responses, self.shell = requests, responses, shell
        self.process = process

    def serve(self) -> NoReturn:
        """Serve until the input ends, or end as the shell does."""
        signal.signal(signal.SIGCHLD, lambda *_: self._end_with_shell())
        self._end_with_shell()
        while True:
            header = read_exactly(self.requests, protocol.HEADER.size)
            if not header:
                os._exit(0)
            body = read_exactly(self.requests, protocol.length(header))
            request = protocol.unpack(body)
            if request["do"] == "ranks":
                number, _ = request.pop("id"), request.pop("do")
                try:
                    frame = protocol.pack(self.ranks(number, **request) | {"id": number})
                except protocol.BadFrame as error:
                    frame = protocol.pack({"id": number, "cannot": "what the ranks send or return "
                                           f"is too large for a check: {error}"})
                write_all(self.responses, frame)
            else:
                write_all(self.responses, self._asked(header + body))

    def ranks(self, number: int, name: str, ranks: int, limit: float) -> dict[str, Any]:
        """Return the response to a request that runs a driver on ranks."""
        from labkit.check import on_ranks

        frame = self._asked(protocol.pack({"id": number, "do": "task", "name": name}))
        response = protocol.unpack(frame[protocol.HEADER.size:])
        if isinstance(response.get("problem"), str):
            return {"outcome": {"state": RAISED, "text": response["problem"]}}
        if not isinstance(response.get("task"), str):
            return {"raised": response.get("raised")}
        show(response.get("sources"))
        return {"outcome": on_ranks.start(
            base64.b64decode(response["task"]), ranks, limit,
            exchange_over(lambda message: self._converse(number, message)), is_isolated=True)}

    def _converse(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        write_all(self.responses, protocol.pack(message | {"id": number}))
        header = read_exactly(self.requests, protocol.HEADER.size)
        if not header:
            os._exit(0)
        return protocol.unpack(read_exactly(self.requests, protocol.length(header)))

    def _asked(self, frame: bytes) -> bytes:
        """Return the shell's frame in response to one."""
        try:
            write_all(self.shell, frame)
            header = read_exactly(self.shell, protocol.HEADER.size)
            if header:
                return header + read_exactly(self.shell, protocol.length(header))
        except (BrokenPipeError, ConnectionResetError):
            pass
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        self._end_with_shell(wait=True)
        os._exit(1)

    def _end_with_shell(self, wait: bool = False) -> None:
        """End as the shell did, if it has ended: with its exit code, or by the same signal."""
        try:
            process, status = os.waitpid(self.process, 0 if wait else os.WNOHANG)
        except ChildProcessError:
            os._exit(1)
        if not process:
            return
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)


def exchange_over(converse: Callable[[dict[str, Any]], dict[str, Any]]
                  ) -> Callable[[Sequence[Event]], tuple[list[Reply], dict[int, str]]]:
    """Return an exchange (see warmranks.broker) with the broker on the trusted side.

    Args:
        converse: sends one message to it, and returns the answer.
    """
    def exchange(events: Sequence[Event]) -> tuple[list[Reply], dict[int, str]]:
        replies: list[Reply] = []
        for batch in protocol.batches(events):
            answer = converse({"events": batch})
            replies += protocol.events_in(answer["replies"])
            while answer["more"]:
                answer = converse({"events": []})
                replies += protocol.events_in(answer["replies"])
        return replies, {int(rank): text for rank, text in answer["waits"].items()}

    return exchange


def show(sources: Any) -> None:
    """Let stacks have the lines of a student's cells, by the names of their code.

    Args:
        sources: what the shell sent.
    """
    if not isinstance(sources, dict):
        return
    for name, lines in list(sources.items())[:MOST_SOURCES]:
        if isinstance(lines, list) and all(isinstance(line, str) for line in lines):
            linecache.cache[name] = len("".join(lines)), None, lines, name
