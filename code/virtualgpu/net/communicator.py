"""When the collectives and transfers of a process group take place on one GPU.

As with NCCL, a group has a stream of its own on every GPU. A collective starts when the slowest
rank is ready for it and the group's previous one has ended. A send starts when its sender is ready
and the previous send to the same rank has left. A live group (group.py) and a record that is priced
(replay/communication.py) learn in different ways when the other ranks are ready. Both then ask the
same Communicator.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from virtualgpu.core.gpu import VirtualGpu
from virtualgpu.net import collectives
from virtualgpu.net.nccl import buffer_bytes
from virtualgpu.net.topology import Topology

BACKEND = "virtual"


class Communicator:
    """A process group as one of its ranks sees it.

    Attributes:
        ranks: the group's ranks in the job.
        me: this rank's index among them.
        path: the path between the ranks.
        stream: the stream that collectives and transfers run on.
        started: number of collectives that have started.
        sent: by peer, number of sends that have started.
        received: by peer, number of receives that have started.
        last_end: when the last collective ended, in virtual seconds.
    """

    def __init__(self, gpu: VirtualGpu, topology: Topology, ranks: Sequence[int], me: int) -> None:
        self.gpu, self.topology, self.ranks, self.me = gpu, topology, ranks, me
        self.path = topology.path(ranks)
        self.stream = f"{BACKEND} {','.join(map(str, ranks))}"
        self.started = 0
        self.sent: Counter[int] = Counter()
        self.received: Counter[int] = Counter()
        self._has_buffers = False
        self.last_end = 0.0
        self._left: defaultdict[int, float] = defaultdict(float)  # by peer, the previous send

    def launch(self) -> bool:
        """Charge the host for a launch; return whether it was the first, which allocates buffers.

        Raises torch.OutOfMemoryError.
        """
        first = not self._has_buffers
        if first:
            self._has_buffers = True
            self.gpu.allocate_outside(buffer_bytes(self.gpu.card, self.path))
        self.gpu.clock.work(self.gpu.card.efficiency.dispatch)
        return first

    def run_collective(self, name: str, ready: Iterable[float], seconds: float) -> float:
        """Run the next collective, and return when it ends.

        Args:
            name: the collective.
            ready: when each rank is ready.
            seconds: its duration once all of them are.
        """
        start = max(self.last_end, *ready)
        self.last_end = start + seconds
        self.occupy(name, start, self.last_end)
        return self.last_end

    def run_send(self, peer: int, ready: float, size: int) -> tuple[float, float]:
        """Run a send, and return when it starts and ends.

        Args:
            peer: the receiver's index in the group.
            ready: when this rank is ready.
            size: bytes of the tensors.
        """
        start = max(ready, self._left[peer])
        end = self._left[peer] = start + self.transfer_seconds(peer, size)
        self.occupy("send", start, end)
        return start, end

    def transfer_seconds(self, peer: int, size: int) -> float:
        """Return the duration of a send of `size` bytes between this rank and another."""
        return collectives.message(
            self.topology.p2p_path(self.ranks[self.me], self.ranks[peer]), size)

    def occupy(self, name: str, start: float, end: float) -> None:
        """Account for a collective or a transfer from `start` to `end`."""
        self.gpu.clock.communicate(name, self.stream, start, end)
        self.gpu.busy[name] += end - start


def unequal_splits(splits: Sequence[Sequence[Sequence[int]]], me: int) -> int | None:
    """Return the first rank that sends another size in an all-to-all than this one expects.

    Args:
        splits: for each rank, the sizes for and from each rank.
        me: this rank's index.
    """
    return next((other for other, (given, _) in enumerate(splits)
                 if given[me] != splits[me][1][other]), None)
