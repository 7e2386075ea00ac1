"""The pipeline's stages: their schedule, this rank's chunks of layers, and the tied embedding.

Virtual stage c * stages + s is chunk c of stage s (Narayanan et al. 2021, section 2.2.2). Without
interleaving every stage has one chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch.distributed as dist
from torch import nn

from minimegatron.arguments import Config
from minimegatron.context import Context
from minimegatron.errors import SharedError
from minimegatron.model.gpt import Stage
from minimegatron.parallel.ddp import DistributedDataParallel
from pipeline_schedules import WHOLE_STAGES, Schedule, ScheduleError, check, load, to_text


def load_schedule(ctx: Context) -> Schedule:
    """Return the valid schedule that --schedule names; every rank must call it.

    Raises UserError if it is invalid, or if two ranks read different ones from a file.
    """
    name = ctx.config.schedule
    if name in WHOLE_STAGES:
        return WHOLE_STAGES[name](ctx.grid.pp.size, ctx.config.num_micro_batches)
    return load_agreed_schedule(ctx)


def build_chunks(ctx: Context, vocab_size: int) -> list[Stage]:
    """Build this rank's chunks: the first virtual stage embeds, the last one computes the loss."""
    layers = layer_numbers(ctx.config)
    return [Stage(ctx, vocab_size, layers[at], is_first=at == 0, is_last=at == len(layers) - 1)
            for at in range(ctx.grid.pp.index, len(layers), ctx.grid.pp.size)]


def layer_numbers(config: Config) -> list[range]:
    """Return the numbers of the layers of every virtual stage, in the order of the model."""
    return [range(*ends) for ends in pairwise(accumulate(config.layers_per_chunk, initial=0))]


def as_module(chunks: Sequence[Stage]) -> nn.Module:
    """Return one module with the parameters of all chunks: a single chunk itself."""
    return chunks[0] if len(chunks) == 1 else nn.ModuleList(chunks)


def data_parallel(ctx: Context, model: nn.Module) -> DistributedDataParallel:
    """Return the owner of the model's gradients, which shards what the flags choose."""
    config = ctx.config
    shards = ctx.grid.replicas.size // config.num_distributed_optimizer_instances
    if not config.zero_stage or shards == 1:
        return DistributedDataParallel(ctx, model)
    if config.shards_by_unit:
        from minimegatron.parallel.fully_sharded import BY_STAGE

        return BY_STAGE[config.zero_stage](ctx, model)
    from minimegatron.parallel.sharding import ShardedDataParallel

    return ShardedDataParallel(ctx, model)


class TiedEmbedding:
    """The word embedding that the first stage looks up and the last one multiplies with.

    It is one parameter on two stages. Both initialize it to the same values and update it with the
    sum of both gradients, so the two copies stay equal.
    """

    def __init__(self, ctx: Context, chunks: Sequence[Stage]) -> None:
        """Create the group of the first and the last stage; every rank must call it."""
        stages, at = ctx.grid.pp.size, ctx.grid.pp.index
        self.embedding: nn.Module | None = None
        if stages == 1 or ctx.config.untie_embeddings_and_output_weights:
            return
        self.group = ctx.grid.pipeline_group(0, stages - 1)
        if self.group is not None:
            self.embedding = (chunks[0] if at == 0 else chunks[-1]).embedding.word_embeddings

    def all_reduce(self, ddp: DistributedDataParallel) -> None:
        """Sum the gradients of both copies, [V/t, h], after the last backward pass."""
        if self.embedding is not None and self.embedding.param_specs["weight"].trained:
            accumulator = self.embedding.param_specs["weight"].accumulator
            self.group.all_reduce(ddp.summed_over_stages(accumulator))


def load_agreed_schedule(ctx: Context) -> Schedule:
    """Return a valid schedule of all stages; every rank must call it.

    Raises SharedError if the schedule is invalid on any rank, or if two ranks read different ones.
    """
    config, source = ctx.config, f"--schedule {ctx.config.schedule}"
    stages, micro_batches = ctx.grid.pp.size, config.num_micro_batches
    schedule, problem = [], None
    try:
        schedule = load(config.schedule, stages, micro_batches, config.chunks)
        check(schedule, stages=stages, micro_batches=micro_batches, chunks=config.chunks,
              source=source)
    except ScheduleError as error:
        problem = str(error)
    versions: list[tuple[str | None, list[str]]] = [(None, [])] * ctx.grid.world_size
    dist.all_gather_object(versions, (problem, to_text(schedule)))
    other = next((rank for rank, seen in enumerate(versions) if seen != versions[0]), None)
    for rank, (problem, _) in enumerate(versions):
        if problem is not None:
            raise SharedError(problem if other is None
                              else f"on rank {rank}, not on all: {problem}")
    if other is not None:
        raise SharedError(f"{source}: rank 0 and rank {other} read different schedules from it; "
                          "give a file that all nodes share, and that always yields the same "
                          "schedule")
    return schedule
