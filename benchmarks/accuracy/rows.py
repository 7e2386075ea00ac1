"""Sets of published rows: one JSON file each in benchmarks/published, with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from minimegatron.formulas import Gpt, step_flops
from virtualgpu.core.card import Card
from virtualgpu.core.cards import find
from virtualgpu.core.stacks import find_stack, under
from virtualgpu.launch.cluster import Cluster

FOLDER = Path(__file__).parents[1] / "published"
CALIBRATION, TEST = "calibration", "test"
MEMORY = {"memory_gb": 1e9, "memory_gib": 2**30}


@dataclass(frozen=True)
class RowSet:
    """The rows of one source.

    Attributes:
        name: of the file.
        facts: the rest of the file: title, source, what a row means, and what the rows share.
        rows: the rows, each with what it shares with the others.
    """

    name: str
    facts: Mapping = field(repr=False)
    rows: tuple[Mapping, ...] = field(repr=False)

    def split(self, index: int) -> str:
        """Return whether constants may be fitted to the row with this index."""
        calibrates = self.facts["use"].startswith(CALIBRATION) and index % 2 == 0
        return CALIBRATION if calibrates else TEST


@dataclass(frozen=True)
class Prediction:
    """What the model says of one row.

    Attributes:
        seconds: of a step.
        fits: whether the memory suffices.
        allocated: bytes of tensors at the peak, on the fullest GPU.
        total: the same as nvidia-smi counts it, with the CUDA context and NCCL.
        reserved: bytes that PyTorch reserved at the peak; None where it is not modeled.
    """

    seconds: float
    fits: bool
    allocated: float
    total: float
    reserved: float | None = None

    def memory(self, counts: str) -> float | None:
        """Return the bytes that a source counts: "allocated", "reserved", or "nvidia-smi"."""
        return {"allocated": self.allocated, "reserved": self.reserved,
                "nvidia-smi": self.total}[counts]


def load_set(name: str) -> RowSet:
    """Return the set in a file of benchmarks/published."""
    facts = json.loads((FOLDER / f"{name}.json").read_text())
    shared = {key: facts[key] for key in ("gpu", "network", "per_node") if key in facts}
    rows = tuple({**shared, **facts.get("common", {}), **row} for row in facts.pop("rows"))
    return RowSet(name, facts, rows)


def load_sets() -> list[RowSet]:
    """Return all sets, by name."""
    return [load_set(path.stem) for path in sorted(FOLDER.glob("*.json"))]


def published_seconds(row: Mapping) -> float | None:
    """Return the seconds of a step; None for a row that ran out of memory."""
    if "seconds" in row:
        return row["seconds"]
    if "tokens_per_second_per_gpu" in row:
        tokens = row["micro_batch"] * row.get("accumulation", 1) * row["sequence"]
        return tokens / row["tokens_per_second_per_gpu"]
    if "teraflops" in row:  # counts the forward pass twice, as its recomputation
        return step_flops(gpt_of(row), row["batch"], "full") / row["gpus"] / row["teraflops"] / 1e12
    return None


def published_memory(row: Mapping) -> float | None:
    """Return the published peak in bytes, if there is one."""
    return next((row[key] * unit for key, unit in MEMORY.items() if key in row), None)


def gpt_of(row: Mapping) -> Gpt:
    return Gpt(row["layers"], row["hidden"], row["heads"], row["sequence"], row["vocabulary"])


def card_of(facts: Mapping, row: Mapping) -> Card:
    """Return the GPU model of a row.

    Args:
        facts: of the row's set: "stack" is its software stack, and "gpu_changes" tell where the
            GPU differs from the data sheet.
        row: the row.
    """
    card = under(find(row["gpu"]), find_stack(facts["stack"]))
    changes = facts.get("gpu_changes")
    return replace(card, **changes) if changes else card


def cluster_of(row: Mapping, card: Card) -> Cluster:
    """Return the GPUs of a row.

    Args:
        row: the row.
        card: their model.
    """
    per_node = row.get("per_node", 8)
    return Cluster(card, per_node, row["gpus"] // per_node, row.get("network", card.network))
