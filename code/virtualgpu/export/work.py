"""What the operations of a step did: FLOPs by dtype, tokens looked up, time without a cost rule.

Model FLOPs are those of matrix products and fused attention in the forward and the backward pass.
What runs forward inside a backward pass is recomputation and counts for the hardware only (HFU
instead of MFU; Korthikanti et al. 2022, section 5). So does the product of queries and keys in the
backward pass of fused attention, which computes the scores again because none were saved (Dao et
al. 2022, section 3.1).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from virtualgpu.core.plan import Plan
from virtualgpu.export.blocks import BACKWARD, FORWARD, RECOMPUTE

if TYPE_CHECKING:
    from virtualgpu.core.gpu import VirtualGpu

# The backward pass of fused attention has five products; one is the forward pass's, computed again.
ATTENTION_BACKWARD = {
    "aten._scaled_dot_product_flash_attention_backward",
    "aten._scaled_dot_product_efficient_attention_backward",
    "virtualgpu.flash_attention_backward"}
BACKWARD_PRODUCTS = 5


class Info(NamedTuple):
    """One plan. product, fused: FLOPs of a matrix product, and of fused attention. again: those of
    fused that recompute. table, tokens: the shape of an embedding's weight, and how many rows are
    looked up."""

    name: str
    dtype: str
    product: int
    fused: int
    again: int
    table: tuple[int, ...] | None
    tokens: int
    seconds: float
    unknown: bool


@dataclass
class Work:
    """Totals of some operations.

    model, again: FLOPs by dtype, and of those that were recomputed. forward, backward: FLOPs of
    matrix products alone. tokens: by embedding table. kernels: seconds. unknown: calls and seconds
    of operations without a cost rule, by name.
    """

    model: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    forward: int = 0
    backward: int = 0
    tokens: Counter[tuple[int, ...]] = field(default_factory=Counter)
    kernels: float = 0.0
    unknown: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def computes(self) -> bool:
        """Whether there is a matrix product or fused attention among the operations."""
        return bool(self.model or self.again)

    def add(self, other: Work) -> None:
        self.model += other.model
        self.again += other.again
        self.forward += other.forward
        self.backward += other.backward
        self.tokens += other.tokens
        self.kernels += other.kernels
        for name, (calls, seconds) in other.unknown.items():
            before = self.unknown.get(name, (0, 0.0))
            self.unknown[name] = before[0] + calls, before[1] + seconds


class Works:
    """Looks plans up once and adds them."""

    def __init__(self, gpu: VirtualGpu) -> None:
        self.gpu, self.known = gpu, {}

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
        self.known |= {key: self._info(plan) for key, plan in missing.items()}
        for (key, phase), calls in Counter(zip(keys, phases, strict=True)).items():
            info = self.known[key]
            total.kernels += calls * info.seconds
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
            if info.unknown:
                count, seconds = total.unknown.get(info.name, (0, 0.0))
                total.unknown[info.name] = count + calls, seconds + calls * info.seconds
        return total

    def _info(self, plan: Plan) -> Info:
        work, table, tokens = plan.work, None, 0
        if plan.name == "aten.embedding":
            # The plan does not say how large the table is; what it was looked up by does.
            key = next(key for key, other in self.gpu._plans.items() if other is plan)
            table, tokens = tuple(key[1][0]), math.prod(key[2][0])
        if work is None:
            return Info(plan.name, "", 0, 0, 0, table, tokens, plan.seconds, plan.unknown)
        product = work.product
        again = work.flops // BACKWARD_PRODUCTS if plan.name in ATTENTION_BACKWARD else 0
        return Info(plan.name, product.dtype if product else work.dtype,
                    product.flops if product else 0, work.flops, again, table, tokens,
                    plan.seconds, plan.unknown)
