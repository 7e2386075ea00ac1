"""Steps of the trainer on virtual cards, in many layouts, one after another in the same processes.

A case is the flags of one run. Besides flags, cards=A,B,.. and nodes=a,b,.. name each rank's GPU
and node, network=N what the cluster declares between nodes, and `even` makes every stage take the
same time and communication none.
"""

from __future__ import annotations

import contextlib
import gc
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import torch
import torch.distributed as dist

from minimegatron.arguments import parse_arguments
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.virtual import VirtualDevice
from minimegatron.grid import axis_sizes, make_grid
from minimegatron.initialize import choose_device
from minimegatron.report import timeline
from minimegatron.training import Trainer
from virtualgpu.net import collectives

VOCABULARY = 8192  # padded
MODEL = ("--num-layers 4 --hidden-size 512 --num-attention-heads 8 --seq-length 256 "
         "--max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 16 ")
FLAGS = MODEL + ("--lr 1e-2 --train-iters 100 --eval-iters 0 --data-path x --vocab-file x "
                 "--merge-file x ")
EVEN = {"F": 1.0, "B": 1.0, "W": 1.0}  # seconds of a stage's part of a micro-batch


def even_stages(trainer: Trainer) -> None:
    """Operations cost nothing; a stage takes EVEN's times, its chunks their share of them."""
    gpu, pipeline = trainer.ctx.device.gpu, trainer.pipeline
    gpu.launch = lambda name, seconds, kernels: None
    gpu.card = replace(gpu.card, efficiency=replace(gpu.card.efficiency, dispatch=0.0))
    split, share = pipeline.weight_grads is not None, 1 / len(pipeline.chunks)

    def timed(forward):
        def run(x, batch):
            gpu.clock.run("F", EVEN["F"] * share)
            out = forward(x, batch)
            seconds = share * (EVEN["B"] + (0.0 if split else EVEN["W"]))
            out.register_hook(lambda _: gpu.clock.run("B", seconds))
            return out
        return run

    for chunk in pipeline.chunks:
        chunk.forward = timed(chunk.forward)
    if split:
        compute = pipeline.weight_grads.compute

        def timed_compute(key):
            gpu.clock.run("W", EVEN["W"] * share)
            compute(key)

        pipeline.weight_grads.compute = timed_compute


def free_messages() -> contextlib.ExitStack:
    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(collectives, "message", lambda path, size: 0.0))
    stack.enter_context(patch.object(collectives, "seconds", lambda name, path, volume: 0.0))
    return stack


def steps(ctx: Context, even: bool, count: int) -> dict:
    """Return the time and memory of a few steps."""
    device, config = ctx.device, ctx.config
    trainer = Trainer(ctx, VOCABULARY, started=0.0)
    if even:
        even_stages(trainer)
    text = torch.arange(config.seq_length + 1).numpy()
    source = Batches(ctx, [{"text": text}] * config.global_batch_size * count, eod=0, name="test")
    out: dict = {"seconds": [], "live": [], "peak": [], "values": []}
    clock = [device.now()]
    for step in range(count):
        start = device.now()
        if trainer.timers.recorder:
            trainer.timers.recorder.begin_step(step + 1)
        loss, norm = trainer.step(source.step(trainer.progress.consumed_train_samples, step))
        out["values"] += [ctx.read(loss), ctx.read(norm)]
        clock.append(device.now())
        out["seconds"].append(clock[-1] - start)
        if trainer.timers.recorder:
            trainer.timers.recorder.finish()
        out["live"].append(device.gpu.memory.requested)
        out["peak"].append(device.gpu.memory.peak_requested)
        del loss, norm
    parameters = sum(p.numel() for p in trainer.model.parameters())
    if config.timeline and ctx.grid.rank == 0:
        recorded = timeline.read(Path(config.timeline) / timeline.FILE)
        out["bubble"] = recorded.bubble_fraction
        out["busy"] = [seconds / 1e3 for seconds in recorded.busy]
    return {**out, "clock": [time.hex() for time in clock], "parameters": parameters,
            "reserved": device.gpu.memory.peak_reserved, "closing": device.closing(),
            "back": clock != sorted(clock), "card": device.gpu.card.name}


def run_case(case: str, folder: str, count: int) -> dict:
    rank, words, even = dist.get_rank(), [], False
    for word in case.split():
        name, _, value = word.partition("=")
        if name == "cards":
            os.environ["VIRTUAL_GPU"] = value.split(",")[rank]
        elif name == "nodes":
            os.environ["SLURMD_NODENAME"] = value.split(",")[rank]
        elif name == "network":
            os.environ["VIRTUAL_NETWORK"] = value
        elif word == "even":
            even = True
            words += ["--timeline", folder, "--timeline-iteration", str(count)]
        else:
            words.append(word)
    config = parse_arguments([*FLAGS.split(), *words])
    device, notes = choose_device(config, rank)
    assert isinstance(device, VirtualDevice) and not notes
    try:
        said = device.connect()
        grid = make_grid(axis_sizes(config), device.backend)
        with free_messages() if even else contextlib.nullcontext():
            return {**steps(Context(config, grid, device), even, count), "said": said}
    finally:
        device.gpu.__exit__(None, None, None)


def run(count: int, cases: list[str]) -> list[dict]:
    """Return what this rank saw in each case."""
    store, rank, ranks = next(dist.rendezvous("env://"))
    results = []
    for number, case in enumerate(cases):
        os.environ |= {"SLURMD_NODENAME": "node", "VIRTUAL_GPU": "v100", "VIRTUAL_NETWORK": ""}
        dist.init_process_group("gloo", store=dist.PrefixStore(str(number), store), rank=rank,
                                world_size=ranks)
        with tempfile.TemporaryDirectory() as folder:
            results.append(run_case(case, folder, count))
        dist.barrier()
        dist.destroy_process_group()
        gc.collect()
    return results
