"""cuBLAS workspaces: memory that PyTorch allocates for matrix multiplications and keeps.

Every thread that runs GEMMs has its own handle, and a workspace for each stream it uses: the
program's thread for forward passes, and autograd's for backward passes
(aten/src/ATen/cuda/CublasHandlePool.cpp). cuBLASLt, which fuses the bias into the GEMM, has
another one on Hopper. The sizes for Hopper were measured on an H100 with torch 2.11 and CUDA 13
(tests/virtualgpu/twins/h100.json); Blackwell's are assumed to be the same;
those of other GPUs are cuBLAS's default, ":4096:2:16:8".

They are small, but they can fragment the memory: if the free block that fits best in the first
backward pass is a buffer of the logits, the workspace stays in it permanently, and the next step
needs a new buffer.
"""

from __future__ import annotations

import os
import re

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.plan import OperationPlan

KIB = 2**10
DEFAULT = (2 * 4096 + 8 * 16) * KIB
HOPPER, HOPPER_LT = 32 * KIB * KIB, KIB * KIB
CUBLASLT = {"aten.addmm", "aten._scaled_mm"}
CUBLAS = {"aten.mm", "aten.bmm", "aten.addmm_", "aten.baddbmm", *CUBLASLT}
in_backward = torch._C._current_graph_task_id


def sizes(card: Card, fused: bool) -> list[int]:
    """Return the bytes of each workspace that a GEMM needs.

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

    def allocate(self, plan: OperationPlan, stream: str) -> list[torch.Tensor]:
        """Return new workspaces, as meta tensors, if this operation is the first to need them.

        Args:
            plan: the operation's plan.
            stream: the stream that it runs on.
        """
        if plan.name not in CUBLAS:
            return []
        held = self.held.setdefault((in_backward() != -1, stream), [])
        fused = plan.name in CUBLASLT
        if held and (len(held) == 2 or not fused):
            return []
        new = [torch.empty_strided((need,), (1,), dtype=torch.uint8, device="meta")
                for need in sizes(self.card, fused)[len(held):]]
        held += new
        return new
