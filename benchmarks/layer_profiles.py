"""Measure the table of layer times that `lab plan --profiles` reads, on this machine's GPUs.

    python -m benchmarks.layer_profiles --model gpt2-xl --output a10.json
    torchrun --nproc-per-node 2 -m benchmarks.layer_profiles --model gpt2-xl --output a10_tp2.json
    python -m benchmarks.layer_profiles --join a10.json a10_tp2.json a100.json --output table.json

The trainer's own embedding, layer, and head run forward and backward, whole and with split weight
gradients, for each micro-batch size and kind of recomputation, until memory runs out. The ranks of
torchrun are the tensor-parallel group. This has run on the CPU only, where memory is what autograd
saves; it has never run with CUDA.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from cluster_planner.profiles import (
    MICRO_BATCHES,
    RECOMPUTE,
    Key,
    ModelSpec,
    PartProfile,
    Profile,
    write_table,
)
from labcore.errors import LabError
from layout_estimator.measurement import draw_micro_batch
from layout_estimator.requests import model_flags, read_flags
from minimegatron.arguments import Config
from minimegatron.context import Context, MicroBatch
from minimegatron.data.vocabulary import pad_vocab_size
from minimegatron.initialize import initialize
from minimegatron.model.gpt import Stage
from minimegatron.optim import LearningRate, Optimizer
from minimegatron.parallel.stages import data_parallel
from minimegatron.timers import Timers
from virtualgpu.core import cards
from virtualgpu.core.errors import VirtualGpuError

WARM_UP, REPEATS = 3, 10
LAYERS = 2  # that are measured together
PARTS = {"embedding": (0, True, False), "layer": (LAYERS, False, False),
         "head": (0, False, True)}  # layers; whether the part is the first or the last


class Passes(NamedTuple):
    """Seconds and bytes of the passes of one part."""

    forward: float
    backward: float
    weight: float
    saved: float
    held: float
    transient: float


def measure(ctx: Context, vocabulary: int, split: bool) -> Profile:
    """Return the profile of the context's model on this device.

    Args:
        ctx: with the micro-batch size and recomputation.
        vocabulary: its padded size.
        split: whether to measure weight gradients in passes of their own.
    """
    batch, parts = draw_micro_batch(ctx), {}
    for name, (layers, first, last) in PARTS.items():
        stage = Stage(ctx, vocabulary, range(layers), first, last).to(ctx.device.torch_device)
        parameters = sum(one.numel() for one in stage.parameters())
        ddp, count = data_parallel(ctx, stage), max(layers, 1)
        passes = _passes(ctx, stage, ddp, batch, split)
        each = Passes(*(value / count for value in passes))
        parts[name] = PartProfile(
            each.forward, each.backward, parameters // count, each.saved, passes.transient,
            _step_seconds(ctx, ddp) / count, each.weight, each.held)
    return Profile(**parts)


def _passes(ctx: Context, stage: Stage, ddp: object, batch: MicroBatch, split: bool) -> Passes:
    """Return the median of several runs of a part's passes."""
    config, later, runs = ctx.config, ddp.delayed, []
    shape = config.seq_length, config.micro_batch_size, config.hidden_size
    dtype = next(stage.parameters()).dtype
    for _ in range(WARM_UP + REPEATS):
        x = None if stage.is_first else torch.randn(
            shape, dtype=dtype, device=ctx.device.torch_device, requires_grad=True)
        meter = _Meter(ctx)
        with meter.saving():
            out = stage(x, batch)
        forward, saved = meter.lap()
        gradient = None if stage.is_last else torch.ones_like(out)
        meter.lap()
        if split:
            with later.delay(0):
                out.backward(gradient)
            backward, freed = meter.lap()
            later.compute(0)
            runs.append((forward, backward, meter.lap()[0], saved, max(saved + freed, 0.0),
                         meter.transient()))
        else:
            out.backward(gradient)
            runs.append((forward, meter.lap()[0], 0.0, saved, 0.0, meter.transient()))
        ddp.zero_grad()
    return Passes(*map(statistics.median, zip(*runs[WARM_UP:], strict=True)))


