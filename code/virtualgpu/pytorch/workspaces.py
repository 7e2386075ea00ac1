"""cuBLAS's workspaces: memory that PyTorch allocates for matrix multiplications and keeps.

Every thread that multiplies matrices has a handle of its own, and takes a workspace for each stream
it uses: the program's thread for forward passes, and autograd's for backward passes
(aten/src/ATen/cuda/CublasHandlePool.cpp). cuBLASLt, which fuses the bias into the product, asks for
more. The sizes for Hopper were measured on an H100 with torch 2.11 and CUDA 13
(tests/virtualgpu/twins/h100.json); those for other GPUs are cuBLAS's default, ":4096:2:16:8".
"""

from __future__ import annotations

import os
import re

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.plan import Plan

KIB = 2**10
DEFAULT = (2 * 4096 + 8 * 16) * KIB
HOPPER, HOPPER_LT = 32 * KIB * KIB, 33 * KIB * KIB
BY_LT = {"aten.addmm", "aten._scaled_mm"}
BY_CUBLAS = {"aten.mm", "aten.bmm", "aten.addmm_", "aten.baddbmm", *BY_LT}
in_backward = torch._C._current_graph_task_id


def size(card: Card, fused: bool) -> int:
    """Bytes of a workspace.

    Args:
        card: the GPU model.
        fused: whether cuBLASLt asks for it.
    """
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return KIB * sum(int(each) * int(count) for each, count in pairs)
    if card.architecture != "hopper":
        return DEFAULT
    return HOPPER_LT if fused else HOPPER


class Workspaces:
    """cuBLAS workspaces of one process, by thread and stream."""

    def __init__(self, card: Card) -> None:
        self.card = card
        self.held: dict[tuple[bool, str], torch.Tensor] = {}

    def wanted(self, plan: Plan, stream: str) -> torch.Tensor | None:
        """Return a new workspace if this operation is the first to need it, as a meta tensor.

        Args:
            plan: of the operation.
            stream: where it runs.
        """
        if plan.name not in BY_CUBLAS:
            return None
        key = in_backward() != -1, stream
        need = size(self.card, plan.name in BY_LT)
        held = self.held.get(key)
        if held is not None and held.nbytes >= need:
            return None
        self.held.pop(key, None)
        made = self.held[key] = torch.empty_strided((need,), (1,), dtype=torch.uint8, device="meta")
        return made
