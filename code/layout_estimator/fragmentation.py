"""Memory that PyTorch reserves beyond what is allocated, from a few steps of one stage.

The caching allocator (virtualgpu/core/memory.py) keeps freed segments, of which many are too small
for what is requested next: after activations were recomputed, those of one layer are scattered over
the segments of another. How much that is depends on everything that was freed before, so a stage
runs a few short steps. Further micro-batches and layers request tensors of the same sizes again.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from layout_estimator.measurement import begin_step, draw_micro_batch, run_action, stage_pipeline
from layout_estimator.representative import RepresentativeContext
from minimegatron.model.gpt import Stage
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.pipeline import Pipeline
from minimegatron.parallel.stages import TiedEmbedding, as_module, data_parallel
from minimegatron.timers import Timers
from pipeline_schedules import BACKWARD, FORWARD, WEIGHT, Action

MOST_LAYERS = 24  # of a model chunk
MICRO_BATCHES, STEPS = 3, 2


def unallocated_bytes(ctx: RepresentativeContext, vocab_size: int, split: bool) -> int:
    """Return the bytes that PyTorch reserves at the peak beyond those allocated at the peak.

    Args:
        ctx: the context of a stage, on a cluster whose memory fragments.
        vocab_size: the padded vocabulary size.
        split: whether the schedule computes weight gradients in a pass of their own (W).
    """
    chunks = shortened_chunks(ctx, vocab_size)
    tied, ddp = TiedEmbedding(ctx, chunks), data_parallel(ctx, as_module(chunks))
    ddp.overlap = None
    optimizer, rate = Optimizer(ctx, ddp), LearningRate(ctx.config)
    timers = Timers(ctx.device.now, ctx.config.timing_log_level)
    kinds = (BACKWARD, WEIGHT) if split else (BACKWARD,)
    pipeline = stage_pipeline(ctx, chunks, ddp, (FORWARD, *kinds))
    for _ in range(STEPS):
        optimizer.zero_grad()
        batches = [draw_micro_batch(ctx) for _ in range(MICRO_BATCHES)]
        begin_step(ctx, pipeline)
        for action in short_schedule(pipeline, kinds):
            run_action(pipeline, action, *batches)
        for chunk in chunks:
            chunk.end_step()
        tied.all_reduce(ddp)
        ddp.finish_grad_sync()
        optimizer.step(rate.value(), timers)
        del batches
    memory = ctx.device.gpu.memory
    return memory.run_peak_reserved - memory.run_peak


def shortened_chunks(ctx: RepresentativeContext, vocab_size: int) -> list[Stage]:
    """Return the model chunks of the context's stage, with at most MOST_LAYERS layers each."""
    ends = pairwise(accumulate(ctx.config.layers_per_chunk, initial=0))
    last = len(ctx.config.layers_per_chunk) - 1
    return [Stage(ctx, vocab_size, range(start, end)[:MOST_LAYERS], is_first=at == 0,
                  is_last=at == last)
            for at, (start, end) in enumerate(ends) if at % ctx.grid.pp.size == ctx.grid.pp.index]


def short_schedule(pipeline: Pipeline, backward: tuple[str, ...]) -> Iterator[Action]:
    """Yield the passes of MICRO_BATCHES micro-batches.

    Two micro-batches are in flight, except on the last stage, where each backward pass follows its
    forward pass.

    Args:
        pipeline: of the stage.
        backward: the kinds of backward passes.
    """
    chunks = range(len(pipeline.chunks))
    ahead = 0 if pipeline.stage == pipeline.stages - 1 else 1
    for turn in range(MICRO_BATCHES + ahead):
        if turn < MICRO_BATCHES:
            yield from (Action(FORWARD, turn, chunk) for chunk in chunks)
        if turn >= ahead:
            yield from (Action(kind, turn - ahead, chunk) for chunk in reversed(chunks)
                        for kind in backward)
