"""cuBLAS's workspaces: memory that PyTorch allocates for matrix multiplications and keeps.

Every thread that multiplies matrices has a handle of its own, and takes a workspace for each stream
it uses: the program's thread for forward passes, and autograd's for backward passes
(aten/src/ATen/cuda/CublasHandlePool.cpp). cuBLASLt, which fuses the bias into the product, has
another one on Hopper. The sizes for Hopper were measured on an H100 with torch 2.11 and CUDA 13
(tests/virtualgpu/twins/h100.json); Blackwell's are assumed to be the same;
those for other GPUs are cuBLAS's default, ":4096:2:16:8".

They are small, but they can fragment the memory: if the free block that fits best in the first
backward pass is a buffer of the logits, the workspace stays in it for good, and the next step needs
a new buffer.
"""

from __future__ import annotations

import os
import re

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.plan import Plan

KIB = 2**10
DEFAULT = (2 * 4096 + 8 * 16) * KIB
HOPPER, HOPPER_LT = 32 * KIB * KIB, KIB * KIB
BY_LT = {"aten.addmm", "aten._scaled_mm"}
BY_CUBLAS = {"aten.mm", "aten.bmm", "aten.addmm_", "aten.baddbmm", *BY_LT}
in_backward = torch._C._current_graph_task_id


def sizes(card: Card, fused: bool) -> list[int]:
    """Return the bytes of the workspaces that a multiplication needs.

    Args:
        card: the GPU model.
        fused: whether cuBLASLt runs it.
    """
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return [KIB * sum(int(each) * int(count) for each, count in pairs)]
    if card.architecture not in ("hopper", "blackwell"):
        return [DEFAULT]
    return [HOPPER, HOPPER_LT] if fused else [HOPPER]


class Workspaces:
    """cuBLAS workspaces of one process, by thread and stream."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.held: dict[tuple[bool, str], list[torch.Tensor]] = {}

    def wanted(self, plan: Plan, stream: str) -> list[torch.Tensor]:
        """Return new workspaces if this operation is the first to need them, as meta tensors.

        Args:
            plan: of the operation.
            stream: where it runs.
        """
        if plan.name not in BY_CUBLAS:
            return []
        held = self.held.setdefault((in_backward() != -1, stream), [])
        fused = plan.name in BY_LT
        if held and (len(held) == 2 or not fused):
            return []
        made = [torch.empty_strided((need,), (1,), dtype=torch.uint8, device="meta")
                for need in sizes(self.card, fused)[len(held):]]
        held += made
        return made
