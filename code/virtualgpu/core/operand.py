"""A tensor as plain data: what cost rules read of a tensor, without the tensor.

The trusted side prices records with these. Even on meta, a torch.Tensor of sizes that a stranger
chose would end in torch's C++ code, which does not check every size that it is given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Operand:
    """Shape, strides (in elements), and dtype, under the names that torch.Tensor has for them."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def dim(self) -> int:
        return len(self.shape)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize


TENSORS = (torch.Tensor, Operand)
