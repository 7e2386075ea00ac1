"""Frames: four bytes of length, big-endian, then one JSON object in UTF-8.

Each request has an "id" and what to "do"; the response has the same id. Standard library only.

    cell {source}                       -> {outputs: [nbformat's], error: null | ERROR}
    call {name, arguments, keywords}    -> {value} | {raised: ERROR} | {cannot: text}
    ranks {name, ranks, arguments, keywords, limit} -> the same: labkit.check.on_ranks.Outcome
    gpus {name, gpus, nodes, link, present, arguments, keywords, limit} -> the same
    value {name}                        -> the same
    kind {name}                         -> {kind: one of KINDS}
    title {name}                        -> {title}
    script {path, arguments, finds, writes, ends, submitted_from}  -> {record} | {error}
    ready {}                            -> {}

ERROR is {names, text, trace}: labkit.check.sides.Raised.
`arguments`, `keywords`, and `value` are strings that labkit.check.wire encodes.
"""

from __future__ import annotations

import json
import struct
from typing import Any

MOST_BYTES = 4_000_000  # of one frame's JSON
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
