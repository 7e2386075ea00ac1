"""Runs that save, and runs that load, one after another in the same rank processes.

python ranks.py resume_steps RANKS FOLDER CASE ..

CASE, quoted: "FLAGS => FLAGS => .." of the run that saves, and of those that load what it saved.
Every rank prints a JSON line per case: what the saving run saw after it had saved, and for each
other run what it saw, or why it was refused. Numbers are to the last digit.
"""

from __future__ import annotations

import hashlib
import json
import sys

import torch
import torch.distributed as dist
from layout_steps import FLAGS, VOCABULARY, data

from minimegatron.arguments import parse_arguments
from minimegatron.batches import Batches
from minimegatron.console import emit
from minimegatron.context import Context
from minimegatron.device import Device
from minimegatron.errors import UserError
from minimegatron.grid import make_grid
from minimegatron.main import leave
from minimegatron.training import Trainer

STEPS = 2  # before saving, and again after it


def make_trainer(flags: str) -> Trainer:
    config = parse_arguments([*FLAGS.split(), *flags.split()])
    grid = make_grid(config.pipeline_model_parallel_size, config.data_parallel_size,
                     config.tensor_model_parallel_size, "gloo")
    return Trainer(Context(config, grid, Device()), VOCABULARY, started=0.0)


def take_steps(trainer: Trainer) -> dict:
    ctx, progress = trainer.ctx, trainer.progress
    samples = data(2 * STEPS * ctx.config.global_batch_size, ctx.config.seq_length)
    source, seen = Batches(ctx, samples, eod=0, name="training"), []
    for _ in range(STEPS):
        batches = source.step(progress.consumed_train_samples, progress.iteration)
        seen += [ctx.read(value) for value in trainer.step(batches)]
    weights = b"".join(p.detach().numpy().tobytes() for p in trainer.model.parameters())
    return {"iteration": progress.iteration, "loss and norm": seen,
            "weights": hashlib.sha256(weights).hexdigest()}


def resume(flags: str) -> dict:
    trainer = make_trainer(flags)
    try:
        trainer.load()
    except UserError as error:
        return {"error": str(error)}
    return take_steps(trainer)


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    folder, *cases = sys.argv[1:]
    for number, case in enumerate(cases):
        saving, *loading = case.split(" => ")
        trainer = make_trainer(f"{saving} --save {folder}/{number} --save-interval 100")
        take_steps(trainer)
        trainer.save()
        whole = take_steps(trainer)
        resumed = [resume(f"{flags} --load {folder}/{number}") for flags in loading]
        emit(json.dumps({"case": case, "rank": dist.get_rank(), "whole": whole,
                         "resumed": resumed}))
    leave(0)


if __name__ == "__main__":
    main()
