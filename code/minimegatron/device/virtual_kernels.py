"""Modeled kernels for the trainer's operations, which a virtual GPU runs instead of plain torch.

They have the shapes, the memory, and the cost of the kernels that Megatron-LM and PyTorch fuse for
CUDA (virtualgpu/core/kernels.py), and each takes its operation's arguments (model/ops.py,
dropout.py), whether or not its cost depends on them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from virtualgpu.core import kernels as modeled
from virtualgpu.core import precisions, storages

LIBRARY = torch.library.Library("minimegatron", "IMPL")


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a kernel for the operation of the same name on meta tensors.

    The key is autograd's because a modeled kernel has a backward pass of its own, and because it
    comes before the virtual GPU's TorchDispatchMode, which then sees only modeled operations.
    """
    LIBRARY.impl(function.__name__, function, "AutogradMeta")
    return function


@kernel
def add_bias(x, bias):
    return modeled.add_bias(x, bias)  # x itself: the kernel that comes next adds the bias


@kernel
def dropout(x, keep, p):
    return modeled.dropout(x, keep)


@kernel
def dropout_add(x, residual, keep, p):
    return residual + x if keep is None else modeled.dropout_add(x, residual, keep)


@kernel
def dropout_mask(samples, heads, key, positions, start, p):
    """Allocate the mask only: the kernel that uses it draws its bits."""
    shape = [len(samples), *([] if heads is None else [len(heads)]), positions]
    return torch.empty(shape, dtype=torch.bool, device=samples.device)


@kernel
def fill_causal_mask(mask):
    """Do nothing: the modeled softmax masks without reading a mask."""


@kernel
def attention(query, key, value, mask, keep, p):
    return modeled.attention(query, key, value, keep)


@kernel
def flash_attention(query, key, value, heads):
    return modeled.flash_attention(query, key, value)


@kernel
def squared_relu(x):
    return modeled.squared_relu(x)


@kernel
def swiglu(x):
    return modeled.swiglu(x)


@kernel
def rotary(x, first, rotated, base):
    return modeled.rotary(x)


@kernel
def fp8_cast(x, scale, amax, dtype):
    return x.to(dtype, memory_format=torch.contiguous_format)  # amax comes with it


@kernel
def fp8_amax(x):
    return x.amax().new_empty((), dtype=torch.float32)


@kernel
def fp8_scales(amax, dtype):
    return amax.reciprocal(), torch.empty_like(amax)


@kernel
def fp8_blocks(x, dtype, rows, columns, mx):
    """Round and compute the scales in one kernel, which reads the 16 bits once."""
    m, blocks = x.shape[0], x.shape[1] // columns
    scales = (x.new_empty(precisions.mx_scales(m, blocks), dtype=torch.float8_e8m0fnu) if mx else
              x.new_empty((m // rows, blocks), dtype=torch.float32))
    return x.to(dtype, memory_format=torch.contiguous_format), scales


@kernel
def fp8_gemm(a, a_scale_inv, b, b_scale_inv, a_rows, b_rows, columns, bias, dtype):
    out = a.new_empty((a.shape[0], b.shape[0]), dtype=dtype)
    fp8_gemm_into(out, a, a_scale_inv, b, b_scale_inv, a_rows, b_rows, columns, bias)
    return out


@kernel
def fp8_gemm_into(out, a, a_scale_inv, b, b_scale_inv, a_rows, b_rows, columns, bias):
    if b_scale_inv.dim() == 2 and not precisions.reads_blocks(storages.active_card()):
        # Blackwell has no such GEMM; Transformer Engine converts the scales to MX.
        a_scale_inv, b_scale_inv = (
            x.new_empty(precisions.mx_scales(x.shape[0], 4 * x.shape[1] // columns),
                        dtype=torch.float8_e8m0fnu) for x in (a, b))
    elif b_scale_inv.dim() == 2:
        b_scale_inv = b_scale_inv.t()
    torch._scaled_mm(a, b.t(), a_scale_inv, b_scale_inv, bias, out_dtype=out.dtype, out=out)


@kernel
def fp8_update(history, scale, scale_inv, dtype, margin, algo):
    history.mul_(1)  # one kernel for all tensors, as in Transformer Engine


@kernel
def adamw_(weights, gradients, exp_avg, exp_avg_sq, steps, lr, beta1, beta2, eps, weight_decay,
           skip):
    modeled.adamw(weights, gradients, exp_avg, exp_avg_sq)
