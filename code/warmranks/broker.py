"""Move the messages of ranks from one to another, and record them.

A rank (ranked.py) says what it calls and passes the bytes of its tensors. The broker computes
nothing with them: it matches the calls of a group in their order, and sends with receives, as
gloo does, and gives each rank the bytes that it is entitled to. So the record is made by whoever
runs the broker, and code on a rank can change nothing in it but its own messages: the FLOPs that a
rank claims to have done are the only figures that it can make up.

The broker does no input or output, so that it can run next to the ranks (`server.py`) or on the
other side of a sandbox. Standard library only.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from warmranks.records import CommunicationCall

COLLECTIVES = frozenset((
    "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather", "scatter",
    "all_to_all", "barrier"))
ROOTED = frozenset(("broadcast", "reduce", "gather", "scatter"))
MOST_CALLS = 100_000  # of all ranks together
MOST_PENDING = 1 << 32  # bytes that ranks have sent and nobody has received
MOST_FLOPS = 1e30
MOST_TEXT = 200  # characters of the key of a group
HEADER = struct.Struct(">I")  # the length of a message's JSON, which its tensors' bytes follow
Event = tuple[int, bytes | None]  # a rank's message, or its end
Reply = tuple[int, bytes]  # a message for a rank
Exchange = Callable[[Sequence[Event]], tuple[list[Reply], dict[int, str]]]
RUNNING, WAITING, ENDED = "running", "waiting", "ended"


class BadMessage(ValueError):
    """A rank sent something that `ranked.py` never sends."""


def pack(fields: dict[str, Any], parts: Sequence[bytes] = ()) -> bytes:
    """Return a message.

    Args:
        fields: plain JSON.
        parts: the bytes of tensors.
    """
    text = json.dumps({**fields, "sizes": [len(part) for part in parts]}).encode()
    return b"".join((HEADER.pack(len(text)), text, *parts))


def unpack(message: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return a message's fields and parts. Raises BadMessage."""
    try:
        (length,) = HEADER.unpack_from(message)
        fields = json.loads(message[HEADER.size:HEADER.size + length])
        sizes, start, parts = fields["sizes"], HEADER.size + length, []
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise BadMessage("a part has no valid size")
        for size in sizes:
            parts.append(message[start:start + size])
            start += size
        if start != len(message):
            raise BadMessage(f"{len(message)} bytes instead of {start}")
        return fields, parts
    except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadMessage(str(error)[:MOST_TEXT]) from error


@dataclass
class Call:
    """A call that a rank has started.

    Attributes:
        rank, number: the rank, and its own number for the call.
        op: the name of the collective, or "send" or "recv".
        group: the ranks of the process group.
        peer: the other rank, or the root; None if there is none.
        parts: the tensors that this rank passes in, until the call is complete.
        room: the bytes of the buffers that it fills, if it passes nothing in.
        size: bytes of the tensors that the rank passes in, or fills.
        started: FLOPs that the rank claims to have done.
        order: how many calls of all ranks began earlier.
        finished: FLOPs at the end of the wait for it; None if the rank never waited.
        completed: how many calls of all ranks had begun when it was complete; None if it is not.
    """

    rank: int
    number: int
    op: str
    group: tuple[int, ...]
    peer: int | None
    parts: list[bytes]
    room: int
    started: float
    order: int
    finished: float | None = None
    completed: int | None = None
    size: int = 0

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.parts)) or self.room

    def __str__(self) -> str:
        if self.op in ("send", "recv"):
            peer = "any rank" if self.peer is None else f"rank {self.peer}"
            return f"{self.op} {'to' if self.op == 'send' else 'from'} {peer}"
        return f"{self.op} with ranks {', '.join(map(str, self.group))}"


@dataclass
class RankState:
    """What the broker knows of a rank."""

    state: str = RUNNING
    waits_for: Call | None = None
    flops: float = 0.0
    calls: dict[int, Call] = field(default_factory=dict)  # by the rank's own number


