"""The fused kernels that CUDA would choose, where torch on meta tensors would run small ones."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from virtualgpu.core.cards.generations import generation
from virtualgpu.pytorch.mode import CudaGpu

aten = torch.ops.aten
enabled = torch.backends.cuda
HALF = (torch.float16, torch.bfloat16)
WIDEST, UNIT = 256, 8  # head dimensions that flash attention takes; others are padded to the unit
CUDNN_WIDEST = {(9, 0): 256}  # by compute capability; else:
CUDNN_USUAL = 128
FLASH_SINCE = 8  # compute capability
CUDNN_FIRST = ((9, 0), (10, 0))  # where torch prefers cuDNN's kernel


class Backend(Enum):
    """Kernels of scaled_dot_product_attention."""

    MATH, FLASH, EFFICIENT, CUDNN = range(4)  # as torch._fused_sdp_choice numbers them


def choose_backend(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor,
                   mask: Tensor | None = None, grouped: bool = False) -> Backend:
    """Return the kernel that ATen/native/transformers/cuda/sdp_utils.cpp chooses.

    Args:
        gpu: the virtual GPU.
        query: the queries, [batch, heads, tokens, width].
        key: the keys.
        value: the values.
        mask: the attention mask or bias.
        grouped: whether several heads of queries may share one of keys and values.

    Raises RuntimeError, as CUDA does, where no enabled kernel can take these tensors.
    """
    fits = {Backend.CUDNN: cudnn_fits(gpu, query, key, value, mask, grouped),
            Backend.FLASH: flash_fits(gpu, query, key, value, mask, grouped),
            Backend.EFFICIENT: efficient_fits(query, key, value),
            Backend.MATH: enabled.math_sdp_enabled()}
    order = [Backend.FLASH, Backend.EFFICIENT, Backend.MATH, Backend.CUDNN]
    if generation(gpu.card)[:2] in CUDNN_FIRST:
        order.insert(0, order.pop())
    for backend in order:
        if fits[backend]:
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def same_heads(query: Tensor, key: Tensor, grouped: bool) -> bool:
    """Return whether the numbers of query and key heads match; `grouped` allows fewer key heads."""
    return query.dim() == key.dim() == 4 and (
        query.shape[1] == key.shape[1] or (grouped and query.shape[1] % key.shape[1] == 0))


def cudnn_fits(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               grouped: bool) -> bool:
    """cuDNN takes 16 bits, heads of whole units, and no mask whose gradient is wanted."""
    widest = CUDNN_WIDEST.get(generation(gpu.card)[:2], CUDNN_USUAL)
    return (enabled.cudnn_sdp_enabled() and generation(gpu.card)[0] >= FLASH_SINCE
            and same_heads(query, key, grouped) and query.dtype in HALF and key.shape[2] > 1
            and all(one.shape[-1] <= widest and not one.shape[-1] % UNIT for one in (query, value))
            and (mask is None or not mask.requires_grad))


def flash_fits(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               grouped: bool) -> bool:
    """Flash attention takes 16 bits on Ampere or newer, heads up to 256 wide, and no mask."""
    return (enabled.flash_sdp_enabled() and generation(gpu.card)[0] >= FLASH_SINCE
            and same_heads(query, key, grouped) and mask is None and query.dtype in HALF
            and query.shape[-1] == value.shape[-1] <= WIDEST)


def efficient_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Heads must fill the 16 bytes of a load."""
    unit = 16 // query.element_size()
    return (enabled.mem_efficient_sdp_enabled() and same_heads(query, key, False)
            and query.dtype in (torch.float32, *HALF)
            and not query.shape[-1] % unit and not value.shape[-1] % unit)


def choose(gpu: CudaGpu):
    """scaled_dot_product_attention with CUDA's choice of kernel."""
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *,
                  scale=None, enable_gqa=False):
        chosen = choose_backend(gpu, query, key, value, attn_mask, enable_gqa)
        if chosen is Backend.FLASH:
            width = query.shape[-1]
            if width % UNIT:
                scale = width ** -0.5 if scale is None else scale
                query, key, value = (torch.nn.functional.pad(one, (0, -width % UNIT))
                                     for one in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale)[0]
            return out[..., :width] if width % UNIT else out
        if chosen is Backend.MATH:
            if enable_gqa:
                times = query.shape[-3] // key.shape[-3]
                key, value = (one.repeat_interleave(times, -3) for one in (key, value))
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
        bias = attn_mask
        if bias is not None and bias.dtype == torch.bool:
            numbers = {"dtype": query.dtype, "device": query.device}
            bias = torch.where(bias, torch.zeros((), **numbers),
                               torch.full((), float("-inf"), **numbers))
        save = torch.is_grad_enabled() and any(
            item.requires_grad for item in (query, key, value))
        if chosen is Backend.CUDNN:
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, bias, save, dropout_p, is_causal, False, scale=scale)[0]
        if bias is not None:
            bias = bias.expand(*query.shape[:-1], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, save, dropout_p, is_causal, scale=scale)[0]
    return attention


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """CUDA has a fused kernel, which keeps a mask of one byte per element."""
    if not train or p == 0:
        return x.alias() if hasattr(x, "alias") else x
    return torch.native_dropout(x, p, True)[0]
