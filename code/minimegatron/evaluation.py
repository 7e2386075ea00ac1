"""The loss on data that is not trained on."""

from __future__ import annotations

import torch

from minimegatron.batches import Batches
from minimegatron.context import Context
from minimegatron.model import Stage


def evaluate(ctx: Context, stage: Stage, data: Batches, consumed: int
             ) -> tuple[torch.Tensor, int]:
    """Mean loss over --eval-iters global batches after sample `consumed`, without dropout.

    Returns (the mean over all replicas, one element; the samples consumed now).
    """
    config = ctx.config
    total = torch.zeros((), device=ctx.device.torch_device)
    stage.eval()
    with torch.no_grad():
        for _ in range(config.eval_iters):
            for batch in data.step(consumed, iteration=0, train=False):
                total += stage(None, batch)
            consumed += config.global_batch_size
    stage.train()
    total /= config.eval_iters * config.num_micro_batches * ctx.grid.dp.size
    ctx.grid.dp.all_reduce(total)
    return total, consumed
