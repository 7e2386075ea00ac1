"""The collectives, sends, and receives of one rank whose record is priced."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net.communicator import Communicator
from virtualgpu.net.topology import Topology
from virtualgpu.replay.buffers import Buffers
from virtualgpu.replay.exchange import Exchange, RankPost
from virtualgpu.replay.format import BadRecord
from virtualgpu.replay.reading import Record


class Pending(NamedTuple):
    """A communication whose end is not known yet.

    Attributes:
        name: the collective, "send", or "receive".
        group: number of its process group.
        find_end: returns when it ends, in seconds, or None if a rank is missing.
        missing: returns the ranks that have not come that far.
    """

    name: str
    group: int
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
        self.communicators: dict[int, Communicator] = {}  # by number of the group
        self.unsettled: defaultdict[int, deque[int]] = defaultdict(deque)  # its collectives
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

    def _launch(self, number: int) -> Communicator:
        """Charge the host for a launch in a process group; return the communicator."""
        if number not in self.communicators:
            _, ranks = self.record.groups[number]
            self.communicators[number] = Communicator(
                self.gpu, self.topology, ranks, ranks.index(self.record.rank))
        self.communicators[number].launch()
        return self.communicators[number]

    def _begin(self, name: str, group: int, find_end: Callable[[], float | None],
               missing: Callable[[], list[int]]) -> None:
        """Add a communication; see Pending."""
        self.pending[len(self.ends)] = Pending(name, group, find_end, missing)
        self.ends.append(None)

    def collective(self, where: str, number: int, name: str, what: str, stream: int,
                   given: list[int], taken: list[int], splits: list[list[int]]) -> int:
        """Begin a collective; return the bytes of its buffer. format.py explains the fields."""
        group, me = self._launch(number), len(self.ends)
        sizes = [self.buffers.begin(me, ranges, writes, where)
                 for ranges, writes in ((given, False), (taken, True))]
        key, index, exchange = self.record.groups[number], group.started, self.exchange
        exchange.post(key, index, group.me, RankPost(
            where, self.gpu.clock.ready(self.record.streams[stream]), name, what, *sizes, splits))
        group.started += 1
        self.unsettled[number].append(me)

        def find_end() -> float | None:
            posts = exchange.all_posts(key, index)
            if posts is None:
                return None
            return group.run_collective(name, [post.time for post in posts],
                                        exchange.seconds(key, posts, group.me, group.path))

        self._begin(name, number, find_end, lambda: exchange.missing(key, index))
        return max(sizes)

    def _check_peer(self, where: str, group: Communicator, peer: int) -> None:
        if peer >= len(group.ranks) or peer == group.me:
            raise BadRecord(f"{where}: rank {peer} of a group of {len(group.ranks)}, in "
                            f"which this rank is {group.me}")

    def send(self, where: str, number: int, peer: int, stream: int, ranges: list[int]) -> int:
        """Begin a send; return its bytes."""
        group, me = self._launch(number), len(self.ends)
        self._check_peer(where, group, peer)
        size = self.buffers.begin(me, ranges, False, where)
        _, end = group.run_send(peer, self.gpu.clock.ready(self.record.streams[stream]), size)
        self.exchange.send(self.record.groups[number], group.me, peer,
                           RankPost(where, end, "send", "", size, 0))
        self.sends.add(me)
        self._begin("send", number, lambda: end, list)
        return size

    def receive(self, where: str, number: int, peer: int, ranges: list[int]) -> None:
        """Begin a receive."""
        group, me = self._launch(number), len(self.ends)
        self._check_peer(where, group, peer)
        size = self.buffers.begin(me, ranges, True, where)
        index = group.received[peer]
        group.received[peer] += 1

        def find_end() -> float | None:
            post = self.exchange.receive(self.record.groups[number], peer, group.me, index)
            if post is not None and post.given != size:
                raise BadRecord(f"{where}: receives {size} bytes, and {post.where}: sends "
                                f"{post.given}")
            return None if post is None else post.time

        self._begin("receive", number, find_end, lambda: [group.ranks[peer]])

    def settle(self, where: str, number: int) -> bool:
        """Determine when a communication ends; return False if a rank has not come that far."""
        pending = self.pending.get(number)
        if pending is None:
            raise BadRecord(f"{where}: communication {number} has not started, or its end is "
                            "already known")
        waiting = self.unsettled[pending.group]
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
