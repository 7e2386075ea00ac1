"""The trusted end of the frames, against guests that do whatever they like."""

from __future__ import annotations

import os
import struct
import threading
import time
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.run.channel import BrokenChannel, Channel, ChannelError, OutOfTime, SandboxDied
from labkit.guest import protocol

LONG = "x" * 3_000_000


class Pipes:
    """A sandbox that is a thread: `guest(reads, writes)` has its ends of the channel."""

    def __init__(self, guest: Callable[[int, int], object]) -> None:
        self.reads, self.stdin = os.pipe()
        self.stdout, self.writes = os.pipe()
        self.code: int | None = None
        self.killed = 0
        self.thread = threading.Thread(target=self._run, args=[guest], daemon=True)
        self.thread.start()

    def _run(self, guest: Callable[[int, int], object]) -> None:
        try:
            guest(self.reads, self.writes)
        except OSError:
            pass
        finally:
            self.code = 1
            for descriptor in (self.reads, self.writes):
                os.close(descriptor)

    def poll(self) -> int | None:
        return self.code

    def end_reason(self) -> str:
        return "exit code 1"

    def kill(self) -> None:
        self.killed += 1
        if self.killed == 1:
            os.close(self.stdin)
            os.close(self.stdout)


def sends(content: bytes) -> Callable[[int, int], object]:
    """A guest that reads a request, sends this, and ends."""
    def guest(reads: int, writes: int) -> None:
        os.read(reads, 65536)
        while content_left := memoryview(content):
            os.write(writes, content_left)
            break

    return guest


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def stays(seconds: float = 5) -> Callable[[int, int], object]:
    return lambda reads, writes: time.sleep(seconds)


def dribbles(reads: int, writes: int) -> None:
    """One byte after the other, forever."""
    os.read(reads, 65536)
    os.write(writes, struct.pack(">I", 1000))
    while True:
        os.write(writes, b" ")
        time.sleep(0.05)


def asked(guest: Callable[[int, int], object], seconds: float = 2.0, **fields: object) -> dict:
    pipes = Pipes(guest)
    try:
        return Channel(pipes).request("value", seconds, **fields)
    except ChannelError:
        assert pipes.killed  # every error ends the sandbox
        raise
    finally:
        pipes.kill()
        pipes.thread.join(0.01)


def test_a_response_is_what_was_sent():
    body = b'{"id": 1, "value": "\\ud800\xc3\xa9"}'
    assert asked(sends(frame(body))) == {"id": 1, "value": "\ud800é"}


@pytest.mark.parametrize("content", [
    b'{"id": 2}', b"{}", b'{"id": true}', b'{"id": 1.0}', b'{"id": "1"}', b"[1]", b"1", b"",
    b"{", b"[" * 100_000, b'{"id": 1, "x": NaN}', b"\xff", b'{"id": 1, "bad": "x"}',
    b'{"id": 1, "x": ' + b"9" * 5000 + b"}"])
def test_what_is_no_response_to_the_request_is_refused(content):
    with pytest.raises(BrokenChannel):
        asked(sends(frame(content)))


def test_a_length_of_4_gb_is_refused_before_anything_is_read():
    tracemalloc.start()
    try:
        with pytest.raises(BrokenChannel, match="frame of"):
            asked(sends(b"\xff" * 60_000))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"\0", frame(b'{"id": 1}')[:-1]])
def test_one_that_ends_in_the_middle_has_died(content):
    with pytest.raises(SandboxDied, match="exit code 1"):
        asked(sends(content))


@pytest.mark.parametrize(("guest", "fields"), [
    (stays(), {}), (stays(), {"x": LONG}), (dribbles, {})],
    ids=["never answers", "never reads", "dribbles"])
def test_nobody_keeps_the_grader_waiting(guest, fields):
    start = time.monotonic()
    with pytest.raises(OutOfTime):
        asked(guest, 0.3, **fields)
    assert time.monotonic() - start < 1.5


def test_one_that_speaks_unasked_is_ended():
    ready = threading.Event()

    def guest(reads: int, writes: int) -> None:
        os.write(writes, frame(b'{"id": 1, "value": "forged"}'))
        ready.set()
        time.sleep(1)

    pipes = Pipes(guest)
    ready.wait(5)
    with pytest.raises(BrokenChannel, match="wrote into"):
        Channel(pipes).request("value", 2)
    assert pipes.killed


def test_a_request_that_is_too_large_asks_nobody_anything():
    pipes = Pipes(stays(0.2))
    with pytest.raises(protocol.BadFrame):
        Channel(pipes).request("cell", 1, source="x" * 5_000_000)
    assert not pipes.killed
    pipes.kill()


bodies = st.binary(max_size=60) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["id", "value", "raised"]), inner), max_leaves=6,
    ).map(lambda value: repr(value).replace("'", '"').encode())


@settings(max_examples=150)
@given(st.lists(bodies.map(frame) | st.binary(max_size=20), max_size=3))
def test_any_bytes_are_a_response_or_an_error_that_is_declared(contents):
    try:
        assert asked(sends(b"".join(contents)))["id"] == 1
    except ChannelError as error:
        assert str(error)
