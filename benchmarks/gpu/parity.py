"""Loss and gradient norm of every training step on CUDA, compared with the CPU"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import Run, TrainerFailed, small_model, train
from job_monitor.logs import Iteration

LIMIT = 600
ITERATIONS = 10
# Concurrent runs. Each spends most of its time starting up, on one core.
AT_ONCE = max(2, min(8, len(os.sched_getaffinity(0)) // 2))
NORM_ROUNDING = 0.0005  # the log shows gradient norms with three decimals
COLUMNS = ["run", "compared with", "steps", "largest relative loss difference",
           "largest relative norm difference", "allowed (loss, norm)", "agrees"]
# Allowed relative differences (loss, norm): in fp32 on the same device, and across devices.
EXACT, CLOSE = (1e-5, 1e-3), (1e-4, 5e-3)
HALF = {"--bf16": (1e-3, 1e-2), "--fp16": (2e-4, 1e-2)}
SCALING = "--initial-loss-scale 4194304 --hysteresis 1"  # gradients overflow in the first steps
QUICK = ("fp32", "bf16", "fp16")  # the checks that --quick keeps


@dataclass(frozen=True)
class Check:
    """Two runs whose steps must agree.

    Attributes:
        name: run to check.
        reference: run to compare it with.
        allowed: largest relative differences of the loss and of the gradient norm.
        first: number of the first step that both must have logged.
        last: number of the last step that both must have logged.
    """

    name: str
    reference: str
    allowed: tuple[float, float]
    first: int = 1
    last: int = ITERATIONS


# Name: (flags, device). All runs train the same small GPT, with dropout unless their flags turn it
# off. Dropout masks are a function of the sample, so every device draws the same ones.
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
    """Compare whole runs, then runs that resume from a checkpoint.

    Args:
        quick: compare only CUDA with the CPU, once per precision, and one resumed run.
    """
    result = Result()
    checks = [check for check in CHECKS if not quick or check.name in QUICK]
    needed = {name for check in checks for name in (check.name, check.reference)}
    with small_model(ITERATIONS) as model:
        done = all_runs({name: (f"{model} {flags}", device)
                         for name, (flags, device) in RUNS.items() if name in needed}, result)
        compare(checks, done, result)
        result.save_so_far()
        checkpoints(model, done, result, quick)
    result.notes.append("Dropout is on, except in the runs that compare fused attention. The log "
                        "rounds gradient norms to three decimals; differences within that rounding "
                        "are not counted.")
    return result


def all_runs(runs: dict[str, tuple[str, str]], result: Result) -> dict[str, Run]:
    """Train {name: (flags, device)}, several runs at a time; return those that succeeded."""
    def one(name: str) -> Run | None:
        flags, device = runs[name]
        return attempt(name, result, lambda: train(flags, device))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: run for name, run in zip(runs, pool.map(one, runs), strict=True) if run}


def attempt(name: str, result: Result, work: Callable[[], Run]) -> Run | None:
    """Return what `work` returns, or record a failure and return None if the trainer failed."""
    try:
        return work()
    except TrainerFailed as error:
        result.failures.append(f"{name}: {error}")
        return None


def compare(checks: list[Check], done: dict[str, Run], result: Result) -> None:
    """Add a table of the checks, and a failure for each one that does not hold.

    Args:
        checks: what to compare.
        done: finished runs by name.
        result: receives the table and the failures.
    """
    table = Table("Loss and gradient norm, step by step", COLUMNS)
    result.tables.append(table)
    for check in checks:
        judge(table, check, done, result)


def judge(table: Table, check: Check, done: dict[str, Run], result: Result) -> None:
    """Add the row of one check, or a failure if one of its runs is missing."""
    missing = [name for name in (check.name, check.reference) if name not in done]
    if missing:
        result.failures.append(f"{check.name} was not compared with {check.reference}: "
                               f"{' and '.join(missing)} did not finish")
    else:
        row(table, check, done[check.name], done[check.reference], result)


def row(table: Table, check: Check, run: Run, reference: Run, result: Result) -> None:
    """Compare two runs step by step, and add a row; any disagreement is a failure.

    Args:
        table: receives the row.
        check: names, allowed differences, and steps.
        run: the run to check.
        reference: the run to compare it with.
        result: receives the failure.
    """
    wrong = [problem for name, one in ((check.name, run), (check.reference, reference))
             for problem in gaps(name, one, check)]
    losses, norms = [0.0], [0.0]
    for number in sorted(run.steps.keys() & reference.steps.keys()):
        step, other = run.steps[number], reference.steps[number]
        problem = mismatch(step, other)
        if problem is not None:
            wrong.append(f"step {number}: {problem}")
        elif not step.skipped:
            losses.append(relative(step.loss, other.loss))
            norms.append(relative(step.grad_norm, other.grad_norm, 2 * NORM_ROUNDING))
    if len(losses) < 3:
        wrong.append(f"only {len(losses) - 1} steps could be compared")
    if max(losses) > check.allowed[0] or max(norms) > check.allowed[1]:
        wrong.append(f"the loss differs by {max(losses):.2e}, the norm by {max(norms):.2e}")
    table.add(check.name, check.reference, len(run.steps), max(losses), max(norms),
              f"{check.allowed[0]:g}, {check.allowed[1]:g}", not wrong)
    if wrong:
        result.failures.append(f"{check.name}, compared with {check.reference}: "
                               f"{'; '.join(wrong)}")


def gaps(name: str, run: Run, check: Check) -> Iterator[str]:
    """Yield what is wrong with the step numbers that a run logged.

    A resumed run logs no step before `check.first`; its reference logs all of them.
    """
    missing = [number for number in range(check.first, check.last + 1) if number not in run.steps]
    if missing:
        yield f"{name} did not log step(s) {', '.join(map(str, missing))}"
    if name == check.name and run.steps and min(run.steps) < check.first:
        yield f"{name} began with step {min(run.steps)} instead of {check.first}"


def mismatch(step: Iteration, other: Iteration) -> str | None:
    """Return why the figures of two steps cannot agree, or None if they can be compared."""
    if step.loss_scale != other.loss_scale:
        return f"loss scale {step.loss_scale} instead of {other.loss_scale}"
    if step.skipped != other.skipped:
        return "only one of the runs skipped it"
    if step.skipped:
        return None
    figures = {"loss": (step.loss, other.loss), "gradient norm": (step.grad_norm, other.grad_norm)}
    for name, pair in figures.items():
        if not all(value is not None and math.isfinite(value) for value in pair):
            return f"{name} {pair[0]}, compared with {pair[1]}: not a finite number"
    return None


def relative(value: float, reference: float, rounding: float = 0.0) -> float:
    """Return the relative difference of two numbers, less what rounding can explain."""
    difference = max(0.0, abs(value - reference) - rounding)
    if difference == 0:
        return 0.0
    return difference / abs(reference) if reference else math.inf


def checkpoints(model: str, done: dict[str, Run], result: Result, quick: bool = False) -> None:
    """Save halfway on one device, resume on another, and compare with uninterrupted runs.

    Args:
        model: flags of the model.
        done: finished runs by name; "fp32", "bf16", and "fp16" are the references.
        result: receives the table and the failures.
        quick: only save on CUDA in fp32 and resume on the CPU.
    """
    table = Table("Saved halfway on one device, resumed on the other", COLUMNS)
    result.tables.append(table)
    half = ITERATIONS // 2
    cases = [(kind, flags, first, then) for kind, flags in
             (("fp32", ""), ("bf16", "--bf16"), ("fp16", f"--fp16 {SCALING}"))
             for first, then in (("cuda", "cpu"), ("cpu", "cuda"), ("cuda", "cuda"))]
    cases = cases[:1] if quick else cases

    def one(case: tuple[str, str, str, str]) -> Run | None:
        kind, flags, first, then = case
        with tempfile.TemporaryDirectory() as folder:
            saving = f"{model} {flags} --save {Path(folder) / 'saved'} --save-interval 1000"
            return attempt(f"{kind}: {first} to {then}", result, lambda: (
                train(f"{saving} --exit-interval {half}", first),
                train(f"{saving} --load {Path(folder) / 'saved'}", then))[1])

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for (kind, flags, first, then), resumed in zip(cases, pool.map(one, cases), strict=True):
            name = f"{kind}: {first} to {then}"
            check = Check(name, kind, HALF.get(flags.partition(" ")[0], CLOSE), first=half + 1)
            judge(table, check, {**done, **({name: resumed} if resumed else {})}, result)
            result.save_so_far()
