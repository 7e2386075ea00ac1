"""The collectives, sends, and receives of one rank whose record is priced, as in net/group.py."""

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
from virtualgpu.replay.exchange import Exchange, Group, RankPost
from virtualgpu.replay.reading import Record


@dataclass
class Communicator:
    """One process group as this rank sees it, with the same state as net/group.py.

    Attributes:
        key: its name and ranks.
        me: this rank's index.
        path: the path between the ranks.
        stream: the stream that its collectives run on.
        unsettled: numbers of collectives whose end is not known yet, oldest first.
        started: number of collectives that have started.
        last_end: when the last one ended, in seconds.
        free: by peer, when the previous send to it has left, in seconds.
        received: by peer, number of receives that have started.
    """

    key: Group
    me: int
    path: collectives.CommunicationPath
    stream: str
    unsettled: deque[int] = field(default_factory=deque)
    started: int = 0
    last_end: float = 0.0
    free: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    received: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


@dataclass
class Pending:
    """A communication whose end is not known yet.

    Attributes:
        name: the collective, "send", or "receive".
        group: its process group.
        find_end: returns when it ends, in seconds, or None if a rank is missing.
        missing: returns the ranks that have not come that far.
    """

    name: str
    group: Communicator
    find_end: Callable[[], float | None]
    missing: Callable[[], list[int]]


class Communication:
    """The communication of one rank with the others."""

    def __init__(self, record: Record, topology: Topology, exchange: Exchange, gpu: VirtualGpu,
                 buffers: Buffers) -> None:
        """Begin with no communication.

        Args:
            record: the rank's record.
            topology: the job's GPUs and links.
            exchange: matches the communication of all ranks.
            gpu: the rank's virtual GPU.
            buffers: the rank's storages.
        """
        self.record, self.topology, self.exchange = record, topology, exchange
        self.gpu, self.buffers = gpu, buffers
        self.groups: dict[int, Communicator] = {}
        self.ends: list[float | None] = []  # by number of the communication
        self.pending: dict[int, Pending] = {}
        self.sends: set[int] = set()  # numbers of sends, which leave no result to wait for

    def end(self, where: str, number: int) -> float:
        """Return when a communication ends, in seconds.

        Args:
            where: rank and entry, for error messages.
            number: number of the communication.
        """
        if number >= len(self.ends) or self.ends[number] is None:
            raise BadRecord(f"{where}: waits for communication {number}, whose end is not known "
                            "at this entry")
        return self.ends[number]

    def _group(self, number: int) -> Communicator:
        """Return a communicator; its first use allocates its buffers."""
        if number not in self.groups:
            key = self.record.groups[number]
            path = self.topology.path(key[1])
            self.groups[number] = Communicator(
                key, key[1].index(self.record.rank), path, stream_name(key[1]))
            self.gpu.allocate_outside(buffer_bytes(self.gpu.card, path))
        self.gpu.clock.work(self.gpu.card.efficiency.dispatch)
        return self.groups[number]

    def collective(self, where: str, number: int, name: str, what: str, stream: int,
                   given: list[int], taken: list[int], splits: list[list[int]]) -> int:
        """Begin a collective; return the bytes of its buffer. format.py explains the fields."""
        group, me = self._group(number), len(self.ends)
        sizes = [self.buffers.begin(me, ranges, writes, where)
                 for ranges, writes in ((given, False), (taken, True))]
        index, exchange = group.started, self.exchange
        exchange.post(group.key, index, group.me, RankPost(
            where, self.gpu.clock.ready(self.record.streams[stream]), name, what, *sizes, splits))
        group.started += 1
        group.unsettled.append(me)

        def find_end() -> float | None:
            posts = exchange.all_posts(group.key, index)
            if posts is None:
                return None
            complete = all(rank in exchange.present for rank in group.key[1])
            seconds = costs.seconds(group.path, posts, group.me, complete)
            start = max(group.last_end, *(post.time for post in posts))
            self._end(group, name, start, start + seconds)
            group.last_end = start + seconds
            return group.last_end

        self.ends.append(None)
        self.pending[me] = Pending(name, group, find_end,
                                   lambda: exchange.missing(group.key, index))
        return max(sizes)

    def _end(self, group: Communicator, name: str, start: float, end: float) -> None:
        self.gpu.clock.communicate(name, group.stream, start, end)
        self.gpu.busy[name] += end - start

    def _peer(self, where: str, group: Communicator, peer: int) -> collectives.CommunicationPath:
        if peer >= len(group.key[1]) or peer == group.me:
            raise BadRecord(f"{where}: rank {peer} of a group of {len(group.key[1])}, in "
                            f"which this rank is {group.me}")
        return self.topology.p2p_path(self.record.rank, group.key[1][peer])

    def send(self, where: str, number: int, peer: int, stream: int, ranges: list[int]) -> int:
        """Begin a send; return its bytes."""
        group, me = self._group(number), len(self.ends)
        path = self._peer(where, group, peer)
        size = self.buffers.begin(me, ranges, False, where)
        start = max(self.gpu.clock.ready(self.record.streams[stream]), group.free[peer])
        end = start + collectives.message(path, size)
        self.exchange.send(group.key, group.me, peer, RankPost(where, end, "send", "", size, 0))
        self._end(group, "send", start, end)
        group.free[peer] = end
        self.ends.append(None)
        self.sends.add(me)
        self.pending[me] = Pending("send", group, lambda: end, list)
        return size

    def receive(self, where: str, number: int, peer: int, ranges: list[int]) -> None:
        """Begin a receive."""
        group, me = self._group(number), len(self.ends)
        self._peer(where, group, peer)
        size = self.buffers.begin(me, ranges, True, where)
        index = group.received[peer]
        group.received[peer] += 1

        def find_end() -> float | None:
            post = self.exchange.receive(group.key, peer, group.me, index)
            if post is not None and post.given != size:
                raise BadRecord(f"{where}: receives {size} bytes, and {post.where}: sends "
                                f"{post.given}")
            return None if post is None else post.time

        self.ends.append(None)
        self.pending[me] = Pending("receive", group, find_end, lambda: [group.key[1][peer]])

    def settle(self, where: str, number: int) -> bool:
        """Determine when a communication ends; return False if a rank has not come that far."""
        pending = self.pending.get(number)
        if pending is None:
            raise BadRecord(f"{where}: communication {number} has not started, or its end is "
                            "already known")
        waiting = pending.group.unsettled
        collective = number in waiting
        if collective and waiting[0] != number:
            raise BadRecord(f"{where}: communication {number} ends before {waiting[0]} of the "
                            "same process group, which started first")
        end = pending.find_end()
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
        """Raise BadRecord if a communication was started and never completed."""
        if self.pending:
            number, pending = next(iter(self.pending.items()))
            raise BadRecord(f"{where}: the program ends, and communication {number} "
                            f"({pending.name}) was never completed")
