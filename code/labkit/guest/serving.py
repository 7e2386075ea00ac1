"""The guest's side of the protocol: what each request does."""

from __future__ import annotations

import base64
import os
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from labcore.imports import imports_without_gc
from labkit.check import wire
from labkit.check.sides import Raised, SimulatedCluster, Trial, called, raised, title
from labkit.guest import protocol
from warmranks.isolation import enter_domain, let_others_trace

if TYPE_CHECKING:  # importing IPython takes longer than everything else together
    from labkit.guest.capture import Capture
    from labkit.guest.shell import Shell


RANKS = "ranks"  # an argument


class Guest:
    """Answers requests about the student's names: their values, and calls of their functions."""

    def __init__(self, shell: Shell, capture: Capture) -> None:
        self.shell, self.capture = shell, capture
        self.does: dict[str, Callable[..., dict[str, Any]]] = {
            "value": self.value, "call": self.call, "task": self.task, "gpus": self.gpus,
            "kind": self.kind, "title": self.title, "script": self.script, "ready": dict}

    async def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the response to one request."""
        fields = {name: value for name, value in request.items() if name not in ("id", "do")}
        if request["do"] == "cell":
            return await self.cell(**fields)
        answer = self.does[request["do"]](**fields)
        self.capture.take()  # discard what a check's calls print, which may contain hidden inputs
        return answer

    async def cell(self, source: str) -> dict[str, Any]:
        error = await self.shell.run(source)
        outputs = self.capture.take()
        return {"outputs": outputs, "error": None if error is None else coded(raised(error))}

    def value(self, name: str) -> dict[str, Any]:
        try:
            value = self.shell.user_ns[name]
        except KeyError:
            return {"raised": coded(raised(NameError(f"name {name!r} is not defined")))}
        return sent(value)

    def call(self, name: str, arguments: str, keywords: str) -> dict[str, Any]:
        try:
            function = self.shell.user_ns[name]
        except KeyError:
            return {"raised": coded(raised(NameError(f"name {name!r} is not defined")))}
        try:
            return sent(called(function, wire.loads(arguments.encode()),
                               wire.loads(keywords.encode())))
        except BaseException as error:  # KeyboardInterrupt and the like must not end the check
            return {"raised": coded(raised(error))}

    def task(self, name: str) -> dict[str, Any]:
        """Return a driver for ranks, pickled with what it uses, and its source code."""
        from warmranks import pickling

        try:
            function = self.shell.user_ns[name]
        except KeyError:
            return {"raised": coded(raised(NameError(f"name {name!r} is not defined")))}
        sources = pickling.sources()
        try:
            task = pickling.dumps((function, None, sources))
        except TypeError as error:
            return {"problem": f"TypeError: {error}"}
        except BaseException as error:
            return {"raised": coded(raised(error))}
        return {"task": base64.b64encode(task).decode(),
                "sources": {name: entry[2] for name, entry in sources.items()}}

    def gpus(self, name: str, gpus: str, nodes: int, link: str | None, present: list[int] | None,
             arguments: str, keywords: str, limit: float) -> dict[str, Any]:
        from labkit.check import on_gpus

        cluster = SimulatedCluster(gpus, nodes, link,
                                   None if present is None else tuple(present))
        return self._driven(name, arguments, keywords, lambda function, given, words: (
            on_gpus.record(function, cluster, given, words, limit)))

    def _driven(self, name: str, arguments: str, keywords: str,
                run: Callable[[Any, Any, Any], dict[str, Any]]) -> dict[str, Any]:
        """Return the response for a driver that runs in other processes.

        Args:
            name: the driver's name.
            arguments: encoded.
            keywords: encoded.
            run: runs it with the decoded arguments.
        """
        try:
            function = self.shell.user_ns[name]
        except KeyError:
            return {"raised": coded(raised(NameError(f"name {name!r} is not defined")))}
        try:
            return sent(run(function, wire.loads(arguments.encode()),
                            wire.loads(keywords.encode())))
        except wire.CannotCross as error:
            return {"cannot": str(error)}
        except BaseException as error:
            return {"raised": coded(raised(error))}

    def kind(self, name: str) -> dict[str, Any]:
        if name not in self.shell.user_ns:
            return {"kind": "missing"}
        value = self.shell.user_ns[name]
        try:
            wire.dumps(value)
        except Exception:
            return {"kind": "callable" if callable(value) else "other"}
        return {"kind": "plain"}

    def title(self, name: str) -> dict[str, Any]:
        return {"title": title(self.shell.user_ns.get(name))}

    def script(self, path: str, **trial: Any) -> dict[str, Any]:
        from labcore import workspace
        from labcore.errors import LabError
        from labkit.check.record import record

        try:
            return {"record": record(workspace.home(), path, Trial(**trial))}
        except LabError as error:
            return {"error": str(error)}


def sent(value: Any) -> dict[str, Any]:
    """Return a call's encoded response, either its value or its exception."""
    if isinstance(value, Raised):
        return {"raised": coded(value)}
    try:
        return {"value": wire.dumps(value).decode()}
    except wire.CannotCross as error:
        return {"cannot": str(error)}


