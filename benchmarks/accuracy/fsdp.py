"""Predict rows that are plain PyTorch programs under FSDP.

Every layer and every micro-batch after the first few takes the same time, so a row is recorded with
few layers and up to two micro-batches, and both are extrapolated.

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

from benchmarks.accuracy.recording import PER_NODE, price_steps, record_program
from virtualgpu.core.card import Card
from virtualgpu.core.cards import find
from virtualgpu.replay import Record, read

sys.path.insert(0, str(Path(__file__).parents[1]))  # of the programs, which are scripts
import mpt_fsdp

NETWORKS = {"ampere": "infiniband:8x200gbit", "hopper": "infiniband:8x400gbit"}
FOLDER = os.environ.get("VIRTUAL_RECORDS")
DEPTHS = 3, 6  # layers of the two recorded models


def predict_mpt(row: Mapping, card: Card | None = None) -> tuple[float, float]:
    """Return the seconds of a step and the bytes reserved at the peak.

    Args:
        row: of published/llm_foundry.json.
        card: the GPU model; None for the repository's model of the row's GPU.
    """
    card = card or find(row["gpu"])
    points = []
    for layers in DEPTHS:
        record = recorded(mpt_fsdp, mpt_flags(row, layers), row["gpu"], row["gpus"])
        found = price_steps(record, card, row["gpus"] // PER_NODE, NETWORKS[card.architecture], 2)
        first, second = found.seconds
        points.append((first + (row["accumulation"] - 1) * (second - first), found.reserved))
    return tuple(extrapolate(DEPTHS, pair, row["layers"]) for pair in zip(*points, strict=True))


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


@cache
def recorded(program: ModuleType, flags: tuple[str, ...], gpu: str, gpus: int) -> Record:
    """Return the record of rank 0.

    Args:
        program: mpt_fsdp or llama_fsdp.
        flags: its command line.
        gpu: the GPU model's name.
        gpus: of the whole job.
    """
    key = sha256(repr((program.__name__, flags, gpu, gpus)).encode()).hexdigest()[:16]
    kept = FOLDER and Path(FOLDER, f"{key}.json.gz")
    if kept and kept.exists():
        return read(gzip.decompress(kept.read_bytes()).decode())
    text = record_program(lambda: program.run(list(flags)), find(gpu), gpus // PER_NODE)
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(gzip.compress(text.encode()))
    return read(text)


def extrapolate(depths: tuple[int, int], values: tuple[float, float], layers: int) -> float:
    """Return the value for a number of layers from those of two depths.

    Args:
        depths: the recorded numbers of layers.
        values: of these depths.
        layers: the model's number of layers.
    """
    (low, high), (first, second) = depths, values
    return first + (layers - low) * (second - first) / (high - low)
