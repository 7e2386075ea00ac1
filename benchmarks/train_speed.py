"""Compare the trainer, as one process, with a plain PyTorch loop and the Hugging Face Trainer.

python benchmarks/train_speed.py [--model 10M|124M] [--dtype fp32|bf16] [--rounds 5] [--steps 3]

All three train the same model from the same initialization scheme, without dropout, in one process
with the same threads. They take turns within each round, and the order rotates from round to round.
The figures are medians over the rounds. Each round also measures the machine's matmul peak (2048^3
in the run's dtype), so that throughput can be printed as a fraction of it.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
import time
from typing import Protocol

import torch
import torch.distributed as dist
from hugging_face import HuggingFaceLoop
from plain_gpt import SHAPES, PlainLoop, Shape

from minimegatron.arguments import parse_arguments
from minimegatron.data.batches import Batches
from minimegatron.formulas import step_flops
from minimegatron.initialize import initialize
from minimegatron.report.throughput import shape_of
from minimegatron.training import Trainer

PEAK = 2048  # rows and columns of the matrices that measure the machine's matmul peak
OURS = "trainer"


class Loop(Protocol):
    """A training loop. One that times its own steps sets `seconds`; any other is timed here."""

    def step(self) -> float:
        """Take one step and return its loss."""


class OurLoop:
    def __init__(self, shape: Shape, texts: torch.Tensor, bf16: bool) -> None:
        flags = (f"--device cpu {shape.flags} --micro-batch-size {shape.batch} --train-iters 1 "
                 "--data-path none --vocab-file none --merge-file none "
                 f"{'--bf16' if bf16 else ''}")
        ctx = initialize(parse_arguments(shlex.split(flags)))
        self.trainer = Trainer(ctx, shape.vocabulary, time.perf_counter())
        self.batches = Batches(ctx, [{"text": text.numpy()} for text in texts], 0, "training")

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.trainer.ddp.params.values())

    def step(self) -> float:
        loss, _ = self.trainer.step(self.batches.step(0, 0))
        return loss.item()


def timed(loop: Loop, steps: int) -> float:
    """Return the mean time of one step, in seconds."""
    seconds = []
    for _ in range(steps):
        start = time.perf_counter()
        loop.step()
        seconds.append(getattr(loop, "seconds", time.perf_counter() - start))
    return statistics.mean(seconds)


def matmul_flops(dtype: torch.dtype) -> float:
    """Return the FLOP/s of a large matrix multiplication, the fastest of three."""
    a, b = torch.randn(PEAK, PEAK).to(dtype), torch.randn(PEAK, PEAK).to(dtype)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK**3 / best


def require_untrained(loops: dict[str, Loop], vocabulary: int) -> None:
    """Take one step with each loop and require the loss of an untrained model, about ln V.

    Another loss means another computation: saturated logits bring denormal numbers, which are slow.

    Raises:
        SystemExit: a loop starts elsewhere, so the comparison would be unfair to it.
    """
    expected = math.log(vocabulary)
    for name, loop in loops.items():
        loss = loop.step()
        if not abs(loss - expected) < 0.5:
            raise SystemExit(f"error: {name} starts at a loss of {loss:.1f}; an untrained model "
                             f"starts near ln {vocabulary} = {expected:.1f}, so fix its "
                             "initialization before comparing speeds")


def build_loops(shape: Shape, bf16: bool) -> dict[str, Loop]:
    """Return the loops to compare, by name."""
    texts = torch.randint(shape.vocabulary, (shape.batch, shape.length + 1))
    ours, plain = OurLoop(shape, texts, bf16), PlainLoop(shape, texts, bf16)
    assert plain.parameters == ours.parameters, "not the same model"
    return {OURS: ours, "plain loop": plain, "HF Trainer": HuggingFaceLoop(shape, texts, bf16)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="10M")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shape = SHAPES[arguments.model]
    loops = build_loops(shape, arguments.dtype == "bf16")
    require_untrained(loops, shape.vocabulary)
    report(shape, arguments, loops)
    dist.destroy_process_group()


def measure(loops: dict[str, Loop], arguments: argparse.Namespace
            ) -> tuple[dict[str, list[float]], float]:
    """Return (each loop's step times by round, in seconds; the median matmul peak, in FLOP/s)."""
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    order, peaks = list(loops), []
    for _ in range(arguments.rounds):
        peaks.append(matmul_flops(dtype))
        for name in order:
            seconds[name].append(timed(loops[name], arguments.steps))
        order = order[1:] + order[:1]
    return seconds, statistics.median(peaks)


def report(shape: Shape, arguments: argparse.Namespace, loops: dict[str, Loop]) -> None:
    """Measure all rounds and print one line per loop."""
    seconds, peak = measure(loops, arguments)
    ours = loops[OURS]
    flops = step_flops(shape_of(ours.trainer.config, shape.vocabulary), shape.batch)
    print(f"GPT {arguments.model}, {ours.parameters / 1e6:.1f}M parameters, "
          f"{shape.batch} x {shape.length} tokens per step, {arguments.dtype}, "
          f"{torch.get_num_threads()} threads, medians of {arguments.rounds}; "
          f"matmul peak {peak / 1e9:.0f} GFLOP/s")
    for name, values in seconds.items():
        median = statistics.median(values)
        ratio = statistics.median(
            other / own for own, other in zip(seconds[OURS], values, strict=True))
        print(f"{name:12} {shape.batch * shape.length / median:8.0f} tokens/s  "
              f"{1000 * median:8.1f} ms per step  {flops / median / peak:4.0%} of the peak  "
              f"trainer is {ratio:.3f}x as fast")


if __name__ == "__main__":
    main()
