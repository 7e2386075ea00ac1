"""Apex's kernels on lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def multi_tensor_l2norm(chunk: int, flag: Tensor, lists: Sequence[Sequence[Tensor]],
                        per_tensor: bool = False) -> tuple[Tensor, Tensor | None]:
    """Return the norm of all tensors together, [1], and with per_tensor that of each."""
    norms = torch.stack([one.float() for one in torch._foreach_norm(list(lists[0]))])
    return torch.linalg.vector_norm(norms).reshape(1), norms if per_tensor else None


def multi_tensor_scale(chunk: int, flag: Tensor, lists: Sequence[Sequence[Tensor]],
                       scale: float) -> None:
    """Write the first list's tensors, times a number, to those of the second list."""
    source, target = map(list, lists)
    if not all(one is other for one, other in zip(source, target, strict=True)):
        torch._foreach_copy_(target, source)
        if isinstance(scale, float) and scale == 1.0:
            return
    torch._foreach_mul_(target, scale)
