"""Runs that save, and runs that load, one after another in the same rank processes."""

from __future__ import annotations

import hashlib

from minimegatron.arguments import parse_arguments
from minimegatron.checkpoint.optimizer_state import SHARDED, optimizer_state
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.device import CpuDevice
from minimegatron.errors import UserError
from minimegatron.grid import axis_sizes, make_grid
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
        seen += [ctx.read(value) for value in trainer.step(batches)]
    return {"iteration": progress.iteration, "loss and norm": seen, "after": state(trainer)}


def state(trainer: Trainer) -> dict[str, str]:
    """Return hashes of the unsharded parameters and of the optimizer's state."""
    states = optimizer_state(trainer.optimizer)
    with trainer.ddp.full_params():
        parts = {"parameters": dict(trainer.model.named_parameters()),
                 **{name: states[name] for name in SHARDED if name in states}}
        return {part: hashlib.sha256(b"".join(
            name.encode() + tensors[name].detach().float().clone().numpy().tobytes()
            for name in sorted(tensors))).hexdigest() for part, tensors in parts.items()}


def resume(flags: str) -> dict:
    trainer = make_trainer(flags)
    try:
        trainer.resume()
    except UserError as error:
        return {"error": str(error)}
    return {"saved": state(trainer), **take_steps(trainer)}


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
        whole = {"saved": state(trainer), **take_steps(trainer)}
        results.append((whole, [resume(f"{flags} --load {folder}/{number}") for flags in loading]))
    return results
