"""The loss on validation and test data."""

from __future__ import annotations

import torch

from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.parallel.pipeline import Pipeline


def evaluate(ctx: Context, pipeline: Pipeline, data: Batches, consumed: int
             ) -> tuple[torch.Tensor, int]:
    """Evaluate --eval-iters global batches without dropout, after `consumed` samples of the data.

    Returns the mean loss (one element; zero on ranks without the last stage), and the samples
    consumed now.
    """
    config = ctx.config
    total = torch.zeros((), device=ctx.device.torch_device)
    for _ in range(config.eval_iters):
        total += pipeline.evaluate(data.step(consumed, iteration=0, train=False))
        consumed += config.global_batch_size
    total /= config.eval_iters * config.num_micro_batches * ctx.grid.dp.size
    ctx.grid.dp.all_reduce(total)
    return total, consumed
