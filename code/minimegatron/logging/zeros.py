"""Count the zeros in the gradient (--log-num-zeros-in-grad)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from minimegatron.optim.optimizer import Optimizer


def num_zeros(optimizer: Optimizer) -> torch.Tensor:
    """Count the zeros in the whole model's gradient, int64, one element; collective."""
    grads = optimizer.ddp.grad_buffer
    counted = (grads[part.buffer] for part in optimizer.ranges if part.counted)
    zeros = sum(((piece == 0).sum() for piece in counted),
                start=grads.new_zeros((), dtype=torch.int64))
    for group in optimizer.norm_groups:
        group.all_reduce(zeros)
    return zeros
