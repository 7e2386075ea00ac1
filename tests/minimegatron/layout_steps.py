"""Train a few steps in many layouts, one after another in the same rank processes.

A case is the flags of one run, and names of functions in VARIANTS that change it.
"""

from __future__ import annotations

import gc
import hashlib
from contextlib import nullcontext
from dataclasses import replace

import torch
import torch.distributed as dist

from minimegatron import training
from minimegatron.arguments import parse_arguments
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.device import CpuDevice
from minimegatron.evaluation import evaluate
from minimegatron.grid import axis_sizes, make_grid
from minimegatron.model.gpt import Stage
from minimegatron.model.parameters import named_param_specs
from minimegatron.optim import Optimizer
from minimegatron.parallel.fully_sharded import UnitGrads
from minimegatron.parallel.stages import build_chunks
from minimegatron.report.step_log import num_zeros, params_norm
from minimegatron.training import Trainer
from pipeline_schedules import BACKWARD, FORWARD, Message

from .late_copies import StreamsDevice, late_copies

EOD = 0
VOCABULARY = 128  # padded alike in every layout: the loss depends on it
FLAGS = ("--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 "
         "--max-position-embeddings 24 --micro-batch-size 2 --global-batch-size 8 --lr 1e-2 "
         "--lr-warmup-iters 1 --train-iters 100 --eval-iters 1 --data-path x --vocab-file x "
         "--merge-file x ")


def data(count: int, length: int) -> list[dict]:
    """Samples that repeat themselves, so that there is something to learn."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randint(VOCABULARY, (count, 1), generator=generator)
    text = (start + torch.arange(length + 1) * torch.arange(1, count + 1)[:, None]) % VOCABULARY
    return [{"text": row.numpy()} for row in text]


def unsummed(trainer: Trainer) -> None:
    """Wrong: a copy keeps the gradient of its part of the sequence."""
    trainer.optimizer.all_reduce_replicated_grads = lambda: None


def counted_by_all(trainer: Trainer) -> None:
    """Wrong: every rank of the model counts its copies."""
    optimizer = trainer.optimizer
    optimizer.ranges = [replace(part, counted=True) for part in optimizer.ranges]


def own_mean(trainer: Trainer) -> None:
    """Wrong: every replica divides by its own tokens, so a token counts more where few do."""
    trainer._counted_share = lambda losses: losses.counted.clamp(min=1) / losses.tokens


def first_mask_for_all(trainer: Trainer) -> None:
    """Wrong: every rank drops out as if its part of the sequence were the first."""
    for module in trainer.model.modules():
        if hasattr(module, "tp"):
            module.tp.sequence_offset = lambda length: 0


def untied(trainer: Trainer) -> None:
    """Wrong: each end of the pipeline keeps its own gradient of the embedding."""
    trainer.tied_embedding.all_reduce = lambda ddp: None


def last_micro_batch(trainer: Trainer) -> None:
    """Wrong: the shard of the gradients keeps only the last micro-batch's."""
    for grads in trainer.ddp.grads:
        def replace_shard(total: torch.Tensor, grads: object = grads, add=grads.add) -> None:
            grads.is_summed = False
            add(total)

        grads.add = replace_shard


def out_of_date(trainer: Trainer) -> None:
    """Wrong: parameters that were gathered before an update are used after it."""
    trainer.ddp.gather_params = lambda buffer: None
    trainer.ddp._free = lambda units: None


def own_norm(trainer: Trainer) -> None:
    """Wrong: every replica clips by the norm of its own shard."""
    trainer.optimizer.norm_groups = [trainer.ctx.grid.model]


def own_shard(trainer: Trainer) -> None:
    """Wrong: every replica keeps its own gradients of what it owns."""
    group = trainer.ddp.group

    class OwnShard(type(group)):
        def start_reduce_scatter(self, part: torch.Tensor, whole: torch.Tensor) -> dist.Work:
            work = super().start_reduce_scatter(torch.empty_like(part), whole)
            part.copy_(whole.chunk(self.size)[self.index])
            return work

    trainer.ddp.group = OwnShard(group.ranks, group.index, group.process_group)


