"""The collectives, sends, and receives of one rank that is priced: net/group.py's books again."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net import collectives
from virtualgpu.net.group import stream_name
from virtualgpu.net.nccl import buffer_bytes
from virtualgpu.net.topology import Topology
from virtualgpu.replay import costs
from virtualgpu.replay.buffers import Buffers
from virtualgpu.replay.errors import BadRecord
from virtualgpu.replay.exchange import Exchange, Group, Post
from virtualgpu.replay.reading import Record


@dataclass
class Communicator:
    """One process group as this rank sees it; the same books as net/group.py keeps.

    Attributes:
        key: its name and ranks.
        me: this rank's index.
        path: between the ranks.
        stream: where its collectives run.
        under_way: numbers of communications that nobody has waited for, oldest first.
        begun: how many collectives have begun.
        over: when the last one ended.
        free: by peer, when the wire to it is.
        received: by peer, how many receives have begun.
    """

    key: Group
    me: int
    path: collectives.Path
    stream: str
    under_way: deque[int] = field(default_factory=deque)
    begun: int = 0
    over: float = 0.0
    free: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    received: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class Pending:
    """A communication whose end is unknown: what it is, and how to find out."""

    name: str
    group: Communicator
    find: Callable[[], float | None]
    missing: Callable[[], list[int]]


class Communication:
    """Everything between one rank and the others."""

    def __init__(self, record: Record, topology: Topology, exchange: Exchange, gpu: VirtualGpu,
                 buffers: Buffers) -> None:
        """Args:
            record: the rank's.
            topology: of the job.
            exchange: what all ranks tell each other.
            gpu: the rank's.
            buffers: its storages.
        """
        self.record, self.topology, self.exchange = record, topology, exchange
        self.gpu, self.buffers = gpu, buffers
        self.groups: dict[int, Communicator] = {}
        self.ends: list[float | None] = []  # of communications
        self.pending: dict[int, Pending] = {}

    def end(self, where: str, number: int) -> float:
        """Return when a communication is over.

        Args:
            where: the entry, for errors.
            number: of the communication.
        """
        if number >= len(self.ends) or self.ends[number] is None:
            raise BadRecord(f"{where}: waits for communication {number}, whose end is not known "
                            "here")
        return self.ends[number]

    def _group(self, number: int) -> Communicator:
        """The communicator, which takes memory for its buffers when it is first used."""
        if number not in self.groups:
            key = self.record.groups[number]
            path = self.topology.path(key[1])
            self.groups[number] = Communicator(
                key, key[1].index(self.record.rank), path, stream_name(key[1]))
            self.gpu.take(buffer_bytes(self.gpu.card, path))
        self.gpu.clock.work(self.gpu.card.efficiency.dispatch)
        return self.groups[number]

    def collective(self, where: str, number: int, name: str, what: str, stream: int,
                   given: list[int], taken: list[int], splits: list[list[int]]) -> int:
        """Begin a collective; returns the bytes of its buffer. format.py explains the fields."""
        group, me = self._group(number), len(self.ends)
        sizes = [self.buffers.begin(me, ranges, writes, where)
                 for ranges, writes in ((given, False), (taken, True))]
        begun, exchange = group.begun, self.exchange
        exchange.post(group.key, begun, group.me, Post(
            where, self.gpu.clock.ready(self.record.streams[stream]), name, what, *sizes, splits))
        group.begun += 1
        group.under_way.append(me)

        def find() -> float | None:
            posts = exchange.all_posts(group.key, begun)
            if posts is None:
                return None
            complete = all(rank in exchange.present for rank in group.key[1])
            seconds = costs.seconds(group.path, posts, group.me, complete)
            start = max(group.over, *(post.time for post in posts))
            self._end(group, name, start, start + seconds)
            group.over = start + seconds
            return group.over

        self.ends.append(None)
        self.pending[me] = Pending(name, group, find,
                                   lambda: exchange.missing(group.key, begun))
        return max(sizes)

    def _end(self, group: Communicator, name: str, start: float, end: float) -> None:
        self.gpu.clock.communicate(name, group.stream, start, end)
        self.gpu.busy[name] += end - start

    def _peer(self, where: str, group: Communicator, peer: int) -> collectives.Path:
        if peer >= len(group.key[1]) or peer == group.me:
            raise BadRecord(f"{where}: rank {peer} of a group of {len(group.key[1])}, in "
                            f"which this rank is {group.me}")
        return self.topology.wire(self.record.rank, group.key[1][peer])

    def send(self, where: str, number: int, peer: int, stream: int, ranges: list[int]) -> int:
        """Begin to send; returns the bytes."""
        group, me = self._group(number), len(self.ends)
        path = self._peer(where, group, peer)
        size = self.buffers.begin(me, ranges, False, where)
        start = max(self.gpu.clock.ready(self.record.streams[stream]), group.free[peer])
        end = start + collectives.message(path, size)
        self.exchange.send(group.key, group.me, peer, Post(where, end, "send", "", size, 0))
        self._end(group, "send", start, end)
        group.free[peer] = end
        self.ends.append(None)
        self.pending[me] = Pending("send", group, lambda: end, list)
        return size

    def receive(self, where: str, number: int, peer: int, ranges: list[int]) -> None:
        """Begin to receive."""
        group, me = self._group(number), len(self.ends)
        self._peer(where, group, peer)
        size = self.buffers.begin(me, ranges, True, where)
        place = group.received[peer]
        group.received[peer] += 1

        def find() -> float | None:
            post = self.exchange.receive(group.key, peer, group.me, place)
            if post is not None and post.given != size:
                raise BadRecord(f"{where}: receives {size} bytes, and {post.where}: sends "
                                f"{post.given}")
            return None if post is None else post.time

        self.ends.append(None)
        self.pending[me] = Pending("receive", group, find, lambda: [group.key[1][peer]])

    def settle(self, where: str, number: int) -> bool:
        """Find out when a communication ends; False while a rank has not come that far."""
        pending = self.pending.get(number)
        if pending is None:
            raise BadRecord(f"{where}: communication {number} has not begun, or its end is "
                            "known already")
        waiting = pending.group.under_way
        collective = number in waiting
        if collective and waiting[0] != number:
            raise BadRecord(f"{where}: communication {number} ends before {waiting[0]} of the "
                            "same process group, which began first")
        end = pending.find()
        if end is None:
            return False
        if collective:
            waiting.popleft()
        del self.pending[number]
        self.ends[number] = end
        self.buffers.end(number, end)
        return True

    def waits_for(self, number: int) -> str:
        """Return the reason why a communication is incomplete."""
        pending = self.pending[number]
        return (f"waits for the {pending.name} that is its communication {number} until rank "
                f"{', '.join(map(str, pending.missing()))} comes that far")

    def check_complete(self, where: str) -> None:
        """Raise BadRecord where something was begun and never completed."""
        if self.pending:
            number, pending = next(iter(self.pending.items()))
            raise BadRecord(f"{where}: the program ends, and communication {number} "
                            f"({pending.name}) was never completed")
