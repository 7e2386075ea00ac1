"""The trusted end of the request-response protocol (labkit.guest.protocol), with time limits.

Nothing from the guest is trusted: it may send anything, stop reading, or exit. At most one of its
frames is held in memory.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Any

from grader.sandbox.running import Running
from labkit.guest import protocol
from warmranks.broker import BadMessage, Event, Reply

POLL_SECONDS = 0.1  # seconds between looks at whether the sandbox still runs
EXIT_SECONDS = 1.0  # seconds in which a sandbox that has closed the channel ends, and says why


class ChannelError(Exception):
    """Raised when no response will ever come because the sandbox was ended. The text is a reason
    for people."""


class OutOfTime(ChannelError):
    """Raised when a request exceeds its time limit."""


class SandboxDied(ChannelError):
    """Raised when the sandbox ended before it responded."""


class BrokenChannel(ChannelError):
    """Raised when a response does not match its request."""


class Channel:
    """Send requests to the guest in one sandbox. Every ChannelError ends that sandbox."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self._next = 0
        for descriptor in (running.stdin, running.stdout):
            os.set_blocking(descriptor, False)
        self._reads, self._writes = select.poll(), select.poll()
        self._reads.register(running.stdout, select.POLLIN)
        self._writes.register(running.stdin, select.POLLOUT)

    def request(self, do: str, seconds: float,
                exchange: Callable[[list[Event]], tuple[list[Reply], dict[int, str]]] | None = None,
                **fields: Any) -> dict[str, Any]:
        """Return the guest's response to a request.

        Args:
            do: the kind of request.
            seconds: the time limit.
            exchange: answers what ranks send in the meantime; see warmranks.broker.
            **fields: the request's other fields.

        Raises ChannelError, and protocol.BadFrame for a request that is too large.
        """
        self._next += 1
        frame = protocol.pack({"id": self._next, "do": do, **fields})
        deadline = time.monotonic() + seconds
        try:
            if self._reads.poll(0) and self.running.poll() is None:
                raise BrokenChannel("it wrote into the grader's channel")
            response = self._response_to(frame, deadline)
            while exchange is not None and "events" in response:
                replies, waits = exchange(protocol.events_in(response["events"]))
                *first, last = protocol.batches(replies)
                for batch, more in (*((one, True) for one in first), (last, False)):
                    response = self._response_to(protocol.pack({
                        "id": self._next, "replies": batch, "waits": waits, "more": more}),
                        deadline)
            if "bad" in response:
                raise BrokenChannel("its response could not be sent")
            return response
        except (protocol.BadFrame, BadMessage) as error:
            self.close()
            raise BrokenChannel(f"its response cannot be read: {error}") from error
        except BaseException:  # even after Ctrl-C, since a response may still be on its way
            self.close()
            raise

    def _response_to(self, frame: bytes, deadline: float) -> dict[str, Any]:
        """Send a frame, and return the next one from the guest. Raises ChannelError and BadFrame.
        """
        self._write(frame, deadline)
        size = protocol.length(self._read(protocol.HEADER.size, deadline))
        response = protocol.unpack(self._read(size, deadline))
        if type(response.get("id")) is not int or response["id"] != self._next:
            raise BrokenChannel("its response is to another request")
        return response

    def close(self) -> None:
        """End the sandbox if it is still running."""
        self.running.kill()

    def _write(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        while view:
            self._wait(self._writes, deadline)
            try:
                view = view[os.write(self.running.stdin, view):]
            except BlockingIOError:
                continue
            except BrokenPipeError as error:
                raise self._died() from error

    def _read(self, count: int, deadline: float) -> bytes:
        content = bytearray()
        while len(content) < count:
            self._wait(self._reads, deadline)
            try:
                part = os.read(self.running.stdout, count - len(content))
            except BlockingIOError:
                continue
            if not part:
                raise self._died()
            content += part
        return bytes(content)

    def _wait(self, poll: select.poll, deadline: float) -> None:
        """Wait until the descriptor is ready.

        Args:
            poll: watches the descriptor.
            deadline: monotonic time at which to raise OutOfTime.
        """
        ended = False
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise OutOfTime("out of time")
            if poll.poll(1000 * min(left, POLL_SECONDS)):
                return
            if ended:
                raise self._died()
            # check once more: its last output may have arrived
            ended = self.running.poll() is not None

    def _died(self) -> SandboxDied:
        end = time.monotonic() + EXIT_SECONDS
        while self.running.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        if self.running.poll() is None:
            return SandboxDied("it closed the grader's channel")
        return SandboxDied(self.running.end_reason())


