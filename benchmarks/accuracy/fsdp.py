"""Predict rows that are plain PyTorch programs under FSDP.

Every layer and every micro-batch after the first few takes the same time, so a row is recorded with
few layers and up to two micro-batches, and both are extrapolated. With all layers and all
micro-batches, six rows of llm-foundry took the same time to 0.01%.

Recording takes minutes, and pricing all rows takes seconds. While constants of a GPU model are
fitted, VIRTUAL_RECORDS=FOLDER keeps the records between runs; delete the folder when a program or
virtualgpu's list of operations changes.
"""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from benchmarks.accuracy.recording import Steps, price_steps, record_program
from benchmarks.accuracy.rows import Prediction, cluster_of
from virtualgpu.core.card import Card
from virtualgpu.core.cards import find
from virtualgpu.replay import Record, read_record

sys.path.insert(0, str(Path(__file__).parents[1]))  # of the programs, which are scripts
import llama_fsdp
import mpt_fsdp

FOLDER = os.environ.get("VIRTUAL_RECORDS")
DEPTHS = {mpt_fsdp: (3, 6), llama_fsdp: (4, 8)}  # layers of the two recorded models
NCCL = 160 * 2**20  # bytes of NCCL's buffers, 16 channels of 10 MiB


def predict_mpt(row: Mapping, card: Card | None = None) -> tuple[float, float]:
    """Return the seconds of a step and the bytes reserved at the peak.

    Args:
        row: of published/llm_foundry.json.
        card: the GPU model; None for the repository's model of the row's GPU.
    """
    found = predict(mpt_fsdp, row, card or find(row["gpu"]))
    return found.seconds, found.reserved


def predict(program: ModuleType, row: Mapping, card: Card) -> Prediction:
    """Return the prediction for a row.

    Args:
        program: mpt_fsdp or llama_fsdp.
        row: the row.
        card: the GPU model.
    """
    cluster, depths, steps = cluster_of(row, card), DEPTHS[program], len(MICRO_BATCHES[program])
    found = [price_steps(recorded(program, FLAGS[program](row, layers), row["gpu"], row["gpus"],
                                  cluster.per_node, row.get("cudnn", False)), cluster, steps)
             for layers in depths]
    times = [step_seconds(one, row) for one in found]

    def extrapolate(low: float, high: float) -> float:
        return low + (row["layers"] - depths[0]) * (high - low) / (depths[1] - depths[0])

    allocated = extrapolate(*(one.allocated for one in found))
    reserved = extrapolate(*(one.reserved for one in found))
    usable = card.memory - card.context - NCCL
    # An allocator that runs out of memory gives back what it has reserved and does not use.
    reserved = min(reserved, usable)
    return Prediction(extrapolate(*times), allocated <= usable, allocated,
                      reserved + card.context + NCCL, reserved)


def step_seconds(found: Steps, row: Mapping) -> float:
    """Return the seconds of a step with all of a row's micro-batches.

    Args:
        found: of a record: a step with one micro-batch and one with two; or the whole step.
        row: the row.
    """
    first, last = found.seconds[0], found.seconds[-1]
    if len(found.seconds) == 1:
        return first
    return first + (row["accumulation"] - 1) * (last - first)


def mpt_flags(row: Mapping, layers: int) -> tuple[str, ...]:
    """Return the flags of mpt_fsdp.

    Args:
        row: the published row.
        layers: of the recorded model.
    """
    flags = [f"--layers={layers}", f"--hidden={row['hidden']}", f"--heads={row['heads']}",
             f"--sequence={row['sequence']}", f"--batch={row['micro_batch']}",
             f"--sharding={row['sharding']}", "--micro-batches", "1", "1",
             "2" if row["accumulation"] > 1 else "1"]
    return (*flags, "--checkpointing") if row["checkpointing"] else tuple(flags)


def llama_flags(row: Mapping, layers: int) -> tuple[str, ...]:
    """Return the flags of llama_fsdp.

    Args:
        row: the published row.
        layers: of the recorded model.
    """
    names = ("hidden", "heads", "groups", "inner", "vocabulary", "sequence")
    return (f"--layers={layers}", *(f"--{name}={row[name]}" for name in names),
            f"--batch={row['micro_batch']}", f"--checkpointing={row['checkpointing']}",
            f"--accumulation={row.get('accumulation', 1)}",
            *(f"--{name}={row[name]}" for name in ("parameters", "reductions", "logits", "sharding")
              if name in row))


FLAGS = {mpt_fsdp: mpt_flags, llama_fsdp: llama_flags}
# Of the steps that a program synchronizes around: those of mpt_flags after the warm-up, and
# llama_fsdp's only one, which has all of a row's micro-batches.
MICRO_BATCHES = {mpt_fsdp: (1, 2), llama_fsdp: (None,)}


@cache
def recorded(program: ModuleType, flags: tuple[str, ...], gpu: str, gpus: int, per_node: int,
             cudnn: bool) -> Record:
    """Return the record of rank 0.

    Args:
        program: mpt_fsdp or llama_fsdp.
        flags: its command line.
        gpu: the GPU model's name.
        gpus: of the whole job.
        per_node: of each node.
        cudnn: whether PyTorch may choose cuDNN's attention.
    """
    key = sha256(repr((program.__name__, flags, gpu, gpus, cudnn)).encode()).hexdigest()[:16]
    kept = FOLDER and Path(FOLDER, f"{key}.json.gz")
    if kept and kept.exists():
        return read_record(gzip.decompress(kept.read_bytes()).decode())
    cluster = cluster_of({"gpus": gpus, "per_node": per_node}, find(gpu))
    text = record_program(lambda: program.run(list(flags)), cluster, cudnn)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(gzip.compress(text.encode()))
    return read_record(text)
