"""Frames: four bytes of length, big-endian, then one JSON object in UTF-8.

Each request has an "id" and what to "do"; the response has the same id. Standard library only.

    cell {source}                       -> {outputs: [nbformat's], error: null | ERROR}
    call {name, arguments, keywords}    -> {value} | {raised: ERROR} | {cannot: text}
    ranks {name, ranks, limit}          -> {outcome: on_ranks.Outcome} | {raised: ERROR} | {cannot}
    task {name}                         -> {task, sources} | {problem} | {raised: ERROR}
    gpus {name, gpus, nodes, link, present, arguments, keywords, limit} -> the same
    value {name}                        -> the same
    kind {name}                         -> {kind: one of KINDS}
    title {name}                        -> {title}
    script {path, arguments, finds, writes, ends, submitted_from}  -> {record} | {error}
    ready {}                            -> {}

While ranks run, the guest sends {events: [[rank, message or null], ...]} instead of a response, and
gets {replies: [[rank, message], ...], waits: {rank: text}, more: whether replies are left}
(warmranks.broker), with messages in base64. Only the router (router.py) handles `ranks`, and only
the shell handles `task`.

ERROR is {names, text, trace}: labkit.check.sides.Raised.
`arguments`, `keywords`, and `value` are strings that labkit.check.wire encodes.
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Iterable, Iterator
from typing import Any

MOST_BYTES = 4_000_000  # of one frame's JSON
MOST_BATCH = 2_000_000  # bytes of messages in a frame, if it has several
KINDS = ("plain", "callable", "other", "missing")
HEADER = struct.Struct(">I")


class BadFrame(ValueError):
    """Raised for data, received or to be sent, that is not a valid frame."""


def pack(message: dict[str, Any]) -> bytes:
    """Return the frame of `message`. Raises BadFrame if it is too large or not JSON."""
    try:
        text = json.dumps(message, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise BadFrame(f"no JSON: {error}") from error
    body = text.encode("utf-8", "surrogatepass")
    if len(body) > MOST_BYTES:
        raise BadFrame(f"{len(body):,} bytes are too many for one frame")
    return HEADER.pack(len(body)) + body


def length(header: bytes) -> int:
    """Return the number of bytes that follow a header. Raises BadFrame if there are too many."""
    (size,) = HEADER.unpack(header)
    if size > MOST_BYTES:
        raise BadFrame(f"a frame of {size:,} bytes")
    return size


def unpack(body: bytes) -> dict[str, Any]:
    """Return the object in a frame's body. Raises BadFrame."""
    try:
        message = json.loads(body.decode("utf-8", "surrogatepass"), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"no JSON: {error}") from error
    if not isinstance(message, dict):
        raise BadFrame("the frame is not a JSON object")
    return message


def _refuse(name: str) -> None:
    raise ValueError(f"{name} in JSON")


def batches(events: Iterable[tuple[int, bytes | None]]) -> Iterator[list[list[Any]]]:
    """Yield events of ranks as JSON, in batches that fit into a frame; at least one batch."""
    batch: list[list[Any]] = []
    size = 0
    for rank, message in events:
        text = None if message is None else base64.b64encode(message).decode()
        if batch and size + len(text or "") > MOST_BATCH:
            yield batch
            batch, size = [], 0
        batch.append([rank, text])
        size += len(text or "")
    yield batch


def events_in(batch: Any) -> list[tuple[int, bytes | None]]:
    """Return the events in a batch. Raises BadFrame."""
    try:
        events = [(rank, None if text is None else base64.b64decode(text, validate=True))
                  for rank, text in batch]
        if not all(type(rank) is int for rank, _ in events):
            raise BadFrame("an event has no rank")
        return events
    except (ValueError, TypeError) as error:
        raise BadFrame(f"no events of ranks: {error}") from error


def read_exactly(descriptor: int, count: int) -> bytes:
    """Return exactly `count` bytes, or none at the end of the input."""
    parts = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view):]
