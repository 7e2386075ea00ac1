"""Train a small GPT in bf16 and with every FP8 recipe, and compare the final losses.

    python benchmarks/fp8_training.py [--runs FILE] > benchmarks/results/fp8_training.md

The trainer's own step trains 2 layers of width 128 on bytes of the standard library's sources, on
one CPU core, for 500 steps and with three seeds. The final loss is the mean of the last 50 steps;
all runs of a seed see the same samples. Together the runs take about 15 minutes; with --runs, a
repeated call continues after the last one that was finished.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from minimegatron.arguments import parse_arguments
from minimegatron.context import Context
from minimegatron.data.batches import Batches
from minimegatron.device.device import CpuDevice
from minimegatron.grid import make_grid
from minimegatron.training import Trainer

ABOUT = """# FP8 training, recipe by recipe

Made by `python benchmarks/fp8_training.py`: 500 steps of a GPT with 2 layers of width 128 on bytes
of the standard library's sources, in real FP8 arithmetic on a CPU. The loss is the mean of the last
50 steps. All runs of a seed start from the same parameters and see the same samples.

""".splitlines()
STEPS, LAST, SEEDS, VOCABULARY, SEQUENCE = 500, 50, (1, 2, 3), 256, 64
SHOWN = (100, 200, 300, 400, 500)  # steps at which a loss that goes wrong is reported
MODEL = (f"--num-layers 2 --hidden-size 128 --num-attention-heads 2 --seq-length {SEQUENCE} "
         f"--max-position-embeddings {SEQUENCE} --micro-batch-size 4 --global-batch-size 4 "
         f"--lr 1e-3 --min-lr 1e-4 --lr-warmup-iters 20 --train-iters {STEPS} --hidden-dropout 0 "
         "--attention-dropout 0 --bf16 --data-path x --vocab-file x --merge-file x ")
HISTORY = "--fp8-amax-history-len 16 --fp8-amax-compute-algo max"
RECIPES = {
    "bf16": "",
    "delayed": f"--fp8-format hybrid {HISTORY}",
    "tensorwise": "--fp8-format hybrid --fp8-recipe tensorwise",
    "blockwise": "--fp8-format e4m3 --fp8-recipe blockwise",
    "mxfp8": "--fp8-format e4m3 --fp8-recipe mxfp8",
}


def stale(scale: float) -> Callable[[Trainer], None]:
    """Return a function that keeps the gradients' scale, whatever their amax."""
    def keep(trainer: Trainer) -> None:
        history = trainer.model.fp8.histories["bwd"]
        history.scale.fill_(scale)
        history.scale_inv.fill_(1 / scale)
    return keep


# Delayed scaling gone wrong: flags, and what happens before every step. The learning rate does not
# decay, so that what goes wrong is not slowed down.
FAST = "--lr 2e-3 --min-lr 2e-3 "
BAD: dict[str, tuple[str, Callable[[Trainer], None] | None]] = {
    "bf16": (FAST, None),
    "delayed, hybrid": (f"{FAST} --fp8-format hybrid {HISTORY}", None),
    "E4M3, margin -4: amax is 16 times too large": (
        f"{FAST} --fp8-format e4m3 {HISTORY} --fp8-margin -4", None),
    "E4M3, gradients' scale stuck at 2^30": (f"{FAST} --fp8-format e4m3", stale(2.0**30)),
}