def eager(trainer: Trainer) -> None:
    """Every activation is expected before the gradient that is sent before it; right as long as
    every direction and chunk has a channel of its own."""
    program, gradient = [], None
    for item in trainer.pipeline.program:
        at = len(program)
        if isinstance(item, Message) and item.end == "receive":
            if item.action.kind == FORWARD and gradient is not None:
                at, gradient = gradient, None
            elif item.action.kind == BACKWARD:
                gradient = at
        program.insert(at, item)
    trainer.pipeline.program = program


def one_channel(trainer: Trainer) -> None:
    """Wrong: all messages between two stages travel through one channel."""
    groups = trainer.pipeline.peers.groups
    trainer.pipeline.peers.groups = dict.fromkeys(groups, groups["F", 0])


def poison(trainer: Trainer) -> None:
    """One element of what the last rank owns overflows in the last step but one."""
    ddp, finish = trainer.ddp, trainer.ddp.finish_grad_sync

    def finish_and_poison() -> None:
        finish()
        if trainer.progress.iteration == poisoned and trainer.ctx.grid.is_last_rank:
            ddp.grad_buffer[trainer.optimizer.ranges[-1].grads] = float("inf")

    ddp.finish_grad_sync = finish_and_poison


def unshared_overflow(trainer: Trainer) -> None:
    """Wrong: a rank skips when it overflowed itself."""
    optimizer = trainer.optimizer
    optimizer._overflow = lambda: ~trainer.ddp.grad_buffer.isfinite().all()


def scaled(trainer: Trainer) -> None:
    """Wrong: gradients stay multiplied by the loss scale."""
    step = trainer.optimizer.step

    def forget(*arguments: object) -> torch.Tensor:
        trainer.ddp.grad_buffer.mul_(trainer.optimizer.scaler.scale)
        return step(*arguments)

    trainer.optimizer.step = forget


VARIANTS = {variant.__name__: variant for variant in (
    unsummed, counted_by_all, own_mean, first_mask_for_all, untied, last_micro_batch, out_of_date,
    own_norm, own_shard, eager, one_channel, poison, unshared_overflow, scaled)}
poisoned = -1  # set by run


def held_bytes(optimizer: Optimizer) -> float:
    """Return the bytes per trained parameter of weights, gradients, and optimizer state."""
    tensors = [optimizer.param_buffer, optimizer.ddp.grad_buffer, optimizer.main_grads]
    for holder in filter(None, (optimizer, optimizer.host)):
        tensors += [holder.main_params, *holder.moments.values()]
    parameters = list(optimizer.ddp.params.values())
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
                for tensor in [*tensors, *parameters] if tensor is not None}
    return sum(storages.values()) / max(1, sum(p.numel() for p in parameters))


FROZEN, STREAMS = "frozen", "streams"  # copies as on a CUDA device: see late_copies.py


def frozen_chunks(*arguments: object) -> list[Stage]:
    """Build the model's chunks with frozen embeddings, and a frozen first layer."""
    chunks = build_chunks(*arguments)
    for chunk in chunks:
        for name, spec in named_param_specs(chunk).items():
            spec.trained = not name.startswith(("embedding.", "decoder.layers.0."))
    return chunks


def frozen_state(trainer: Trainer) -> tuple[int, str]:
    """Return how many elements have no gradient, moments, or place in a buffer, and their hash."""
    trained, moments = trainer.ddp.params, trainer.optimizer.moments["exp_avg"]
    held = moments.numel() * (trainer.ddp.group.size if trainer.ddp.shard_groups else 1)
    elements = sum(weight.numel() for weight in trained.values())
    assert elements <= held < elements + 2 * len(trainer.ddp.buckets) + 1  # padding
    for buffer, sharded in ((trainer.optimizer.param_buffer, trainer.ddp.shards_params),
                            (trainer.ddp.grad_buffer, trainer.ddp.shards_grads)):
        assert len(buffer) == (moments.numel() if sharded else held)
    rest = [weight for name, weight in trainer.model.named_parameters() if name not in trained]
    assert all(weight.grad is None and not weight.requires_grad for weight in rest)
    content = b"".join(weight.detach().numpy().tobytes() for weight in rest)
    return sum(weight.numel() for weight in rest), hashlib.sha256(content).hexdigest()