class Broker:
    """The messages of all ranks of one run.

    Attributes:
        ranks: the state of each rank.
        deadlock: whether every rank that has not ended waits for what no other one will do.
    """

    def __init__(self, ranks: int, most_calls: int = MOST_CALLS, most_pending: int = MOST_PENDING
                 ) -> None:
        """Args:
            ranks: the number of ranks.
            most_calls: of all ranks together; another one fails.
            most_pending: bytes that ranks have sent and nobody has received; more of them fail.
        """
        self.ranks = [RankState() for _ in range(ranks)]
        self.most_calls, self.most_pending, self.pending = most_calls, most_pending, 0
        self.calls: list[Call] = []  # of all ranks, in the order in which they began
        self.deadlock = False
        self._gathering: dict[tuple, dict[int, deque[Call]]] = defaultdict(
            lambda: defaultdict(deque))
        self._sent: dict[tuple, deque[Call]] = defaultdict(deque)
        self._received: dict[tuple, deque[Call]] = defaultdict(deque)

    def exchange(self, events: Sequence[Event]
                 ) -> tuple[list[Reply], dict[int, str]]:
        """Handle what ranks sent, in this order.

        Args:
            events: messages, each with its rank, and None for the end of a rank.

        Returns messages for ranks and, if they are in a deadlock, what each rank waits for.
        Raises BadMessage.
        """
        replies = []
        for rank, message in events:
            if not 0 <= rank < len(self.ranks):
                raise BadMessage(f"there is no rank {rank}")
            if message is None:
                self.end(rank)
            else:
                replies += self.receive(rank, message)
        return replies, self.waits() if self.deadlock else {}

    # --- what ranks send

    def receive(self, rank: int, message: bytes) -> list[Reply]:
        """Handle a rank's message. Return messages for ranks, each with its rank.

        Raises BadMessage.
        """
        fields, parts = unpack(message)
        do, state = fields.get("do"), self.ranks[rank]
        if state.state == ENDED:
            raise BadMessage(f"rank {rank} has ended")
        state.flops = max(state.flops, _flops(fields.get("flops")))
        replies: list[Reply] = []
        if do == "call":
            replies = self._begin(rank, fields, parts)
        elif do == "wait":
            call = state.calls.get(fields.get("number"))
            if call is None:
                raise BadMessage("a wait for a call that was never made")
            if call.finished is None:
                call.finished = state.flops
            if call.completed is None:
                state.state, state.waits_for = WAITING, call
        elif do != "flops":
            raise BadMessage(f"{str(do)[:MOST_TEXT]!r} is nothing that a rank does")
        self._look()
        return replies

    def end(self, rank: int) -> None:
        """A rank has returned or failed."""
        self.ranks[rank].state, self.ranks[rank].waits_for = ENDED, None
        self._look()

    def waits(self) -> dict[int, str]:
        """Return what each waiting rank waits for."""
        return {rank: str(one.waits_for) for rank, one in enumerate(self.ranks) if one.waits_for}

    def record(self, rank: int) -> tuple[CommunicationCall, ...]:
        """Return a rank's calls, in the order in which they began."""
        return tuple(CommunicationCall(call.op, call.group, call.peer, call.size, call.started,
                                       call.finished, call.order, call.completed)
                     for call in self.calls if call.rank == rank)

    def _look(self) -> None:
        states = [one.state for one in self.ranks]
        self.deadlock = WAITING in states and RUNNING not in states

    # --- calls

    def _begin(self, rank: int, fields: dict[str, Any], parts: list[bytes]
               ) -> list[Reply]:
        call = self._call(rank, fields, parts)
        self.ranks[rank].calls[call.number] = call
        self.pending += sum(map(len, parts))
        if len(self.calls) >= self.most_calls or self.pending > self.most_pending:
            return [self._reply(call, error=(
                f"the ranks called torch.distributed more than {self.most_calls:,} times"
                if len(self.calls) >= self.most_calls else
                f"more than {self.most_pending:,} bytes were sent and never received"))]
        self.calls.append(call)
        key = call.group, fields["key"]
        if call.op in ("send", "recv"):
            return self._pair(call, key, fields["tag"])
        waiting = self._gathering[key]
        waiting[rank].append(call)
        if not all(waiting[one] for one in call.group):
            return []
        return self._complete([waiting[one].popleft() for one in call.group])

    def _call(self, rank: int, fields: dict[str, Any], parts: list[bytes]) -> Call:
        """Return a valid call. Raises BadMessage."""
        number, op, group, peer, key, tag, room = (
            fields.get(name) for name in ("number", "op", "group", "peer", "key", "tag", "room"))
        ranks = range(len(self.ranks))
        if not (type(op) is str and (op in COLLECTIVES or op in ("send", "recv"))):
            raise BadMessage("a call has no name")
        if not (isinstance(group, list) and group and len(set(map(repr, group))) == len(group)
                and all(type(one) is int and one in ranks for one in group) and rank in group):
            raise BadMessage("a call's group is none of this rank")
        rooted = op in ROOTED or op == "send"
        if not ((type(peer) is int and peer in group) if rooted else
                peer is None or (op == "recv" and type(peer) is int and peer in group)):
            raise BadMessage("a call's peer is not in its group")
        if not (type(number) is int and number not in self.ranks[rank].calls
                and type(key) is str and len(key) <= MOST_TEXT and type(tag) is int
                and type(room) is int and 0 <= room <= self.most_pending):
            raise BadMessage("a field of a call is not valid")
        return Call(rank, number, op, tuple(group), peer, parts, room, self.ranks[rank].flops,
                    len(self.calls))

    def _pair(self, call: Call, key: tuple, tag: int) -> list[Reply]:
        """Match a send with a receive, if the other one is there."""
        if call.op == "send":
            for source in (call.rank, None):
                if receives := self._received[key, source, call.peer, tag]:
                    return self._deliver(call, receives.popleft())
            self._sent[key, call.rank, call.peer, tag].append(call)
            return []
        sources = call.group if call.peer is None else (call.peer,)
        sends = [self._sent[key, source, call.rank, tag] for source in sources]
        if first := min((queue for queue in sends if queue), default=None,
                        key=lambda queue: queue[0].order):
            return self._deliver(first.popleft(), call)
        self._received[key, call.peer, call.rank, tag].append(call)
        return []

    def _deliver(self, sent: Call, received: Call) -> list[Reply]:
        if sent.size != received.room:
            error = (f"rank {sent.rank} sends {sent.size} bytes, and rank {received.rank} receives "
                     f"{received.room}: sender and receiver need tensors of the same shape and "
                     "dtype")
            return [self._reply(one, error=error) for one in (sent, received)]
        parts = sent.parts
        self._release(sent)
        return [self._reply(sent), self._reply(received, parts, source=sent.rank)]

    def _complete(self, calls: list[Call]) -> list[Reply]:
        """Complete a collective that all ranks of its group have called."""
        first = calls[0]
        if problem := _mismatch(calls):
            return [self._reply(call, error=problem, mismatch=True) for call in calls]
        replies = []
        for place, call in enumerate(calls):
            if first.op in ("all_reduce", "all_gather"):
                parts = [part for one in calls for part in one.parts]
            elif first.op in ("reduce_scatter", "all_to_all"):
                parts = [one.parts[place] for one in calls]
            elif first.op in ("reduce", "gather"):
                mine = call.rank == call.peer
                parts = [part for one in calls for part in one.parts] if mine else []
            elif first.op in ("broadcast", "scatter"):
                root = next(one for one in calls if one.rank == one.peer)
                parts = root.parts if first.op == "broadcast" else [root.parts[place]]
            else:
                parts = []
            replies.append(self._reply(call, parts))
        for call in calls:
            self._release(call)
        return replies

    def _release(self, call: Call) -> None:
        """Forget the tensors of a call that is complete."""
        self.pending -= sum(map(len, call.parts))
        call.parts = []

    def _reply(self, call: Call, parts: Sequence[bytes] = (), **fields: Any) -> tuple[int, bytes]:
        """Complete one rank's call, and return its message."""
        call.completed = len(self.calls)
        state = self.ranks[call.rank]
        if state.waits_for is call:
            state.state, state.waits_for = RUNNING, None
        return call.rank, pack({"number": call.number, **fields}, parts)


