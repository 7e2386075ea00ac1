"""Messages between the stages of one pipeline: tensors of one shape, in an agreed order.

Every step moves hidden states [s, b, h] ([s/t, b, h] under sequence parallelism) forwards and
their gradients backwards, so both ends know the shape without asking. Which message comes when is
the program's business (schedules/communication.py); here is how one travels and what happens when
the peer is gone.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import NamedTuple

import torch
import torch.distributed as dist

from minimegatron.context import Context
from minimegatron.dtypes import params_dtype
from minimegatron.errors import UserError, lost_peer
from pipeline_schedules import BACKWARD, FORWARD, Message


class Transfer(NamedTuple):
    """A message under way; its tensor must not be touched before it is waited for."""

    message: Message
    work: dist.Work
    tensor: torch.Tensor


class Peers:
    """The other stages of this rank's pipeline."""

    def __init__(self, ctx: Context, chunks: int) -> None:
        """chunks: per stage. Every rank must call it: it makes process groups."""
        grid, config = ctx.grid, ctx.config
        self.ranks = grid.pp.ranks
        # Under sequence parallelism every tensor-parallel rank sends its part, to its like.
        parts = grid.tp.size if config.sequence_parallel else 1
        self.shape = (config.seq_length // parts, config.micro_batch_size, config.hidden_size)
        self.device, self.dtype = ctx.device.torch_device, params_dtype(config)
        self.groups = channel_groups(ctx, chunks)
        self.sends: dict[tuple, deque[Transfer]] = defaultdict(deque)

    def send(self, message: Message, tensor: torch.Tensor) -> None:
        """Start sending `tensor` [s, b, h]. Raises UserError when the peer is gone."""
        queue = self.sends[message.channel]
        if len(queue) >= len(self.ranks):
            # A bound on the tensors held. It cannot block for ever: the program is free of
            # deadlocks even if every send waits for its receive.
            self.wait(queue.popleft())
        tensor = tensor.contiguous()
        work = self._start(dist.isend, message, tensor, message.target)
        queue.append(Transfer(message, work, tensor))

    def receive(self, message: Message) -> Transfer:
        """Make room for the next tensor of the message's channel, and let it come."""
        tensor = torch.empty(self.shape, device=self.device, dtype=self.dtype)
        work = self._start(dist.irecv, message, tensor, message.source)
        return Transfer(message, work, tensor)

    def wait(self, transfer: Transfer) -> torch.Tensor:
        """The tensor, once it is there. Raises UserError when the peer is gone or silent."""
        try:
            transfer.work.wait()
        except RuntimeError as error:
            raise self._lost(transfer.message, error) from error
        return transfer.tensor

    def finish(self) -> None:
        """Wait until everything that was sent has left."""
        for queue in self.sends.values():
            while queue:
                self.wait(queue.popleft())

    def _start(self, start, message: Message, tensor: torch.Tensor, stage: int) -> dist.Work:
        group = self.groups[message.action.kind, message.action.chunk]
        try:
            return start(tensor, self.ranks[stage], group=group)
        except RuntimeError as error:
            raise self._lost(message, error) from error

    def _lost(self, message: Message, error: RuntimeError) -> UserError:
        sends = message.end == "send"
        stage = message.target if sends else message.source
        doing = f"while {'sending' if sends else 'waiting for'} {message.action}"
        return UserError(f"lost contact with rank {self.ranks[stage]} (stage {stage}) {doing} "
                         f"({lost_peer(error) or error}); its own message says why")


def channel_groups(ctx: Context, chunks: int) -> dict[tuple[str, int], dist.ProcessGroup]:
    """{(F or B, chunk of the source): a channel of this rank's pipeline}.

    One per direction and chunk, because NCCL ignores tags and messages of one group are told
    apart by their order alone: with two stages the previous and the next rank are one, and
    activations of two chunks, or activations and gradients, would take each other's place.
    """
    if ctx.grid.pp.size == 1:
        return {}
    return {(kind, chunk): ctx.pipeline_group().channel
            for kind in (FORWARD, BACKWARD) for chunk in range(chunks)}