def samples(seed: int) -> list[dict]:
    """Return windows of the standard library's sources, as bytes."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))[:60]
    text = np.frombuffer(b"".join(file.read_bytes() for file in files), np.uint8)
    starts = np.random.default_rng(seed).integers(len(text) - SEQUENCE - 1, size=4 * STEPS)
    return [{"text": text[start:start + SEQUENCE + 1].astype(np.int64)} for start in starts]


def losses(flags: str, seed: int, steps: int = STEPS,
           before_step: Callable[[Trainer], None] | None = None) -> list[float]:
    """Train, and return the loss of every step.

    Args:
        flags: of FP8.
        seed: of the initial parameters and the samples.
        steps: optimizer steps to take.
        before_step: called with the trainer before each of them.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    config = parse_arguments(shlex.split(f"{MODEL} --seed {seed} {flags}"), {})
    ctx = Context(config, make_grid({}, "gloo"), CpuDevice())
    trainer, found = Trainer(ctx, VOCABULARY, started=0.0), []
    source = Batches(ctx, samples(seed), eod=-1, name="training")
    for step in range(steps):
        if before_step is not None:
            before_step(trainer)
        loss, _ = trainer.step(source.step(step * config.global_batch_size, step))
        found.append(loss.item())
    return found


def window(found: list[float], end: int) -> float:
    """Return the mean loss of the last steps before step `end`."""
    return sum(found[end - LAST:end]) / LAST


def final(found: list[float]) -> float:
    """Return the mean loss of the last steps."""
    return window(found, STEPS)


def report(good: dict[str, list[list[float]]], bad: dict[str, list[float]]) -> str:
    """Return the results as Markdown.

    Args:
        good: the losses of all seeds, by recipe.
        bad: the losses of the first seed, by what went wrong.
    """
    lines = [*ABOUT, "| recipe | " + " | ".join(f"seed {seed}" for seed in SEEDS)
             + " | largest difference from bf16 |", "|---|" + "---:|" * (len(SEEDS) + 1)]
    base = list(map(final, good["bf16"]))
    for name, runs in good.items():
        finals = list(map(final, runs))
        worst = max((loss / bf16 - 1 for loss, bf16 in zip(finals, base, strict=True)), key=abs)
        lines.append(f"| {name} | " + " | ".join(f"{loss:.4f}" for loss in finals)
                     + " | " + ("" if name == "bf16" else f"{worst:+.2%}") + " |")
    lines += ["", f"Scales that go wrong, with seed {SEEDS[0]} and twice the learning rate, 2e-3,",
              "which does not decay. There, delayed scaling costs something even if its scales are",
              f"right, but its loss falls. Each loss is the mean of the {LAST} steps before:", "",
              "| training | " + " | ".join(f"step {end}" for end in SHOWN) + " | against bf16 |",
              "|---|" + "---:|" * (len(SHOWN) + 1)]
    for name, run in bad.items():
        means = [window(run, end) for end in SHOWN]
        gap = "" if name == "bf16" else f"{means[-1] / window(bad['bf16'], STEPS) - 1:+.1%}"
        lines.append(f"| {name} | " + " | ".join(f"{mean:.3f}" for mean in means) + f" | {gap} |")
    return "\n".join(lines) + "\n"


def finish(runs: Path) -> dict[tuple[str, int], list[float]]:
    """Train what a file of runs lacks, add it there, and return the losses by run and seed.

    Args:
        runs: JSON lines of name, seed, and losses; need not exist.
    """
    done = {(name, seed): found for name, seed, found in
            map(json.loads, runs.read_text().splitlines() if runs.exists() else [])}
    wanted = [(name, flags, None, seed) for name, flags in RECIPES.items() for seed in SEEDS]
    wanted += [(f"{name} (fast)", *what, SEEDS[0]) for name, what in BAD.items()]
    for name, flags, hook, seed in wanted:
        if (name, seed) not in done:
            found = done[name, seed] = losses(flags, seed, before_step=hook)
            with runs.open("a") as file:
                print(json.dumps([name, seed, found]), file=file)
    return done


def main() -> None:
    """Train everything, and print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path(os.devnull),
                        help="a file for finished runs, which a repeated call leaves out")
    runs = parser.parse_args().runs
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(sys.stderr):  # the trainer's own lines
        done = finish(runs)
    print(report({name: [done[name, seed] for seed in SEEDS] for name in RECIPES},
                 {name: done[f"{name} (fast)", SEEDS[0]] for name in BAD}), end="")


if __name__ == "__main__":
    main()
