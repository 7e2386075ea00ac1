"""Check with the estimator that every stage fits the memory of its own GPU model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lab.submit import trainer_flags
from lab.submit.layout import RunLayout
from labcore.errors import LabError
from layout_estimator.requests import EstimateError, estimate

GIB = 2**30
MAX_MOVES = 24  # layers to move between stages in search of a partition that fits
REMEDY = 'flags = ["--recompute-granularity", "full", "--recompute-method", "uniform"]'


class RankMemory(NamedTuple):
    """Memory of one rank of a stage, in bytes.

    Attributes:
        stage: the stage's number.
        kind: the name of its GPU model in the file.
        needed: peak memory, including the CUDA context and NCCL's buffers.
        capacity: the GPU's memory.
    """

    stage: int
    kind: str
    needed: float
    capacity: int

    @property
    def fits(self) -> bool:
        """True if the rank fits its GPU."""
        return self.needed <= self.capacity


def estimate_stages(layout: RunLayout, measured: dict | None = None) -> list[RankMemory]:
    """Return the estimated memory of every stage.

    Args:
        measured: a cache for what several estimates have in common, which this fills.

    Raises:
        LabError: the trainer refuses the flags, or they cannot be estimated.
    """
    try:
        plan = estimate(_flags(layout), measured).plan
    except EstimateError as error:
        raise LabError(f"{layout.conf.file}: the trainer refuses this run: {error}") from None
    kinds = {stage: component.kind for component in layout.components
             for stage in component.stages}
    return [RankMemory(memory.stage, kinds[memory.stage], memory.total, memory.capacity)
            for memory in plan.memory]


def check(layout: RunLayout) -> list[RankMemory]:
    """Return the memory of every stage. Raises LabError if one does not fit its GPU."""
    measured: dict = {}
    stages = estimate_stages(layout, measured)
    full = [one for one in stages if not one.fits]
    if full:
        worst = max(full, key=lambda one: one.needed / one.capacity)
        raise layout.conf.error(
            "partition", f"stage {worst.stage} ({layout.split[worst.stage]} layers) needs "
            f"{worst.needed / GIB:.2f} GiB at its peak, but the {worst.kind} has "
            f"{worst.capacity / GIB:.2f} GiB", _nearest(layout, stages, measured))
    return stages


def _nearest(layout: RunLayout, stages: Sequence[RankMemory], measured: dict) -> str:
    """Return the nearest partition that fits, found by moving layers off the fullest stage."""
    split = list(layout.split)
    for _ in range(MAX_MOVES):
        fullest = max(stages, key=lambda one: one.needed - one.capacity).stage
        emptiest = min(stages, key=lambda one: one.needed - one.capacity).stage
        if fullest == emptiest or split[fullest] <= 1:
            break
        split[fullest] -= 1
        split[emptiest] += 1
        text = "-".join(map(str, split))
        moved = replace(layout, conf=replace(layout.conf, partition=text), split=tuple(split))
        stages = estimate_stages(moved, measured)
        if all(one.fits for one in stages):
            return f'partition = "{text}"'
    return f"{REMEDY}, or more stages, because no similar partition fits"


def _flags(layout: RunLayout) -> list[str]:
    """Return the flags of the run's estimate."""
    nodes = ",".join(f"{component.card.name}:{component.per_node}x{component.nodes}"
                     for component in layout.components)
    return ["--cluster", nodes,
            *(word for group in trainer_flags.modeled(layout).values() for word in group),
            *layout.conf.flags]
