"""Runs that save, and runs that load, one after another in the same rank processes."""

from __future__ import annotations

import hashlib
import re

import torch
import torch.distributed as dist

from minimegatron.arguments import parse_arguments
from minimegatron.checkpoint.optimizer_state import SHARDED, optimizer_shards, optimizer_state
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.device import CpuDevice
from minimegatron.errors import UserError
from minimegatron.grid import axis_sizes, make_grid
from minimegatron.model.parameters import named_param_specs
from minimegatron.training import Trainer

from .layout_steps import FLAGS, VOCABULARY, data

STEPS = 2  # before saving, and again after it


def make_trainer(flags: str) -> Trainer:
    config = parse_arguments([*FLAGS.split(), *flags.split()])
    grid = make_grid(axis_sizes(config), "gloo")
    return Trainer(Context(config, grid, CpuDevice()), VOCABULARY, started=0.0)


def take_steps(trainer: Trainer) -> dict:
    ctx, progress = trainer.ctx, trainer.progress
    samples = data(2 * STEPS * ctx.config.global_batch_size, ctx.config.seq_length)
    source, seen = Batches(ctx, samples, eod=0, name="training"), []
    for _ in range(STEPS):
        batches = source.step(progress.consumed_train_samples, progress.iteration)
        loss, norm = trainer.step(batches)
        loss = loss / ctx.grid.dp.size
        ctx.grid.dp.all_reduce(loss)
        seen += [ctx.read(value) for value in (loss, norm)]
    return {"iteration": progress.iteration, "loss and norm": seen, "after": state(trainer)}


def unsharded_state(trainer: Trainer) -> dict:
    """Return the optimizer's state with whole moments and master weights; all ranks must call it.
    """
    ddp = trainer.ddp
    state = optimizer_state(trainer.optimizer, divided=True)
    for kind, shard in optimizer_shards(trainer.optimizer).items():
        buffer, start = shard.new_zeros(ddp.size), 0
        for owned in ddp.owned:
            end = start + owned.stop - owned.start
            buffer[owned] = shard[start:end]
            start = end
        ddp.all_gather(buffer)
        state[kind] = ddp.named_views(buffer)
    return state


def state(trainer: Trainer) -> dict[str, str]:
    """Return hashes of the unsharded parameters and of the optimizer's state."""
    states = unsharded_state(trainer)
    with trainer.ddp.full_params():
        parts = {"parameters": dict(trainer.model.named_parameters()),
                 **{name: states[name] for name in SHARDED if name in states}}
        return {part: hashlib.sha256(b"".join(
            name.encode() + tensors[name].detach().float().clone().numpy().tobytes()
            for name in sorted(tensors))).hexdigest() for part, tensors in parts.items()}


def whole_state(trainer: Trainer) -> dict[str, str]:
    """Return hashes of the whole model's parameters and states, put together from all ranks."""
    grid, states = trainer.ctx.grid, unsharded_state(trainer)
    specs = named_param_specs(trainer.model)
    with trainer.ddp.full_params():
        parts = {"parameters": dict(trainer.model.named_parameters()), **states}
        mine = {(part, re.sub(r"^\d+\.", "", name)): (
            grid.tp.index, specs[name].partition_dim, tensor.detach().float().clone())
            for part, tensors in parts.items() if isinstance(tensors, dict)
            for name, tensor in tensors.items() if part != "grad_scaler"}
    mine |= {(f"fp8 {direction}", number): (grid.tp.index, None, columns.clone())
             for chunk in trainer.pipeline.chunks if chunk.fp8 is not None
             for direction, history in chunk.fp8.histories.items()
             for number, columns in zip(
                 chunk.decoder.layers, torch.cat([history.amax, history.scale[None]]).chunk(
                     len(chunk.decoder.layers), 1), strict=True)}
    ranks: list[dict] = [{}] * grid.world_size
    dist.all_gather_object(ranks, mine)
    whole: dict[tuple, dict] = {}
    for rank in ranks:
        for key, (tp, dim, tensor) in rank.items():
            other = whole.setdefault(key, {}).setdefault(tp, (dim, tensor))
            # Replicas, and the two tied embeddings. Weights gathered in FP8 are out of date.
            assert torch.equal(other[1], tensor) or trainer.config.fp8_param_gather, key
    hashes: dict[str, object] = {}
    for (part, name), by_rank in sorted(whole.items()):
        pieces = [tensor for _, (_, tensor) in sorted(by_rank.items())]
        full = join(name, by_rank[0][0], pieces, trainer.config.swiglu)
        hashes.setdefault(part, hashlib.sha256()).update(name.encode() + full.numpy().tobytes())
    scalars = [trainer.ctx.read(trainer.optimizer.steps), trainer.learning_rate.samples]
    if (scaler := states.get("grad_scaler")) is not None:
        scalars += [trainer.ctx.read(value) for value in scaler.values()]
    return {part: digest.hexdigest() for part, digest in hashes.items()} | {
        "scalars": str([float(value) for value in scalars])}


def join(name: str, dim: int | None, pieces: list[torch.Tensor], gated: bool) -> torch.Tensor:
    """Return the tensor that tensor-parallel ranks partition: [gate; up] on each with SwiGLU."""
    if dim is None:
        assert all(torch.equal(piece, pieces[0]) for piece in pieces), name
        return pieces[0]
    if gated and "linear_fc1" in name:
        return torch.cat([torch.cat(half) for half in zip(*(p.chunk(2) for p in pieces),
                                                          strict=True)])
    return torch.cat(pieces, dim)


def resume(flags: str) -> dict:
    trainer = make_trainer(flags)
    try:
        trainer.resume()
    except UserError as error:
        return {"error": str(error)}
    return {"saved": state(trainer), "whole": whole_state(trainer), **take_steps(trainer)}


def run(folder: str, cases: list[tuple[str, list[str]]]) -> list[tuple[dict, list[dict]]]:
    """Return what this rank saw in each case, to the last digit: the saving run after it had
    saved, and each loading run, or why it was refused.

    Args:
        folder: where checkpoints go.
        cases: the flags of a run that saves, and of those that load what it saved.
    """
    results = []
    for number, (saving, loading) in enumerate(cases):
        trainer = make_trainer(f"{saving} --save {folder}/{number} --save-interval 100")
        take_steps(trainer)
        trainer.save()
        whole = {"saved": state(trainer), "whole": whole_state(trainer), **take_steps(trainer)}
        results.append((whole, [resume(f"{flags} --load {folder}/{number}") for flags in loading]))
    return results
