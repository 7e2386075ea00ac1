"""Add up the operations of a step: FLOPs by dtype, and tokens looked up in embeddings.

Model FLOPs are those of GEMMs and fused attention in the forward and backward passes. A forward
operation inside a backward pass is recomputation, which counts toward HFU but not MFU (Korthikanti
et al. 2022, section 5). So does the GEMM of queries and keys in the backward pass of fused
attention, which recomputes the scores because none were saved (Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from virtualgpu.core.plan import OperationPlan
from virtualgpu.export.blocks import BACKWARD, FORWARD, RECOMPUTE

# The backward pass of fused attention has five GEMMs; one of them recomputes the scores.
ATTENTION_BACKWARD = {
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "virtualgpu.flash_attention_backward"}
BACKWARD_GEMMS = 5


class PlanTotals(NamedTuple):
    """The contribution of one call of an operation to the totals.

    Attributes:
        dtype: dtype of the FLOPs.
        gemm: FLOPs of a GEMM.
        fused: FLOPs of fused attention.
        recomputed: FLOPs of `fused` that are recomputation.
        tokens: as in core.rules.work.KernelWork.
    """

    dtype: str = ""
    gemm: int = 0
    fused: int = 0
    recomputed: int = 0
    tokens: int = 0


@dataclass
class WorkTotals:
    """Totals of a number of operations.

    Attributes:
        model: model FLOPs, by dtype.
        recomputed: FLOPs of recomputation, by dtype.
        forward: FLOPs of GEMMs in forward passes, without fused attention.
        backward: the same in backward passes.
        tokens: tokens looked up, by the embedding's weight (ledger.table_of).
    """

    model: Counter[str] = field(default_factory=Counter)
    recomputed: Counter[str] = field(default_factory=Counter)
    forward: int = 0
    backward: int = 0
    tokens: Counter[Hashable] = field(default_factory=Counter)

    @property
    def computes(self) -> bool:
        """True if the operations include a GEMM or fused attention."""
        return bool(self.model or self.recomputed)

    def add(self, other: WorkTotals) -> None:
        self.model += other.model
        self.recomputed += other.recomputed
        self.forward += other.forward
        self.backward += other.backward
        self.tokens += other.tokens


class WorkCounter:
    """Adds up operations; looks each plan up only once."""

    def __init__(self) -> None:
        self.known: dict[int, PlanTotals] = {}  # by the plan's identity

    def total(self, plans: Sequence[OperationPlan], phases: Sequence[int],
              lookups: Iterable[tuple[int, Hashable]]) -> WorkTotals:
        """Return the totals of operations.

        Args:
            plans: plan of each operation, in order.
            phases: the program's phase at each operation.
            lookups: the embeddings' positions among the operations, and their weights.
        """
        total = WorkTotals()
        keys = list(map(id, plans))  # plans live as long as the GPU; hashing one takes longer
        missing = {key: plan for key, plan in zip(keys, plans, strict=True)
                   if key not in self.known}
        self.known |= {key: info_of(plan) for key, plan in missing.items()}
        for (key, phase), calls in Counter(zip(keys, phases, strict=True)).items():
            info = self.known[key]
            if info.gemm or info.fused:
                flops = info.gemm + info.fused
                recomputed = flops if phase == RECOMPUTE else info.recomputed
                total.recomputed[info.dtype] += calls * recomputed
                total.model[info.dtype] += calls * (flops - recomputed)
                if phase == FORWARD:
                    total.forward += calls * info.gemm
                elif phase == BACKWARD:
                    total.backward += calls * info.gemm
        for position, table in lookups:
            if phases[position] == FORWARD:
                total.tokens[table] += self.known[keys[position]].tokens
        return total


def info_of(plan: OperationPlan) -> PlanTotals:
    """Return what one call of an operation adds to the totals."""
    work = plan.work
    if work is None:
        return PlanTotals()
    gemm = work.gemm
    recomputed = work.flops // BACKWARD_GEMMS if plan.name in ATTENTION_BACKWARD else 0
    return PlanTotals(gemm.dtype if gemm else work.dtype, gemm.flops if gemm else 0,
                      work.flops, recomputed, work.tokens)
