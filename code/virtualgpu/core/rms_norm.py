"""RMSNorm as CUDA runs it: one kernel forward and two backward.

The source is ATen/native/cuda/layer_norm_kernel.cu. Torch on meta tensors would run some twenty
small operations instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from virtualgpu.core.rules import Work, moved, tensors
from virtualgpu.core.shapes import RULES, Spec, fresh

library = torch.library.Library("aten", "IMPL", "Meta")


def shapes(x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None,
           eps: float | None = None) -> list[Spec]:
    """Return the results of `aten._fused_rms_norm`: the output, and the reciprocal of each row's
    root mean square, which the backward pass reads.

    Args:
        x: the input.
        normalized_shape: shape of the last dimensions, over which it is normalized.
        weight: scale of this shape, or None.
        eps: not used, because it does not change a shape.

    Raises:
        RuntimeError: the operands do not fit together.
    """
    whole = tuple(normalized_shape)
    rows = x.dim() - len(whole)
    if rows < 0 or x.shape[rows:] != whole or (weight is not None and weight.shape != whole):
        raise RuntimeError(f"RMSNorm over {list(whole)}: the input is {list(x.shape)}, the "
                           f"weight {None if weight is None else list(weight.shape)}")
    precise = torch.float64 if x.dtype == torch.float64 else torch.float32
    return [fresh(x.shape, x.dtype),
            fresh((*x.shape[:rows], *([1] * len(whole))), precise)]


def _meta(*args: object) -> tuple[Tensor, ...]:
    return tuple(torch.empty_strided(spec.shape, spec.strides, dtype=spec.dtype, device="meta")
                 for spec in shapes(*args))


def backward(arguments: Sequence, results: Sequence[Tensor]) -> Work:
    """Cost of _fused_rms_norm_backward(grad, input, shape, rstd, weight, mask): one kernel for the
    gradient of the input and one for the weight's, each of which reads grad, input, and rstd."""
    grad, x, _, rstd, weight, mask = arguments
    of_input, of_weight = map(bool, mask)
    read = (of_input + of_weight) * sum(map(moved, (grad, x, rstd)))
    read += of_input * sum(map(moved, tensors([weight])))
    return Work(read + sum(map(moved, results)), kernels=of_input + of_weight)


# Library.impl refuses a meta kernel for an operation that torch can decompose, which CUDA does not
# do with this one.
library.m.impl("_fused_rms_norm", "Meta", _meta, False)
RULES["aten._fused_rms_norm"] = lambda args, kwargs: shapes(*args, **kwargs)
