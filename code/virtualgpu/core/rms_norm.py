"""RMSNorm as CUDA runs it: one kernel forward and two backward.

The source is ATen/native/cuda/layer_norm_kernel.cu. Torch on meta tensors would run some twenty
small operations instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from virtualgpu.core.rules import KernelWork, moved, tensors
from virtualgpu.core.shapes import RULES, TensorSpec, contiguous

library = torch.library.Library("aten", "IMPL", "Meta")


def shapes(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
           eps: float | None = None) -> list[TensorSpec]:
    """Return the results of `aten._fused_rms_norm`: the output, and the reciprocal of each row's
    root mean square, which the backward pass reads.

    Args:
        x: the input.
        normalized_shape: shape of the last dimensions, over which it is normalized.
        weight: scale of this shape, or None.
        eps: not used, because it does not change a shape.

    Raises:
        RuntimeError: the shapes do not match.
    """
    inner = tuple(normalized_shape)
    outer = x.dim() - len(inner)
    if outer < 0 or x.shape[outer:] != inner or (weight is not None and weight.shape != inner):
        raise RuntimeError(f"RMSNorm over {list(inner)}: the input is {list(x.shape)}, the "
                           f"weight {None if weight is None else list(weight.shape)}")
    statistics = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [contiguous(x.shape, x.dtype),
            contiguous((*x.shape[:outer], *([1] * len(inner))), statistics)]


def _meta(*args: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
                 for spec in shapes(*args))


def backward(arguments: Sequence, results: Sequence[Tensor]) -> KernelWork:
    """Cost of _fused_rms_norm_backward(grad, input, shape, rstd, weight, mask): one kernel for the
    gradient of the input and one for the weight's, each of which reads grad, input, and rstd."""
    grad, x, _, rstd, weight, mask = arguments
    for_input, for_weight = map(bool, mask)
    read = (for_input + for_weight) * sum(map(moved, (grad, x, rstd)))
    read += for_input * sum(map(moved, tensors([weight])))
    return KernelWork(read + sum(map(moved, results)), kernels=for_input + for_weight)


# Library.impl refuses a meta kernel for an operation that torch can decompose, but CUDA does not
# decompose this one.
library.m.impl("_fused_rms_norm", "Meta", _meta, False)
RULES["aten._fused_rms_norm"] = lambda args, kwargs: shapes(*args, **kwargs)