def steps(ctx: Context, count: int, variants: list[str]) -> dict:
    """Train; returns loss (mean over replicas), norms and zeros of every step."""
    training.build_chunks = frozen_chunks if FROZEN in variants else build_chunks
    trainer = Trainer(ctx, VOCABULARY, started=0.0)
    before = frozen_state(trainer) if FROZEN in variants else None
    for name in variants:
        if name in VARIANTS:
            VARIANTS[name](trainer)
    batch, optimizer = ctx.config.global_batch_size, trainer.optimizer
    samples = data(batch * count, ctx.config.seq_length)
    if ctx.config.eod_mask_loss:
        for sample in samples[2:4]:
            sample["text"][:] = EOD  # in this micro-batch, no token counts
    source = Batches(ctx, samples, EOD, name="training")
    out: dict = {"loss": [], "norm": [], "params": [], "zeros": [], "scale": [], "advanced": []}
    for _ in range(count):
        progress = trainer.progress
        loss, norm = trainer.step(source.step(progress.consumed_train_samples, progress.iteration))
        loss = loss / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        values = {"loss": loss, "norm": norm, "zeros": num_zeros(optimizer),
                  "params": params_norm(optimizer),
                  "advanced": torch.as_tensor(optimizer.advanced)}
        if optimizer.scaler is not None:
            values["scale"] = optimizer.scaler.scale
        for name, value in values.items():
            out[name].append(ctx.read(value))
    if before is not None:
        assert frozen_state(trainer) == before and before[0]
    mean, _ = evaluate(ctx, trainer.pipeline, source, 0)
    out["validation"] = [ctx.read(mean)]
    held = held_bytes(optimizer)
    with trainer.ddp.full_params():
        if trainer.tied_embedding.embedding is not None:
            out["embedding"] = trainer.tied_embedding.embedding.weight.flatten()[:100].tolist()
        copied = b"".join(weight.detach().float().clone().numpy().tobytes()
                          for name, weight in trainer.ddp.params.items()
                          if trainer.ddp.specs[name].partition_dim is None)
    scales = [history.scale.tolist() for part in trainer.pipeline.chunks if part.fp8 is not None
              for history in part.fp8.histories.values()]
    return {**out, "scales": scales, "stage": ctx.grid.pp.index,
            "last": trainer.pipeline.chunks[-1].is_last, "bytes": held,
            "copied": hashlib.sha256(copied).hexdigest()}


def run(count: int, cases: list[str]) -> list[dict]:
    """Return what this rank saw in each case: losses and norms to the last digit.

    Args:
        count: steps of each run.
        cases: run in this order.
    """
    global poisoned
    poisoned = count - 2
    store, rank, ranks = next(dist.rendezvous("env://"))
    results = []
    for number, case in enumerate(cases):
        dist.init_process_group("gloo", store=dist.PrefixStore(str(number), store), rank=rank,
                                world_size=ranks)
        variants = [word for word in case.split() if word in (*VARIANTS, FROZEN, STREAMS)]
        config = parse_arguments(
            [*FLAGS.split(), *(word for word in case.split() if word not in variants)])
        grid = make_grid(axis_sizes(config), "gloo")
        device = StreamsDevice() if STREAMS in variants else CpuDevice()
        with late_copies() if STREAMS in variants else nullcontext():
            results.append(steps(Context(config, grid, device), count, variants))
        # Groups have threads: after hundreds of cases they would drown the machine.
        dist.barrier()
        dist.destroy_process_group()
        del grid
        gc.collect()
    return results


def left_alive(case: str) -> int:
    """Return how many model chunks, and gradients of units, outlive a run."""
    run(1, [case])
    gc.collect()  # what the parameters' hooks refer to outlives the first collection
    return sum(type(one) in (Stage, UnitGrads) for one in gc.get_objects())
