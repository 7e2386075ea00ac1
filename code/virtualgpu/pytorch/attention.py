"""The fused kernels that CUDA would choose, where torch on meta tensors would run small ones."""

from __future__ import annotations

import torch
from torch import Tensor

from virtualgpu.core.cards.generations import generation
from virtualgpu.pytorch.mode import CudaGpu

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
WIDEST, UNIT = 256, 8  # head dimensions that flash attention takes
FLASH_SINCE = 8  # compute capability


def flash_fits(gpu: CudaGpu, query: Tensor, mask: Tensor | None) -> bool:
    """As ATen/native/transformers/cuda/sdp_utils.cpp decides: flash attention takes 16 bits on
    Ampere or newer, heads up to 256 wide, and no mask."""
    width = query.shape[-1]
    return (torch.backends.cuda.flash_sdp_enabled() and generation(gpu.card)[0] >= FLASH_SINCE
            and query.dim() == 4 and mask is None and query.dtype in HALF
            and width <= WIDEST and width % UNIT == 0)


def efficient_fits(query: Tensor, mask: Tensor | None) -> bool:
    return (torch.backends.cuda.mem_efficient_sdp_enabled() and query.dim() == 4
            and (mask is None or not mask.requires_grad))


def choose(gpu: CudaGpu):
    """scaled_dot_product_attention with CUDA's choice of kernel."""
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, *,
                  scale=None, enable_gqa=False):
        if enable_gqa and key.shape[-3] != query.shape[-3]:
            times = query.shape[-3] // key.shape[-3]
            key, value = (one.repeat_interleave(times, -3) for one in (key, value))
        if flash_fits(gpu, query, attn_mask):
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, scale=scale)[0]
        if efficient_fits(query, attn_mask):
            bias = attn_mask
            if bias is not None:
                if bias.dtype == torch.bool:
                    bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(
                        bias.logical_not(), float("-inf"))
                bias = bias.expand(*query.shape[:-1], key.shape[-2])
            save = torch.is_grad_enabled() and any(
                item.requires_grad for item in (query, key, value))
            return aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, save, dropout_p, is_causal, scale=scale)[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale)[0]
    return attention


def dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """CUDA has a fused kernel, which keeps a mask of one byte per element."""
    if not train or p == 0:
        return x.alias() if hasattr(x, "alias") else x
    return torch.native_dropout(x, p, True)[0]
