"""The same programs on the GPU and on its virtual twin

Every program in programs.py runs once on CUDA and once on a virtual GPU of the same model, each
time in its own process. The part compares the operations that launch kernels, memory at marked
points, and the time per step; then what a program can see of CUDA, and the dtype of every
operation's result under autocast.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.gpu import attention_choice, dtypes, facts, sides
from benchmarks.gpu.probe import Launch, observe
from benchmarks.gpu.programs import PROGRAMS
from benchmarks.gpu.recorded import record
from benchmarks.gpu.result import Result, Table
from virtualgpu.core.card import Card

QUICK = ("GPT, bf16 autocast", "MLP, AdamW(foreach=True)", "attention, bf16, causal")
FP8 = "_scaled_mm"  # the program with fp8 arithmetic
MIB = 2**20
RECORD = "GPU_RECORD"  # environment variable: output file for what was observed on the real GPU
RAW = "GPU_RAW"  # environment variable: output file for everything observed on both sides
DTYPES = "Dtypes of results, by autocast and dtype of the operands"
CHOICES = "Kernels that scaled_dot_product_attention chooses"
SEEN = {"What a program can see of CUDA": facts.evaluate, DTYPES: dtypes.evaluate,
        CHOICES: attention_choice.evaluate}


def run(quick: bool) -> Result:
    """Run the programs on both sides, and compare.

    Args:
        quick: run only the programs in QUICK.
    """
    product = sides.product()
    card = sides.model_of(product)
    programs = {name: build for name, build in PROGRAMS.items() if not quick or name in QUICK}
    modeled = sides.Running(lambda: [sides.on_virtual(one, card)
                                     for one in SEEN.values()])
    result = Result(notes=[
        f"{product}, compared with virtual {card.name}; torch {torch.__version__}.",
        "Rows that agree are counted in the titles and left out of the tables of differences."])
    observations = compare(programs, card, result)
    seen = dict(zip(SEEN, zip(map(sides.on_cuda, SEEN.values()), modeled.result(300), strict=True),
                    strict=True))
    result.tables += [seconds_table(observations), memory_table(observations),
                      launch_table(observations),
                      *(difference_table(title, both) for title, both in seen.items())]
    if RECORD in os.environ:
        record(Path(os.environ[RECORD]),
               {name: pair[0] for name, pair in observations.items()},
               seen[DTYPES][0], seen[CHOICES][0])
    if RAW in os.environ:
        Path(os.environ[RAW]).write_text(json.dumps(
            {"programs": observations, "seen": seen}, default=str))
    return result


def compare(programs: dict[str, Callable], card: Card, result: Result
            ) -> dict[str, tuple[dict, dict]]:
    """Observe programs on both sides at the same time, and return what ran on both.

    The fp8 program is no failure if both sides refuse it and the GPU model has no fp8 arithmetic.

    Args:
        programs: builders by name.
        card: the GPU model.
        result: receives a failure for each program that did not run, and notes.
    """
    virtual = sides.Running(lambda: observed(
        programs, lambda function: sides.on_virtual(function, card)))
    real = observed(programs, sides.on_cuda)
    modeled = virtual.result(20 * len(programs))
    both = {}
    for name in programs:
        wrong = {side: seen[name] for side, seen in (("CUDA", real), ("the virtual GPU", modeled))
                 if isinstance(seen[name], str)}
        if not wrong:
            both[name] = real[name], modeled[name]
        elif name == FP8 and "fp8" not in card.tflops and len(wrong) == 2 and (
                all(map(sides.refused, wrong.values()))):
            result.notes.append(f"{name}: refused by both sides: {wrong['CUDA']}")
        else:
            result.failures += [f"{name} did not run on {side}: {error}"
                                for side, error in wrong.items()]
    if not both:
        result.failures.append("no program ran on both sides")
    return both


def observed(programs: dict[str, Callable], start: Callable[[Callable], object]
             ) -> dict[str, object]:
    """Return what was observed of each program, or its error message.

    Args:
        programs: builders by name.
        start: runs a function on one side.
    """
    found: dict[str, object] = {}
    for name, build in programs.items():
        try:
            found[name] = start(lambda build=build: observe(build))
        except sides.Failed as error:
            found[name] = str(error)
    return found


def seconds_table(observations: dict[str, tuple[dict, dict]]) -> Table:
    """Return a table of the time per step."""
    made = Table("Time per step", ["program", "measured, ms", "predicted, ms", "error"])
    for name, (real, virtual) in observations.items():
        made.add(name, round(1e3 * real["seconds"], 3), round(1e3 * virtual["seconds"], 3),
                 f"{virtual['seconds'] / real['seconds'] - 1:+.1%}")
    return made


def memory_table(observations: dict[str, tuple[dict, dict]]) -> Table:
    """Return a table of memory at the marked points of the second step."""
    made = Table("", ["program", "point", "allocated, MiB", "error, bytes", "peak, MiB",
                      "error, bytes of the peak", "peak reserved, MiB", "error, MiB reserved"])
    equal = total = 0
    for name, (real, virtual) in observations.items():
        for (point, now), (_, guess) in zip(real["marks"], virtual["marks"], strict=True):
            total += 1
            equal += now[0] == guess[0]
            if point.startswith("first"):
                continue
            made.add(name, point, round(now[0] / MIB, 2), guess[0] - now[0],
                     round(now[1] / MIB, 2), guess[1] - now[1], round(now[3] / MIB),
                     round((guess[3] - now[3]) / MIB))
    made.title = f"Memory (allocated bytes are equal at {equal} of {total} points)"
    return made


def by_operation(launches: list[Launch]) -> dict[str, tuple[int, int]]:
    """Return the number of calls and of kernels of each operation."""
    calls = Counter(one.op for one in launches)
    kernels: Counter[str] = Counter()
    for one in launches:
        kernels[one.op] += len(one.kernels)
    return {op: (calls[op], kernels[op]) for op in calls}


def launch_table(observations: dict[str, tuple[dict, dict]]) -> Table:
    """Return a table of the operations whose calls or kernels differ in one step."""
    made = Table("", ["program", "operation", "calls on CUDA", "virtual calls", "kernels on CUDA",
                      "virtual kernels", "CUDA's kernels"])
    equal = total = 0
    for name, (real, virtual) in observations.items():
        ours, theirs = by_operation(virtual["launches"]), by_operation(real["launches"])
        for op in sorted({*ours, *theirs}):
            calls, kernels = theirs.get(op, (0, 0))
            guess, more = ours.get(op, (0, 0))
            total += 1
            if (calls, kernels) == (guess, more):
                equal += 1
                continue
            names = sorted({kernel for one in real["launches"] if one.op == op
                            for kernel in one.kernels})
            made.add(name, op, calls, guess, kernels, more, ", ".join(names)[:120])
    made.title = f"Kernels of one step ({equal} of {total} operations agree)"
    return made


def difference_table(title: str, found: tuple[dict, dict]) -> Table:
    """Return a table of the facts that differ.

    Args:
        title: the table's title.
        found: facts by name, on CUDA and on the virtual GPU.
    """
    real, virtual = found
    names = list(real)
    equal = sum(real[name] == virtual.get(name) for name in names)
    made = Table(f"{title} ({equal} of {len(names)} agree)", ["what", "CUDA", "virtual GPU"])
    for name in names:
        one, other = real[name], virtual.get(name, "(nothing)")
        if one == other:
            continue
        if isinstance(one, list) and isinstance(other, list):
            one, other = (", ".join(str(item) for item in side if item not in others)
                          or "(nothing more)" for side, others in ((one, other), (other, one)))
        made.add(name, str(one)[:300], str(other)[:300])
    return made
