"""Point-to-point communication between the stages of one pipeline.

Every message is a hidden state [s, b, h] ([s/t, b, h] under sequence parallelism) or its gradient,
so both ends know the shape without exchanging it. The program decides when each message is sent
and received (pipeline_schedules/communication.py).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from minimegatron.context import Context, params_dtype
from minimegatron.errors import UserError
from pipeline_schedules import BACKWARD, FORWARD, Message
from pipeline_schedules.messages import SEND


class Transfer(NamedTuple):
    """A message in transit. Do not touch its tensor before waiting for it."""

    message: Message
    work: dist.Work
    tensor: torch.Tensor


class Peers:
    """Sends tensors to the other stages of this rank's pipeline, and receives theirs."""

    def __init__(self, ctx: Context, chunks: int) -> None:
        """Create the process groups for stages of `chunks` chunks; every rank must call it."""
        grid, config = ctx.grid, ctx.config
        self.ranks = grid.pp.ranks
        # Under sequence parallelism each tensor-parallel rank sends its part of the sequence.
        parts = grid.tp.size if config.sequence_parallel else 1
        self.shape = (config.seq_length // parts, config.micro_batch_size, config.hidden_size)
        self.device, self.dtype = ctx.device.torch_device, params_dtype(config)
        self.groups = _queue_groups(ctx, chunks)
        self.sends: dict[tuple, deque[Transfer]] = defaultdict(deque)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start sending a tensor [s, b, h]. Raises UserError if the peer is lost."""
        queue = self.sends[message.queue]
        if len(queue) >= len(self.ranks):
            # Bound the tensors held. A valid program cannot deadlock here: its order of messages
            # would even allow sends that block until the receive is posted.
            self.wait(queue.popleft())
        tensor = tensor.contiguous()
        work = self._start(dist.isend, message, tensor, message.target)
        queue.append(Transfer(message, work, tensor))

    def receive(self, message: Message) -> Transfer:
        """Allocate the next tensor of the message's queue, and post its receive."""
        tensor = torch.empty(self.shape, device=self.device, dtype=self.dtype)
        work = self._start(dist.irecv, message, tensor, message.source)
        return Transfer(message, work, tensor)

    def wait(self, transfer: Transfer) -> torch.Tensor:
        """Return the tensor [s, b, h] once it has arrived. Raises UserError if the peer is lost."""
        try:
            transfer.work.wait()
        except RuntimeError as error:
            raise self._lost(transfer.message, error) from error
        return transfer.tensor

    def finish(self) -> None:
        """Wait until all sends have completed."""
        for queue in self.sends.values():
            while queue:
                self.wait(queue.popleft())

    def _start(self, start: Callable[..., dist.Work], message: Message, tensor: torch.Tensor,
               stage: int) -> dist.Work:
        group = self.groups[message.action.kind, message.action.chunk]
        try:
            return start(tensor, self.ranks[stage], group=group)
        except RuntimeError as error:
            raise self._lost(message, error) from error

    def _lost(self, message: Message, error: RuntimeError) -> UserError:
        from minimegatron.failures import lost_stage

        return UserError(lost_stage(message, self.ranks, error))


def _queue_groups(ctx: Context, chunks: int) -> dict[tuple[str, int], dist.ProcessGroup]:
    """Return {(F or B, chunk of the source): a communicator of this rank's pipeline}.

    There is one per direction and chunk, because NCCL ignores tags and matches the messages of a
    communicator by their order alone. With two stages the previous and the next rank are the
    same, so activations of two chunks, or activations and gradients, would be swapped.
    """
    if ctx.grid.pp.size == 1:
        return {}
    return {(kind, chunk): ctx.grid.pipeline_group().process_group
            for kind in (FORWARD, BACKWARD) for chunk in range(chunks)}


class ScatterGatherPeers(Peers):
    """Sends this rank's 1/t of each tensor, and all-gathers the parts that the t ranks receive."""

    def __init__(self, ctx: Context, chunks: int) -> None:
        super().__init__(ctx, chunks)
        self.tp, self.whole_shape = ctx.grid.tp, self.shape
        self.shape = (torch.Size(self.shape).numel() // self.tp.size,)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        super().send(message, tensor.contiguous().view(self.tp.size, -1)[self.tp.index])

    def wait(self, transfer: Transfer) -> torch.Tensor:
        part = super().wait(transfer)
        if transfer.message.end == SEND:
            return part
        return self.tp.all_gather(part).view(self.whole_shape)
