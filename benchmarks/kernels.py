"""Kernels that CUDA launched on real GPUs, compared with those that virtual GPUs launch.

    python -m benchmarks.kernels

Reads the record of an H100 (tests/virtualgpu/twins/h100.json) and a public trace of a V100
(kineto_v100.json), runs the same programs on virtual GPUs, and writes results/kernels.md.
"""

from __future__ import annotations

import json
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import mse_loss

from benchmarks.gpu import sides
from benchmarks.gpu.probe import Launch, canonical, observe, short
from benchmarks.gpu.programs import PROGRAMS
from benchmarks.gpu.twins import by_operation
from virtualgpu.core import cards
from virtualgpu.export.kernel_names import kernels_of
from virtualgpu.export.ledger import Ledger
from virtualgpu.export.trace import OperationNote, TraceRecorder

HERE = Path(__file__).resolve().parent
H100 = HERE.parent / "tests" / "virtualgpu" / "twins" / "h100.json"
V100 = HERE / "kineto_v100.json"
PAGE = HERE / "results" / "kernels.md"
# CUDA's gradients of embeddings and losses fill their result and count their rows themselves; on a
# virtual GPU, that is a part of the operation.
INSIDE = {"aten.fill", "aten.arange"}


class Agreement(NamedTuple):
    """Agreement between two lists of launches.

    Attributes:
        order: the same operations launch kernels in the same order, apart from INSIDE.
        calls: operations that both call equally often.
        kernels: operations that both also launch equally many kernels for.
        operations: all operations, by name.
        real: kernels on the real GPU.
        virtual: kernels on the virtual GPU.
    """

    order: bool
    calls: int
    kernels: int
    operations: int
    real: int
    virtual: int


def compare(real: list[Launch], virtual: list[Launch]) -> Agreement:
    """Compare the launches of one step on a real and on a virtual GPU."""
    theirs, ours = by_operation(real), by_operation(virtual)
    both = [(theirs.get(name, (0, 0)), ours.get(name, (0, 0))) for name in {*theirs, *ours}]
    theirs_in_order, ours_in_order = (
        [one.op for one in side if one.op not in INSIDE] for side in (real, virtual))
    return Agreement(
        theirs_in_order == ours_in_order,
        sum(one[0] == other[0] for one, other in both), sum(one == other for one, other in both),
        len(both), *(sum(len(one.kernels) for one in side) for side in (real, virtual)))


def h100() -> dict[str, Agreement]:
    """Compare every program that was recorded on the H100."""
    record = json.loads(H100.read_text())
    found = {}
    for name, seen in record["programs"].items():
        real = [Launch(op, tuple(kernels), ()) for op, kernels, _ in
                (record["launches"][at] for at in seen["launches"])]
        virtual = sides.on_virtual(lambda name=name: observe(PROGRAMS[name], steps=1),
                                   cards.find("h100"))
        found[name] = compare(real, virtual["launches"])
    return found


def v100() -> tuple[list[Launch], list[Launch]]:
    """Return the launches of the V100's trace and of the same step on a virtual V100."""
    real: list[Launch] = []
    for op, kernels in json.loads(V100.read_text())["launches"]:
        real.append(Launch(canonical(op.replace("::", ".")), tuple(kernels), ()))
    return real, sides.on_virtual(two_layers, cards.find("v100"))


def two_layers() -> list[Launch]:
    """Return the launches of the V100's training step, whose linear layers call the operations that
    torch's called in 2021. The trace has no shapes: the hidden size of 5 is assumed."""
    first, one, second, other = parameters = [
        torch.nn.Parameter(torch.zeros(size, device="cuda")) for size in ((5, 5), 5, (1, 5), 1)]
    optimizer = torch.optim.SGD(parameters, lr=1e-3, foreach=False)
    batch = torch.randn(32, 1, 5), torch.randn(32, 1, 1)

    def step() -> None:
        x, y = (tensor.to("cuda") for tensor in batch)
        hidden = (x @ first.t()).add_(one).clamp_min(0)
        loss = mse_loss((hidden @ second.t()).add_(other), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()

    step()
    gpu = Ledger.current.gpu
    recorder = TraceRecorder(gpu)
    recorder.start()
    step()
    recorder.stop()
    return [Launch(canonical(note.plan.name),
                   tuple(kernel.name for kernel in kernels_of(gpu.card, note.key, note.plan)), ())
            for note in recorder.notes if isinstance(note, OperationNote) and note.plan.kernels]


def page(programs: dict[str, Agreement], real: list[Launch], virtual: list[Launch]) -> str:
    """Return the page of results."""
    record, trace = (json.loads(path.read_text()) for path in (H100, V100))
    total = [sum(column) for column in zip(*programs.values(), strict=True)]
    seen, small = record["recorded on"], compare(real, virtual)
    rows = [(*row[:1], "yes" if row[1] else "no", *row[2:]) for row in (
        (name, *found) for name, found in programs.items())]
    pairs = ((one or other, *(", ".join(map(short, side.kernels)) if side else "-"
                              for side in (one, other)))
             for one, other in zip_longest(real, virtual))
    return "\n".join((
        "# Kernels that CUDA launches", "",
        "Generated by `python -m benchmarks.kernels`: one training step on a real GPU, and the "
        "same step on a virtual one.", "", f"## {seen['gpu']}, torch {seen['torch']}", "",
        f"All {len(programs)} recorded programs. The model was corrected after this comparison had "
        "been seen. The order ignores fill and arange: CUDA's gradients of embeddings and losses "
        "call them, and on a virtual GPU they are a part of the gradient.", "",
        *table(("program", "same operations in the same order", "calls agree", "kernels agree, too",
                "operations", "kernels on CUDA", "virtual kernels"),
               [*rows, ("all", f"{total[0]} of {len(programs)}", *total[1:])]), "",
        f"## {trace['gpu']}, a public trace", "",
        f"{trace['about']}. Source: <{trace['source']}>. All of its launches are below. "
        f"{'The order of operations agrees' if small.order else 'The order differs'}; calls agree "
        f"for {small.calls} of {small.operations} operations, and kernels, too, for "
        f"{small.kernels}. CUDA launched {small.real} kernels and copies, the virtual GPU "
        f"{small.virtual}. The gradient of the loss was corrected after it had been seen.", "",
        *table(("operation", "on CUDA", "on the virtual GPU"),
               [(launch.op, *names) for launch, *names in pairs]), ""))


def table(heads: tuple[str, ...], rows: list[tuple]) -> list[str]:
    """Return a Markdown table's lines."""
    return [f"| {' | '.join(map(str, row))} |" for row in (heads, ("---",) * len(heads), *rows)]


def main() -> None:
    """Compare everything, and write the page."""
    PAGE.write_text(page(h100(), *v100()))
    print(PAGE)


if __name__ == "__main__":
    main()
