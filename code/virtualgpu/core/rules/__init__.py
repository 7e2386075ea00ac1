"""What an operation costs and what it returns, by kind of operation.

Each kind has one file with its cost rules (`COSTS`) and its result rules (`@returns`): gemm.py,
attention.py, pointwise.py, reductions.py, moves.py, and optimizer.py. Collectives, which run
between GPUs, are in net/collectives.py. The virtual GPU and the pricing of records use the same
rules. work.py has what cost rules count, returns.py what result rules compute with, and results.py
applies the latter.
"""

from __future__ import annotations

import torch

from virtualgpu.core.rules import attention, gemm, moves, optimizer, pointwise, reductions
from virtualgpu.core.rules.work import CostRule, read_and_write

COSTS: dict[str, CostRule] = {
    name: rule for kind in (gemm, attention, pointwise, reductions, moves, optimizer)
    for name, rule in kind.COSTS.items()}


def rule_of(operation: torch._ops.OpOverload) -> CostRule | None:
    """Return the operation's cost rule, or None if it has none."""
    rule = COSTS.get(str(operation._overloadpacket))
    if rule is None and torch.Tag.pointwise in operation.tags:
        return read_and_write
    return rule