def coded(error: Raised) -> dict[str, Any]:
    """Return an exception encoded for the protocol."""
    return {"names": list(error.names), "text": error.text, "trace": error.trace}


def serve(requests: int, responses: int, answer: Callable[[dict[str, Any]], dict[str, Any]]
          ) -> None:
    """Read requests from one descriptor and answer on the other until the input ends."""
    process = os.getpid()
    while True:
        header = protocol.read_exactly(requests, protocol.HEADER.size)
        if not header:
            return
        request = protocol.unpack(protocol.read_exactly(requests, protocol.length(header)))
        response = answer(request) | {"id": request["id"]}
        if os.getpid() != process:  # the student's code forked, and this is the child
            os._exit(0)
        try:
            frame = protocol.pack(response)
        except protocol.BadFrame as error:  # an output that is not JSON, or larger than estimated
            frame = protocol.pack({"id": request["id"], "bad": str(error)})
        protocol.write_all(responses, frame)


def private_copy(descriptor: int) -> int:
    """Return a copy of a descriptor that child processes do not inherit, with a high number."""
    import fcntl

    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 200)


def start_ranks() -> None:
    """Import torch for this process and its forks, and start the fork server of the checks' ranks.

    Whatever goes wrong here goes wrong again, and is reported, where a cell or a rank needs it.
    """
    import contextlib

    import warmranks

    with contextlib.suppress(Exception):
        warmranks.split()


def main() -> None:
    """Serve requests on the descriptors 0 and 1, and replace these for the student's code.

    With the argument `ranks`, checks will need ranks or virtual GPUs.
    """
    let_others_trace(False)  # this process, and the fork server of the checks' ranks
    requests, responses = private_copy(0), private_copy(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    needs_ranks = RANKS in sys.argv[1:]
    if needs_ranks:
        start_ranks()
    ours, theirs = socket.socketpair()
    process = os.fork()
    if process:
        from labkit.guest.router import Router

        theirs.close()
        Router(requests, responses, ours.fileno(), process).serve()
    ours.close()
    os.close(requests)
    os.close(responses)
    let_others_trace(True)
    enter_domain()  # where the router's memory and descriptors are out of reach
    if needs_ranks:
        start_own_ranks()
    be_shell(private_copy(theirs.detach()))


def start_own_ranks() -> None:
    """Start a fork server for the student's cells and for virtual GPUs, as `start_ranks` does.

    The router's is closed here first: only the router can reach it.
    """
    import warmranks

    warmranks.forget()
    start_ranks()


def be_shell(channel: int) -> None:
    """Run the student's cells, and serve the router's requests on a descriptor."""
    with imports_without_gc():
        import asyncio

        from labkit.guest.capture import Capture, CapturedStream
        from labkit.guest.shell import enter_workspace, make

    capture = Capture()
    enter_workspace()
    guest = Guest(make(capture), capture)
    capture.take_descriptors()
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
    sys.stdout, sys.stderr = CapturedStream(capture, 1), CapturedStream(capture, 2)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    serve(channel, channel, lambda request: loop.run_until_complete(guest.answer(request)))
    os._exit(0)  # without running exit handlers or joining threads of the student's code
