"""Every parallel layout that fits this machine's GPUs, compared with one rank on one GPU"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.gpu.parity import CLOSE, COLUMNS, Check, attempt, row
from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import small_model, train

LIMIT = 600
ITERATIONS = 6
TP, PP, ZERO = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                "--use-distributed-optimizer")
# The trainer pads the vocabulary to a multiple of this times the tensor-parallel size, and the
# initial weights depend on the padded size. So every layout must pad to the same size.
PADDING = {1: 384, 2: 192}
LAYOUTS: dict[str, tuple[int, str]] = {  # name: (ranks, flags)
    "dp 2": (2, ""),
    "dp 2, overlapped": (2, "--overlap-grad-reduce --ddp-bucket-size 500000"),
    "dp 2, distributed optimizer": (2, f"{ZERO} --ddp-bucket-size 500000"),
    "dp 2, distributed optimizer, overlapped": (
        2, f"{ZERO} --overlap-grad-reduce --ddp-bucket-size 500000"),
    "tp 2": (2, f"{TP} 2"),
    "tp 2, sequence parallel": (2, f"{TP} 2 --sequence-parallel"),
    "tp 2, full recomputation, distributed activations": (
        2, f"{TP} 2 --recompute-granularity full --recompute-method uniform "
        "--distribute-saved-activations"),
    "pp 2, gpipe": (2, f"{PP} 2 --schedule gpipe"),
    "pp 2, 1f1b": (2, f"{PP} 2 --schedule 1f1b"),
    "pp 2, zb-h1": (2, f"{PP} 2 --schedule zb-h1"),
    "pp 2, interleaved": (
        2, f"{PP} 2 --schedule interleaved --num-layers-per-virtual-pipeline-stage 1"),
    "pp 4, 1f1b": (4, f"{PP} 4"),
    "tp 2, pp 2": (4, f"{TP} 2 {PP} 2 --sequence-parallel"),
    "dp 2, pp 2, distributed optimizer": (4, f"{PP} 2 {ZERO}"),
    "dp 2, tp 2, distributed optimizer, overlapped": (
        4, f"{TP} 2 --sequence-parallel {ZERO} --overlap-grad-reduce --ddp-bucket-size 500000"),
    "dp 2, tp 2, pp 2, zb-h1": (8, f"{TP} 2 {PP} 2 --schedule zb-h1 {ZERO}"),
}
# --quick keeps one layout for each kind of parallelism, and one that combines them.
QUICK = ("dp 2, overlapped", "tp 2, sequence parallel", "pp 2, 1f1b", "dp 2, tp 2, pp 2, zb-h1")


def run(quick: bool) -> Result:
    """Train each layout over NCCL with one GPU per rank.

    With a single GPU, two ranks share it over gloo.

    Args:
        quick: train only the layouts in QUICK.
    """
    count = torch.cuda.device_count()
    layouts = {name: layout for name, layout in LAYOUTS.items() if not quick or name in QUICK}
    result = Result(notes=left_out(layouts, count))
    with small_model(ITERATIONS) as model:
        model = f"{model} --micro-batch-size 2"
        reference = attempt("one rank", result, partial(train, f"{model} {padding('')}"))
        if reference is None:
            return result
        table = Table("Loss and gradient norm, step by step" if count > 1 else
                      "Two ranks that share GPU 0 and communicate over gloo", COLUMNS)
        result.tables.append(table)
        for name, (ranks, flags) in layouts.items():
            shared = count == 1 and ranks == 2 and PP not in flags
            if ranks > count and not shared:
                continue
            backend = "--distributed-backend gloo" if shared else ""
            layout = attempt(name, result, partial(
                train, f"{model} {padding(flags)} {flags} {backend}", ranks=ranks,
                shared_gpu=shared))
            if layout is not None:
                check = Check(name, "one rank", CLOSE, last=ITERATIONS)
                row(table, check, layout, reference, result)
            result.save_so_far()
    return result


def left_out(layouts: dict[str, tuple[int, str]], count: int) -> list[str]:
    """Return the notes that name the layouts that need more than `count` GPUs."""
    notes = []
    for needed in sorted({ranks for ranks, _ in layouts.values() if ranks > count}):
        names = [name for name, (ranks, _) in layouts.items() if ranks == needed]
        notes.append(f"Not run over NCCL, because this takes {needed} GPUs and the machine has "
                     f"{count}: {'; '.join(names)}.")
    if count == 1:
        notes.append("Two ranks share GPU 0 over gloo. Gloo has no point-to-point communication "
                     "for GPU tensors, so no pipeline ran.")
    return notes


def padding(flags: str) -> str:
    """Return the flag that makes a layout with these flags pad the vocabulary like all others."""
    return f"--make-vocab-size-divisible-by {PADDING[2 if TP in flags else 1]}"
