"""One process against a plain PyTorch loop and the Hugging Face Trainer, on the same model.

python benchmarks/train_speed.py [--model 10M|124M] [--dtype fp32|bf16] [--rounds 5] [--steps 3]

Loops take turns in one process; medians over the rounds. Dropout 0, both of the machine's cores.
Also the share of the machine's own matmul peak (2048^3 in the run's dtype, measured in each round).
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import statistics
import time

import torch
import torch.distributed as dist
from plain_gpt import SHAPES, PlainLoop, Shape

from minimegatron.arguments import parse_arguments
from minimegatron.batches import Batches
from minimegatron.formulas import step_flops
from minimegatron.initialize import initialize
from minimegatron.throughput import shape_of
from minimegatron.training import Trainer

PEAK = 2048  # edge of the matrices whose product is the machine's peak


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
        return sum(p.numel() for p in self.trainer.optimizer.gradients.parameters)

    def step(self) -> None:
        self.trainer.step(self.batches.step(0, 0))


def timed(loop: object, steps: int) -> float:
    """Seconds of one step; a loop that knows its own time says so."""
    start = time.perf_counter()
    own = [loop.step() for _ in range(steps)]
    whole = (time.perf_counter() - start) / steps
    return whole if own[0] is None else statistics.mean(own)


def matmul_flops(dtype: torch.dtype) -> float:
    """FLOP/s of a large matrix product, the quickest of three."""
    a, b = torch.randn(PEAK, PEAK).to(dtype), torch.randn(PEAK, PEAK).to(dtype)
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * PEAK**3 / best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=SHAPES, default="10M")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    shape, bf16 = SHAPES[arguments.model], arguments.dtype == "bf16"
    texts = torch.randint(shape.vocabulary, (shape.batch, shape.length + 1))
    loops = {"trainer": OurLoop(shape, texts, bf16), "plain loop": PlainLoop(shape, texts, bf16)}
    assert loops["plain loop"].parameters == loops["trainer"].parameters, "not the same model"
    if importlib.util.find_spec("transformers"):
        from hugging_face import HuggingFaceLoop

        loops["HF Trainer"] = HuggingFaceLoop(shape, texts, bf16)
    else:
        print("no HF Trainer: pip install transformers accelerate")
    report(shape, arguments, loops)
    dist.destroy_process_group()


def report(shape: Shape, arguments: argparse.Namespace, loops: dict) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    peaks = []
    dtype = torch.bfloat16 if arguments.dtype == "bf16" else torch.float32
    for round_number in range(arguments.rounds + 1):
        peak = matmul_flops(dtype)
        measured = {name: timed(loop, arguments.steps) for name, loop in loops.items()}
        if round_number:  # the first round warms up
            peaks.append(peak)
            for name, value in measured.items():
                seconds[name].append(value)
    config = loops["trainer"].trainer.config
    flops = step_flops(shape_of(config, shape.vocabulary), shape.batch)
    peak = statistics.median(peaks)
    print(f"GPT {arguments.model}, {loops['trainer'].parameters / 1e6:.1f}M parameters, "
          f"{shape.batch} x {shape.length} tokens a step, {arguments.dtype}, "
          f"{torch.get_num_threads()} threads, medians of {arguments.rounds}; "
          f"matmul peak {peak / 1e9:.0f} GFLOP/s")
    for name, values in seconds.items():
        median = statistics.median(values)
        ratio = statistics.median(
            other / ours for ours, other in zip(seconds["trainer"], values, strict=True))
        print(f"{name:12} {shape.batch * shape.length / median:8.0f} tokens/s  "
              f"{1000 * median:8.1f} ms a step  {flops / median / peak:4.0%} of the peak  "
              f"trainer is {ratio:.3f}x as fast")


if __name__ == "__main__":
    main()
