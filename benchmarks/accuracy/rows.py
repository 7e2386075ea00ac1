"""Sets of published rows: one JSON file each in benchmarks/published, with its source.

Published figures that are not rows of training runs belong into benchmarks, not into that folder.
"""

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
CALIBRATION, TEST, INFERRED = "calibration", "test", "inferred"
MEMORY = {"memory_gb": 1e9, "memory_gib": 2**30}
MEMORY_COUNTS = ("allocated", "reserved", "nvidia-smi")
FACTS = ("title", "source", "date", "about", "use", "program", "stack")  # texts of every set
ROW = ("gpu", "gpus", "layers", "hidden", "heads", "sequence", "micro_batch")
RESULTS = ("seconds", "tokens_per_second_per_gpu", "teraflops", "fits", *MEMORY)


class BadRowSet(ValueError):
    """Raised for a file of benchmarks/published that is no set of rows; names the file."""


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
        """Return whether constants may be fitted to the row with this index.

        A row whose source does not state its whole configuration is INFERRED. No stated error
        includes it. In a set for tests, single rows may be marked for calibration.
        """
        if self.rows[index].get("inferred"):
            return INFERRED
        if self.rows[index].get("calibration"):
            return CALIBRATION
        calibrates = self.facts["use"].startswith(CALIBRATION) and index % 2 == 0
        return CALIBRATION if calibrates else TEST


@dataclass(frozen=True)
class Prediction:
    """What the model says of one row.

    Attributes:
        seconds: of a step.
        fits: whether the memory suffices.
        allocated: bytes of tensors at the peak, on the fullest GPU or on that of the row's stage.
        used: bytes that nvidia-smi shows: those that PyTorch reserved, the CUDA context, and NCCL;
            None where no memory was published.
        reserved: bytes that PyTorch reserved at the peak; None where no memory was published.
    """

    seconds: float
    fits: bool
    allocated: float
    used: float | None = None
    reserved: float | None = None

    def memory(self, counts: str) -> float | None:
        """Return the bytes that a source counts, one of MEMORY_COUNTS."""
        return {"allocated": self.allocated, "reserved": self.reserved,
                "nvidia-smi": self.used}[counts]


def load_set(name: str, folder: Path = FOLDER) -> RowSet:
    """Return a set.

    Args:
        name: the file's name without .json.
        folder: the file's folder.

    Raises:
        BadRowSet: the file is no set of rows.
    """
    path = folder / f"{name}.json"
    try:
        facts = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadRowSet(f"{path}: no JSON ({error})") from None
    if problem := set_problem(facts):
        raise BadRowSet(f"{path}: no set of published training runs: {problem}; other published "
                        f"figures belong into {folder.parent}")
    shared = {key: facts[key] for key in ("gpu", "network", "per_node") if key in facts}
    rows = tuple({**shared, **facts.get("common", {}), **row} for row in facts.pop("rows"))
    return RowSet(name, facts, rows)


def set_problem(facts: object) -> str | None:
    """Return what the content of a file lacks to be a set of rows; None if it is one."""
    if not isinstance(facts, dict):
        return f"a {type(facts).__name__} instead of an object"
    for key in FACTS:
        if not isinstance(facts.get(key), str):
            return f"no text {key!r}"
    if facts["use"] != TEST and not facts["use"].startswith(CALIBRATION):
        return f"use {facts['use']!r} instead of {TEST!r} or '{CALIBRATION} ...'"
    rows, shared = facts.get("rows"), {*facts, *facts.get("common", {})}
    if not isinstance(rows, list) or not rows:
        return "no list 'rows'"
    for number, row in enumerate(rows):
        known = shared | set(row) if isinstance(row, dict) else set()
        if missing := [key for key in ROW if key not in known]:
            return f"row {number} has no {missing[0]!r}"
        if not known.intersection(RESULTS):
            return f"row {number} has none of {', '.join(RESULTS)}"
        counts = facts.get("memory_counts")
        if known.intersection(MEMORY) and counts not in MEMORY_COUNTS:
            return f"memory_counts is {counts!r} instead of one of {', '.join(MEMORY_COUNTS)}"
    return None


def load_sets(folder: Path = FOLDER) -> list[RowSet]:
    """Return all sets of a folder, by name. Raises BadRowSet."""
    return [load_set(path.stem, folder) for path in sorted(folder.glob("*.json"))]


def published_seconds(row: Mapping) -> float | None:
    """Return the seconds of a step; None for a row that ran out of memory or has no time."""
    if "seconds" in row:
        return row["seconds"]
    if "tokens_per_second_per_gpu" in row:
        tokens = row["micro_batch"] * row.get("accumulation", 1) * row["sequence"]
        return tokens / row.get("context", 1) / row["tokens_per_second_per_gpu"]
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
        facts: of the row's set: "stack" is its software stack, "gpu_changes" tell where the GPU
            differs from the data sheet, and "launch_blocking" that CUDA_LAUNCH_BLOCKING=1 was set.
        row: the row.
    """
    card = under(find(row["gpu"]), find_stack(facts["stack"]))
    if facts.get("launch_blocking"):  # the host waits for every kernel, then launches the next
        efficiency = card.efficiency
        card = replace(card, efficiency=replace(
            efficiency, kernel=efficiency.kernel + efficiency.dispatch))
    changes = facts.get("gpu_changes")
    return replace(card, **changes) if changes else card


def cluster_of(row: Mapping, card: Card) -> Cluster:
    """Return the GPUs of a row.

    Args:
        row: the row.
        card: their model.
    """
    per_node = row.get("per_node", 8)
    return Cluster((card,) * (row["gpus"] // per_node), per_node, row.get("network", card.network))
