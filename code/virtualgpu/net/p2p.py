"""Point-to-point sends and receives of a virtual process group.

Sends between two ranks keep their order, and tags are ignored, as in NCCL. Sends are buffered, so
none waits for its receive.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

from virtualgpu.core.errors import VirtualGpuError
from virtualgpu.net import values
from virtualgpu.net.errors import CollectiveMismatch
from virtualgpu.net.messages import RankMessage, describe, kinds, total
from virtualgpu.net.work import CoalescedWork, Work


class PointToPoint:
    """Sends and receives, for VirtualGroup."""

    def _start_coalescing(self, device: object = None) -> None:
        self.batch = []

    def _end_coalescing(self, device: object = None) -> CoalescedWork:
        works, self.batch = self.batch, None
        return CoalescedWork(works)

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        control = self.is_control(tensors)
        number, start, end = self.communicator.sent[dst], 0.0, 0.0
        self.communicator.sent[dst] += 1
        if not control:
            start, end = self.communicator.run_send(dst, self.launch(), total(tensors))
        self.messenger.send(dst, number, RankMessage(
            describe(tensors), end, self.here(), kinds=kinds(tensors),
            values=values.known_contents(self.known, tensors)))
        work = Work(self, tensors)
        work.end = 0.0
        if not control:
            if self.gpu.journal is not None:
                self.gpu.journal.sent(self, work, dst, tensors)
            stream = f"{self.stream} to {dst}"
            self.note(work, f"send {self.rank()}->{dst}", stream, tensors, start)
            self.end(work, end)
        return self.batched(work)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        control, number = self.is_control(tensors), self.communicator.received[src]
        self.communicator.received[src] += 1
        text = (f"waits for {describe(tensors)} from rank {self.ranks[src]} ({self.here()})")
        work = Receive(self, tensors, self.messenger.receive(src, number, text), src)
        if not control:
            ready = self.launch()
            if self.gpu.journal is not None:
                self.gpu.journal.received(self, work, src, tensors)
            self.note(work, f"recv {self.rank()}<-{src}", f"{self.stream} from {src}", tensors,
                      ready)
            if work.note is not None:
                work.travel = self.communicator.transfer_seconds(src, total(tensors))
        self.pending_receives.append(work)
        return self.batched(work)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        raise VirtualGpuError(f"{self.here()}: NCCL cannot receive from any source; name the rank")


class Receive(Work):
    """A receive, which ends when the sender's message says so."""

    def __init__(self, group: dist.ProcessGroup, tensors: list[torch.Tensor],
                 message: Callable[[], RankMessage], source: int) -> None:
        """Create the receive.

        Args:
            group: the VirtualGroup.
            tensors: the tensors that are received.
            message: waits for the sender's message, and returns it.
            source: the sender's index in the group.
        """
        super().__init__(group, tensors)
        self.message, self.source = message, source
        self.place, self.travel = group.here(), 0.0

    def settle(self) -> None:
        if self.end is not None:
            return
        message, tensors = self.message(), self.outputs
        self.group.pending_receives.remove(self)
        if message.call != describe(tensors):
            group = self.group
            raise CollectiveMismatch(
                f"rank {group.ranks[group.rank()]} receives {describe(tensors)} from rank "
                f"{group.ranks[self.source]} ({self.place}), which sends {message.call} "
                f"({message.line})")
        self.end = message.time
        if self.number is not None and self.group.gpu.journal is not None:
            self.end = self.group.gpu.journal.settled(self, self.end)
        values.store(self.group.known, tensors, message.tensors())
        if self.note is not None:
            # NCCL's kernel spins while it waits; only the transfer itself counts as its time.
            self.note.ready = max(self.note.ready, self.end - self.travel)
            self.note.end = max(self.note.ready, self.end)
