"""vTrain's measured iterations: Megatron-DeepSpeed on one node of 8 A100.

VIA-Research/vTrain (MICRO 2024), ground_truth_single.csv. Rows with an even index calibrate, those
with an odd one test.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import NamedTuple

from virtualgpu.core.cards import find
from virtualgpu.core.stacks import find_stack

EVEN, ODD = 0, 1
A100 = find("a100-80gb")
HOST = find_stack("megatron-deepspeed")
# Megatron-DeepSpeed on vTrain's A100s: what was fitted of its host and of its point-to-point sends
# over NVLink, and the share of the peak of short runs (virtual_calibration.py).
DEEPSPEED_A100 = replace(A100, efficiency=replace(
    A100.efficiency, matmul={**A100.efficiency.matmul, "fp16": 0.87}, p2p=0.054, pace=HOST.pace,
    dispatch=HOST.dispatch))


class Row(NamedTuple):
    gpus: int
    batch: int
    micro_batch: int
    hidden: int
    heads: int
    layers: int
    sequence: int
    tp: int
    dp: int
    pp: int
    seconds: float


def read(path: str, half: int) -> list[Row]:
    """The rows with an even (0) or an odd (1) index."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))[1:]
    return [Row(*map(int, row[:10]), float(row[10]) / 1000)
            for index, row in enumerate(rows) if index % 2 == half]


def flags_of(row: Row, layers: int | None = None) -> str:
    """The trainer's flags: fp16, every layer recomputed, 1F1B."""
    return (f"--num-layers {layers or row.layers} --hidden-size {row.hidden} "
            f"--num-attention-heads {row.heads} --seq-length {row.sequence} "
            f"--max-position-embeddings {row.sequence} --micro-batch-size {row.micro_batch} "
            f"--global-batch-size {row.batch} --tensor-model-parallel-size {row.tp} "
            f"--pipeline-model-parallel-size {row.pp} --fp16 --recompute-granularity full "
            "--recompute-method uniform "
            "--lr 1e-4 --train-iters 1 "
            "--data-path - --vocab-file - --merge-file -")