def _flops(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= MOST_FLOPS:
        raise BadMessage("no valid number of FLOPs")
    return float(value)


def _mismatch(calls: list[Call]) -> str:
    """Return what does not match among the calls of one collective; "" if all do."""
    first = calls[0]
    for call in calls[1:]:
        if (call.op, call.peer) != (first.op, first.peer):
            return (f"rank {first.rank} calls {_spelled(first)}, and rank {call.rank} "
                    f"{_spelled(call)}")
    sizes = [[len(part) for part in call.parts] for call in calls]
    count = len(calls)
    if first.op == "broadcast":
        sizes = [[call.size] for call in calls]
    if first.op in ("reduce_scatter", "all_to_all", "scatter"):
        rows = [row for call, row in zip(calls, sizes, strict=True)
                if first.op != "scatter" or call.rank == call.peer]
        if any(len(row) != count for row in rows):
            return f"{first.op}: one part for each of the {count} ranks is needed"
    if first.op in ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "gather"):
        for call, row in zip(calls, sizes, strict=True):
            if row != sizes[0]:
                return (f"{first.op}: rank {first.rank} passes tensors of {sum(sizes[0])} bytes, "
                        f"and rank {call.rank} of {sum(row)}")
    return ""


def _spelled(call: Call) -> str:
    return f"{call.op} with root {call.peer}" if call.op in ROOTED else call.op