class _Meter:
    """Seconds and allocated bytes since the last lap."""

    def __init__(self, ctx: Context) -> None:
        self.device = ctx.device
        self.on_cuda = ctx.device.torch_device.type == "cuda"
        self.kept = 0
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats(ctx.device.torch_device)
        self.time, self.bytes = self.device.now(), self._allocated()

    def _allocated(self) -> int:
        return self.device.memory().allocated if self.on_cuda else self.kept

    def saving(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Count what autograd saves, which stands for memory on the CPU."""
        seen: set[int] = set()

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storage = tensor.untyped_storage()
            if not isinstance(tensor, torch.nn.Parameter) and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                self.kept += storage.nbytes()
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)

    def lap(self) -> tuple[float, float]:
        """Return the seconds and the allocated bytes since the last lap."""
        time, size = self.device.now(), self._allocated()
        seconds, more = time - self.time, size - self.bytes
        self.time, self.bytes = self.device.now(), size
        return seconds, float(more)

    def transient(self) -> float:
        """Return how much higher the peak was than what is allocated now; 0 on the CPU."""
        memory = self.device.memory()
        return float(max(memory.max_allocated - memory.allocated, 0)) if self.on_cuda else 0.0


def _step_seconds(ctx: Context, ddp: object) -> float:
    """Return the median time of the optimizer's step for a part, in seconds."""
    optimizer, rate = Optimizer(ctx, ddp), LearningRate(ctx.config)
    timers, times = Timers(ctx.device.now, 0), []
    for _ in range(WARM_UP + REPEATS):
        optimizer.zero_grad()
        for accumulator in ddp.accumulators.values():
            accumulator.writes = 1  # as after a backward pass
        start = ctx.device.now()
        optimizer.step(rate.value(), timers)
        times.append(ctx.device.now() - start)
    return statistics.median(times[WARM_UP:])


def profiles(flags: Sequence[str], gpu: str | None, device: str, sizes: Sequence[int]
             ) -> tuple[ModelSpec, dict[Key, Profile]]:
    """Return the model, and its profiles on this machine.

    Args:
        flags: the trainer's flags of the model and its precision.
        gpu: the GPU model's name; None for the one that CUDA names.
        device: "cuda", or "cpu".
        sizes: micro-batch sizes, in ascending order.

    Raises:
        LabError: no GPU model has this name.
    """
    known, ctx = {}, None
    for size, (name, words) in ((size, one) for size in sizes for one in RECOMPUTE.items()):
        config = _config(flags, device, size, words)
        ctx = initialize(config) if ctx is None else Context(config, ctx.grid, ctx.device)
        card = _card(gpu, ctx.device.name)
        vocabulary = pad_vocab_size(config.vocab_size, config.make_vocab_size_divisible_by,
                                    config.tensor_model_parallel_size)
        for split in (False, True):
            try:
                known[Key(card, ctx.grid.tp.size, size, name, split)] = measure(
                    ctx, vocabulary, split)
            except torch.OutOfMemoryError:
                ctx.print_rank_0(f"micro-batch {size}, recompute {name}: out of memory, left out")
    return ModelSpec(config.num_layers, config.hidden_size, config.seq_length, vocabulary,
                     config.precision, 1), known


def _config(flags: Sequence[str], device: str, size: int, words: Sequence[str]) -> Config:
    """Return the flags' configuration, which needs no data, on this device."""
    world = os.environ.get("WORLD_SIZE", "1")
    config = read_flags([
        *flags, *words, "--device", "virtual:a10", "--world-size", world, "--gpus-per-node", world,
        "--tensor-model-parallel-size", world, "--micro-batch-size", str(size),
        "--global-batch-size", str(size), "--timing-log-level", "0"])
    return replace(config, device=device)


def _card(gpu: str | None, product: str) -> str:
    if gpu is None:
        card = cards.card_by_product(product)
        if card is None:
            raise LabError(f"{product}: no GPU model has this name; give --gpu, such as --gpu a10")
        return card.name
    try:
        return cards.find(gpu).name
    except VirtualGpuError as error:
        raise LabError(f"--gpu {gpu}: {error}") from error


def join(paths: Sequence[str]) -> dict:
    """Return one table with the rows of several. Raises LabError if their models differ."""
    found = [json.loads(Path(path).read_text()) for path in paths]
    for path, one in zip(paths, found, strict=True):
        if one["model"] != found[0]["model"]:
            raise LabError(f"--join {path}: measured for {one['model']}, but {paths[0]} for "
                           f"{found[0]['model']}")
    return {**found[0], "profiles": [row for one in found for row in one["profiles"]]}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", metavar="NAME", help="as in lab plan; it trains in fp16")
    parser.add_argument("--flags", help="the trainer's flags of any other model, in quotes")
    parser.add_argument("--gpu", help="GPU model (default: the one that CUDA names)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=list(MICRO_BATCHES))
    parser.add_argument("--join", nargs="+", metavar="TABLE", help="put tables together instead")
    parser.add_argument("--output", required=True, metavar="FILE.json")
    arguments = parser.parse_args(argv)
    if arguments.join:
        Path(arguments.output).write_text(json.dumps(join(arguments.join), indent=1) + "\n")
        return
    if (arguments.model is None) == (arguments.flags is None):
        parser.error("give either --model NAME or --flags FLAGS")
    flags = ([*model_flags(arguments.model), "--fp16"] if arguments.flags is None
             else shlex.split(arguments.flags))
    model, known = profiles(flags, arguments.gpu, arguments.device, sorted(arguments.micro_batches))
    if dist.get_rank() == 0:
        write_table(arguments.output, model, known)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except LabError as error:
        raise SystemExit(f"error: {error}") from error
