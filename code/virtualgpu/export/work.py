"""Sum up the operations of a step: FLOPs by dtype, tokens looked up, time without a cost rule.

Model FLOPs are those of GEMMs and fused attention in the forward and backward passes. A forward
operation inside a backward pass is recomputation, which counts toward HFU but not MFU (Korthikanti
et al. 2022, section 5). So does the GEMM of queries and keys in the backward pass of fused
attention, which recomputes the scores because none were saved (Dao et al. 2022, section 3.1).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from virtualgpu.core.plan import Plan
from virtualgpu.export.blocks import BACKWARD, FORWARD, RECOMPUTE

# The backward pass of fused attention has five products; one is the forward pass's, computed again.
ATTENTION_BACKWARD = {
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "aten._scaled_dot_product_cudnn_attention_backward",
    "virtualgpu.flash_attention_backward"}
BACKWARD_PRODUCTS = 5


class Info(NamedTuple):
    """One plan. product, fused: FLOPs of a matrix product, and of fused attention. again: those of
    fused that recompute. table, tokens: as in core.rules.Work."""

    dtype: str = ""
    product: int = 0
    fused: int = 0
    again: int = 0
    table: tuple[int, ...] | None = None
    tokens: int = 0


@dataclass
class Work:
    """Totals of some operations.

    model, again: FLOPs by dtype, and of those that were recomputed. forward, backward: FLOPs of
    matrix products alone. tokens: by embedding table.
    """

    model: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    forward: int = 0
    backward: int = 0
    tokens: Counter[tuple[int, ...]] = field(default_factory=Counter)

    @property
    def computes(self) -> bool:
        """Whether the operations include a GEMM or fused attention."""
        return bool(self.model or self.again)

    def add(self, other: Work) -> None:
        self.model += other.model
        self.again += other.again
        self.forward += other.forward
        self.backward += other.backward
        self.tokens += other.tokens


class Works:
    """Looks plans up once and adds them."""

    def __init__(self) -> None:
        self.known: dict[int, Info] = {}  # by the plan's identity

    def of(self, plans: Sequence[Plan], phases: Sequence[int]) -> Work:
        """Add up operations.

        Args:
            plans: of the operations, in order.
            phases: what the program did at each.
        """
        total = Work()
        keys = list(map(id, plans))  # plans live as long as the GPU; hashing one takes longer
        missing = {key: plan for key, plan in zip(keys, plans, strict=True)
                   if key not in self.known}
        self.known |= {key: info_of(plan) for key, plan in missing.items()}
        for (key, phase), calls in Counter(zip(keys, phases, strict=True)).items():
            info = self.known[key]
            if info.product or info.fused:
                flops = info.product + info.fused
                again = flops if phase == RECOMPUTE else info.again
                total.again[info.dtype] += calls * again
                total.model[info.dtype] += calls * (flops - again)
                if phase == FORWARD:
                    total.forward += calls * info.product
                elif phase == BACKWARD:
                    total.backward += calls * info.product
            if info.table is not None and phase == FORWARD:
                total.tokens[info.table] += calls * info.tokens
        return total


def info_of(plan: Plan) -> Info:
    """Return what one call of an operation adds to the totals."""
    work = plan.work
    if work is None:
        return Info()
    product = work.product
    again = work.flops // BACKWARD_PRODUCTS if plan.name in ATTENTION_BACKWARD else 0
    return Info(product.dtype if product else work.dtype, product.flops if product else 0,
                work.flops, again, work.table, work.tokens)
