"""The loss on validation and test data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from minimegatron.context import Context, MicroBatch
from minimegatron.data.batches import Batches
from minimegatron.parallel.pipeline import LossSum, Pipeline
from minimegatron.timers import Timers
from pipeline_schedules import FORWARD, Message
from pipeline_schedules.interpreter import Item


@contextmanager
def paused(timers: Timers) -> Iterator[None]:
    """Stop all timers inside the block: evaluation is not part of a step."""
    running, timers.running = timers.running, set()
    try:
        yield
    finally:
        timers.running = running


def evaluate(ctx: Context, pipeline: Pipeline, data: Batches, consumed: int
             ) -> tuple[torch.Tensor, int]:
    """Evaluate --eval-iters global batches without dropout, after `consumed` samples of the data.

    Returns the mean loss of the counted tokens (one element; zero on ranks without the last stage),
    and the samples consumed now.
    """
    config = ctx.config
    sums = torch.zeros(2, device=ctx.device.torch_device)
    for _ in range(config.eval_iters):
        losses = forward_only(pipeline, data.step(consumed, iteration=0, train=False))
        sums += torch.stack([losses.total, losses.counted])
        consumed += config.global_batch_size
    ctx.grid.replicas.all_reduce(sums)
    total, counted = sums
    return total / counted.clamp(min=1), consumed


@torch.no_grad()
def forward_only(pipeline: Pipeline, batches: Sequence[MicroBatch]) -> LossSum:
    """Return the losses of micro-batches, without a backward pass."""
    for chunk in pipeline.chunks:
        chunk.eval()
    pipeline.begin(0)  # no gradient, so nothing is divided
    pipeline.run([item for item in pipeline.program if _kind(item) == FORWARD], batches)
    for chunk in pipeline.chunks:
        chunk.train()
    return pipeline.finish()


def _kind(item: Item) -> str:
    """Return F, B, or W; for a message, the kind of the action whose result it carries."""
    return item.action.kind if isinstance(item, Message) else item.kind
