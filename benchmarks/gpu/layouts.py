"""Every parallel layout that this machine's GPUs allow, against one rank on one GPU"""

from __future__ import annotations

import torch

from benchmarks.gpu.parity import CLOSE, COLUMNS, Check, attempt, row
from benchmarks.gpu.result import Result, Table
from benchmarks.gpu.trainer import TrainerFailed, small_model, train

LIMIT = 600
ITERATIONS = 6
TP, PP, ZERO = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size",
                "--use-distributed-optimizer")
# The vocabulary is padded to a multiple of this times the tensor-parallel size, and the weights
# start from values that depend on the padded size: so all layouts must pad it to the same.
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


def run(quick: bool) -> Result:
    """Run each layout with NCCL on GPUs of its own; with one GPU, two ranks share it over gloo."""
    result, count = Result(), torch.cuda.device_count()
    for needed in sorted({ranks for ranks, _ in LAYOUTS.values() if ranks > count}):
        names = [name for name, (ranks, _) in LAYOUTS.items() if ranks == needed]
        result.notes.append(f"Not run with NCCL, because it needs {needed} GPUs and this machine "
                            f"has {count}: {'; '.join(names)}.")
    if count == 1:
        result.notes.append("Two ranks share GPU 0 where gloo can carry their tensors: it has no "
                            "point-to-point calls for GPU tensors, so no pipeline ran.")
    with small_model(ITERATIONS) as model:
        model = f"{model} --micro-batch-size 2"
        reference = attempt("one rank", result, lambda: train(f"{model} {padding('')}"))
        if reference is None:
            return result
        table = Table("Loss and gradient norm, step by step" if count > 1 else
                      "Two ranks that share GPU 0 and talk through gloo", COLUMNS)
        result.tables.append(table)
        for name, (ranks, flags) in LAYOUTS.items():
            shared = count == 1 and ranks == 2 and PP not in flags
            if ranks > count and not shared:
                continue
            backend = "--distributed-backend gloo" if shared else ""
            try:
                layout = train(f"{model} {padding(flags)} {flags} {backend}", ranks=ranks,
                               shared_gpu=shared)
            except TrainerFailed as error:
                result.failures.append(f"{name}: {error}")
                continue
            row(table, Check(name, "one rank", CLOSE), layout, reference, result)
            result.save_so_far()
    return result


def padding(flags: str) -> str:
    """Return the flag that pads the vocabulary of this layout as that of all others."""
    return f"--make-vocab-size-divisible-by {PADDING[2 if TP in flags else 1]}"
