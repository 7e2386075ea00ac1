"""Scatter/gather: tensor-parallel ranks share the work of sending one activation.

Without sequence parallelism, all t tensor-parallel ranks of a stage hold the same activation, so
sending it from each of them would move it t times between nodes. Instead, each rank sends 1/t of
it, and the next stage all-gathers the parts over NVLink (Narayanan et al. 2021, section 4.1).

Only --scatter-gather-tensors-in-pipeline imports this file.
"""

from __future__ import annotations

import torch

from minimegatron.context import Context
from minimegatron.parallel.p2p import Peers, Transfer
from pipeline_schedules import Message
from pipeline_schedules.messages import SEND


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
