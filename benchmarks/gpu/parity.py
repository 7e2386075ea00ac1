"""The trainer on CUDA against itself on the CPU: loss and gradient norm of every step"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import Run, TrainerFailed, small_model, train

LIMIT = 600
ITERATIONS = 10
# Runs side by side: each spends most of its time starting, on one core.
AT_ONCE = max(2, min(8, len(os.sched_getaffinity(0)) // 2))
NORM_PRINTED = 0.0005  # the log rounds a gradient norm to three decimals
COLUMNS = ["run", "compared with", "steps", "largest relative loss difference",
           "largest relative norm difference", "allowed (loss, norm)", "agrees"]
EXACT, CLOSE = (1e-5, 1e-3), (1e-4, 5e-3)  # (loss, norm) in fp32: same device, across devices
HALF = {"--bf16": (1e-3, 1e-2), "--fp16": (2e-4, 1e-2)}
SCALING = "--initial-loss-scale 4194304 --hysteresis 1"  # the first steps overflow


@dataclass(frozen=True)
class Check:
    """Two runs that must agree.

    Attributes:
        name: of the run.
        reference: the name of the run that it must agree with.
        allowed: relative differences of the loss and of the gradient norm.
    """

    name: str
    reference: str
    allowed: tuple[float, float]


# Each run: (flags, device). All train the same small GPT, with dropout unless they say otherwise:
# the masks are a function of the sample, so every device draws the same ones.
FLASH = "--use-flash-attn --attention-dropout 0"
RUNS: dict[str, tuple[str, str]] = {
    "fp32 on the CPU": ("", "cpu"),
    "fp32": ("", "cuda"),
    "bf16 on the CPU": ("--bf16", "cpu"),
    "bf16": ("--bf16", "cuda"),
    "fp16 on the CPU": (f"--fp16 {SCALING}", "cpu"),
    "fp16": (f"--fp16 {SCALING}", "cuda"),
    "flash attention on the CPU": (FLASH, "cpu"),
    "flash attention": (FLASH, "cuda"),
    "flash attention in bf16": (f"--bf16 {FLASH}", "cuda"),
    "core attention in bf16": ("--bf16 --attention-dropout 0", "cuda"),
    "selective recomputation": ("--recompute-granularity selective", "cuda"),
    "full recomputation, uniform": (
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "cuda"),
    "full recomputation, block": (
        "--recompute-granularity full --recompute-method block --recompute-num-layers 2", "cuda"),
    "no gradient accumulation": ("--micro-batch-size 8", "cuda"),
    "8 micro-batches": ("--micro-batch-size 1", "cuda"),
    "ZeRO and overlap flags, one rank": (
        "--use-distributed-optimizer --overlap-grad-reduce", "cuda"),
    "the zb-h1 schedule, one stage": ("--schedule zb-h1", "cuda"),
    "a second time": ("", "cuda"),
}
CHECKS = [
    Check("fp32", "fp32 on the CPU", CLOSE),
    Check("bf16", "bf16 on the CPU", HALF["--bf16"]),
    Check("fp16", "fp16 on the CPU", HALF["--fp16"]),
    Check("flash attention", "flash attention on the CPU", CLOSE),
    Check("flash attention in bf16", "core attention in bf16", HALF["--bf16"]),
    *(Check(name, "fp32", EXACT) for name in (
        "a second time", "selective recomputation", "full recomputation, uniform",
        "full recomputation, block", "no gradient accumulation", "8 micro-batches",
        "ZeRO and overlap flags, one rank", "the zb-h1 schedule, one stage")),
]


def run(quick: bool) -> Result:
    """Compare the runs, then the resumed ones; `quick` leaves out what repeats another check."""
    result = Result()
    with small_model(ITERATIONS) as model:
        done = all_runs({name: (f"{model} {flags}", device)
                         for name, (flags, device) in RUNS.items()}, result)
        compare(CHECKS, done, result)
        checkpoints(model, done, result)
    result.notes.append("Dropout is on unless attention is fused. A gradient norm is logged with "
                        "three decimals, and its last one does not count as a difference.")
    return result


def all_runs(runs: dict[str, tuple[str, str]], result: Result) -> dict[str, Run]:
    """Run {name: (flags, device)}, several at once; what fails is noted and left out."""
    def one(name: str) -> Run | None:
        flags, device = runs[name]
        return attempt(name, result, lambda: train(flags, device))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: run for name, run in zip(runs, pool.map(one, runs), strict=True) if run}


def attempt(name: str, result: Result, work: Callable[[], Run]) -> Run | None:
    """Return what `work` returns; where the trainer fails, note it and return None."""
    try:
        return work()
    except TrainerFailed as error:
        result.failures.append(f"{name}: {error}")
        return None


def compare(checks: list[Check], done: dict[str, Run], result: Result) -> None:
    """Add the table of comparisons, and a failure for each that does not agree."""
    table = Table("Loss and gradient norm, step by step", COLUMNS)
    result.tables.append(table)
    for check in checks:
        if check.name in done and check.reference in done:
            row(table, check, done[check.name], done[check.reference], result)
        else:
            result.notes.append(f"{check.name} was not compared with {check.reference}: one of "
                                "them failed.")


def row(table: Table, check: Check, run: Run, reference: Run, result: Result) -> None:
    """Compare the steps of `run` with those of the same number in `reference`."""
    losses, norms, wrong = [0.0], [0.0], []
    for number, step in run.steps.items():
        other = reference.steps.get(number)
        if other is None or (step.loss is None) != (other.loss is None):
            wrong.append(f"step {number} was skipped by one of them")
        elif step.loss is not None:
            losses.append(abs(step.loss / other.loss - 1))
            norms.append(max(0.0, abs(step.norm - other.norm) - 2 * NORM_PRINTED) / other.norm)
        if other is not None and step.scale != other.scale:
            wrong.append(f"step {number} has loss scale {step.scale:g}, not {other.scale:g}")
    if len(losses) < 3:
        wrong.append(f"only {len(losses) - 1} steps of both have a loss")
    if not (max(losses) <= check.allowed[0] and max(norms) <= check.allowed[1]):
        wrong.append(f"loss differs by {max(losses):.2e}, norm by {max(norms):.2e}")
    table.add(check.name, check.reference, len(run.steps), max(losses), max(norms),
              f"{check.allowed[0]:g}, {check.allowed[1]:g}", not wrong)
    if wrong:
        result.failures.append(f"{check.name} and {check.reference}: {'; '.join(wrong)}")


def checkpoints(model: str, done: dict[str, Run], result: Result) -> None:
    """Save halfway on one device, resume on the other, and compare with runs to the end."""
    table = Table("Saved halfway on one device, resumed on the other", COLUMNS)
    result.tables.append(table)
    cases = [(kind, flags, start, end) for kind, flags in
             (("fp32", ""), ("bf16", "--bf16"), ("fp16", f"--fp16 {SCALING}"))
             for start, end in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda"))]

    def one(case: tuple[str, str, str, str]) -> Run | None:
        kind, flags, first, then = case
        with tempfile.TemporaryDirectory() as folder:
            there = f"{model} {flags} --save {Path(folder) / 'saved'} --save-interval 1000"
            half = len(next(iter(done.values())).steps) // 2
            return attempt(f"{kind}: {first} to {then}", result, lambda: (
                train(f"{there} --exit-interval {half}", first),
                train(f"{there} --load {Path(folder) / 'saved'}", then))[1])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (kind, flags, first, then), resumed in zip(cases, pool.map(one, cases), strict=True):
            name, reference = f"{kind}: {first} to {then}", kind
            if resumed and reference in done:
                allowed = HALF.get(flags.partition(" ")[0], CLOSE)
                row(table, Check(name, reference, allowed), resumed, done[reference], result)
