"""Choose the fused kernels that CUDA would choose; torch on meta tensors would run small ones."""

from __future__ import annotations

import os
from enum import Enum

import torch
from torch import Tensor

from virtualgpu.core.card import generation
from virtualgpu.pytorch.mode import CudaGpu

aten = torch.ops.aten
enabled = torch.backends.cuda
HALF = (torch.float16, torch.bfloat16)
FLASH_MAX_WIDTH, WIDTH_UNIT = 256, 8  # flash attention pads head dimensions to multiples of 8
CUDNN_MAX_WIDTH = {(9, 0): 256}  # by compute capability; otherwise:
CUDNN_DEFAULT_MAX_WIDTH = 128
FLASH_MIN_MAJOR = 8  # compute capability
CUDNN_PREFERRED = ((9, 0), (10, 0))  # where torch prefers cuDNN's kernel


class AttentionBackend(Enum):
    """Kernels of scaled_dot_product_attention."""

    MATH, FLASH, EFFICIENT, CUDNN = range(4)  # as torch._fused_sdp_choice numbers them


DEFAULT_ORDER = [AttentionBackend.FLASH, AttentionBackend.EFFICIENT, AttentionBackend.MATH,
                 AttentionBackend.CUDNN]


def choose_backend(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor,
                   mask: Tensor | None = None, grouped: bool = False) -> AttentionBackend:
    """Return the kernel that ATen/native/transformers/cuda/sdp_utils.cpp chooses.

    Args:
        gpu: the virtual GPU.
        query: the queries, [batch, heads, tokens, width].
        mask: the attention mask or bias.
        grouped: whether query heads may share key and value heads (grouped-query attention).

    Raises:
        RuntimeError: no enabled kernel accepts these tensors; the message is CUDA's.
    """
    fits = {AttentionBackend.CUDNN: cudnn_fits(gpu, query, key, value, mask, grouped),
            AttentionBackend.FLASH: flash_fits(gpu, query, key, value, mask, grouped),
            AttentionBackend.EFFICIENT: efficient_fits(query, key, value),
            AttentionBackend.MATH: enabled.math_sdp_enabled()}
    for backend in priority_order(gpu):
        if fits[backend]:
            return backend
    raise RuntimeError("No available kernel. Aborting execution.")


def priority_order(gpu: CudaGpu) -> list[AttentionBackend]:
    """Return the kernels from the first choice to the last, as sdp_utils.cpp orders them.

    A program's own order (`sdpa_kernel(..., set_priority=True)`) comes first. Otherwise, cuDNN is
    the first choice on some GPUs, unless TORCH_CUDNN_SDPA_PREFERRED=0.
    """
    order = [AttentionBackend(number) for number in torch._C._get_sdp_priority_order()
             if number <= AttentionBackend.CUDNN.value]
    if (order == DEFAULT_ORDER and generation(gpu.card)[:2] in CUDNN_PREFERRED
            and os.environ.get("TORCH_CUDNN_SDPA_PREFERRED") != "0"):
        order.insert(0, order.pop())
    return order


def same_heads(query: Tensor, key: Tensor, grouped: bool) -> bool:
    """Return whether the numbers of query and key heads match; `grouped` allows fewer key heads."""
    return query.dim() == key.dim() == 4 and (
        query.shape[1] == key.shape[1] or (grouped and query.shape[1] % key.shape[1] == 0))


def cudnn_fits(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               grouped: bool) -> bool:
    """cuDNN needs 16 bits, head dimensions divisible by 8, and no mask that requires a gradient."""
    widest = CUDNN_MAX_WIDTH.get(generation(gpu.card)[:2], CUDNN_DEFAULT_MAX_WIDTH)
    return (gpu.has_cudnn_attention and enabled.cudnn_sdp_enabled()
            and generation(gpu.card)[0] >= FLASH_MIN_MAJOR
            and same_heads(query, key, grouped) and query.dtype in HALF and key.shape[2] > 1
            and all(one.shape[-1] <= widest and not one.shape[-1] % WIDTH_UNIT
                    for one in (query, value))
            and (mask is None or not mask.requires_grad))


def flash_fits(gpu: CudaGpu, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None,
               grouped: bool) -> bool:
    """Flash attention needs 16 bits, Ampere or newer, head dimensions up to 256, and no mask."""
    return (enabled.flash_sdp_enabled() and generation(gpu.card)[0] >= FLASH_MIN_MAJOR
            and same_heads(query, key, grouped) and mask is None and query.dtype in HALF
            and query.shape[-1] == value.shape[-1] <= FLASH_MAX_WIDTH)


def efficient_fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Memory-efficient attention needs head dimensions that are multiples of 16 bytes."""
    unit = 16 // query.element_size()
    return (enabled.mem_efficient_sdp_enabled() and same_heads(query, key, False)
            and query.dtype in (torch.float32, *HALF)
            and not query.shape[-1] % unit and not value.shape[-1] % unit)


def choose(gpu: CudaGpu):
    """Return scaled_dot_product_attention with CUDA's choice of kernel."""
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *,
                  scale=None, enable_gqa=False):
        chosen = choose_backend(gpu, query, key, value, attn_mask, enable_gqa)
        if chosen is AttentionBackend.FLASH:
            width = query.shape[-1]
            if width % WIDTH_UNIT:
                scale = width ** -0.5 if scale is None else scale
                query, key, value = (torch.nn.functional.pad(one, (0, -width % WIDTH_UNIT))
                                     for one in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale)[0]
            return out[..., :width] if width % WIDTH_UNIT else out
        if chosen is AttentionBackend.MATH:
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
        if chosen is AttentionBackend.CUDNN:
            return aten._scaled_dot_product_cudnn_attention(
                query, key, value, bias, save, dropout_p, is_causal, False, scale=scale)[0]
        if bias is not None:
            bias = bias.expand(*query.shape[:-1], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, save, dropout_p, is_causal, scale=scale)[0]
    return attention


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Apply dropout with CUDA's fused kernel, which saves a mask of one byte per element."""
    if not train or p == 0:
        return x.alias() if hasattr(x, "alias") else x
    return torch.native_dropout(x, p, True)[0]
