"""Attention over sequences of any length: what flash_attn, xformers, and torch's own flexible
attention functions run on a virtual GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import virtualgpu.core.kernels  # noqa: F401  defines operations
from virtualgpu.core.card import FLASH, generation
from virtualgpu.core.storages import active_card
from virtualgpu.pytorch.attention import FLASH_MAX_WIDTH, FLASH_MIN_MAJOR, HALF
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import hidden

run = torch.ops.virtualgpu
UNLIMITED = (-1, -1)


class PackedAttention(torch.autograd.Function):
    """One fused kernel forward and one backward, which recomputes the scores."""

    @staticmethod
    def forward(ctx, query, key, value, *options):
        out, logsumexp = run.packed_attention(query, key, value, *options)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.options = options
        ctx.mark_non_differentiable(logsumexp)
        return out, logsumexp

    @staticmethod
    def backward(ctx, grad, _):
        found = run.packed_attention_backward(grad, *ctx.saved_tensors, *ctx.options)
        return *found, *[None] * len(ctx.options)


def attend(query: Tensor, key: Tensor, value: Tensor, rows: Sequence[int], columns: Sequence[int],
           window: Sequence[int] = UNLIMITED, *, scale: float | None = None, softcap: float = 0.0,
           dropout: float = 0.0, kernel: str = FLASH) -> tuple[Tensor, Tensor]:
    """Return the attention's output and its log-sum-exp.

    Args:
        query: [tokens, heads, width] with the sequences one after the other, or [batch, tokens,
            heads, width]; key and value may have fewer heads and other tokens.
        key: see query.
        value: see query.
        rows: number of queries of each sequence.
        columns: number of keys of each sequence.
        window: how many keys before and after its own position a query sees; -1: all of them.
            The last query is aligned with the last key.
        scale: of the scores; None: 1 / sqrt(width).
        softcap: bound of the scores, by tanh; 0: none.
        dropout: probability of dropout.
        kernel: FLASH, CUDNN, or EFFICIENT.

    Raises:
        RuntimeError: the kernel does not run on this GPU, or not with these tensors.
    """
    if kernel == FLASH:
        check_flash(query)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return PackedAttention.apply(query, key, value, list(rows), list(columns), list(window),
                                 float(scale), float(softcap), float(dropout), kernel)


def check_flash(query: Tensor) -> None:
    """Raise RuntimeError, with FlashAttention's own words, for what its kernel cannot run."""
    if not query.is_cuda:
        raise RuntimeError("FlashAttention only supports CUDA tensors, but the query is on "
                           f"{query.device}")
    if generation(active_card())[0] < FLASH_MIN_MAJOR:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")
    if query.dtype not in HALF:
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if query.shape[-1] > FLASH_MAX_WIDTH:
        raise RuntimeError("FlashAttention forward only supports head dimension at most 256")


def active_gpu() -> CudaGpu:
    """Return the virtual GPU of this process. Raises RuntimeError if there is none."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        if isinstance(mode, CudaGpu):
            return mode
    raise RuntimeError("no virtual GPU is active; run the program with virtualrun")


def lengths(gpu: CudaGpu, starts: Tensor, total: int) -> list[int]:
    """Return the lengths of sequences that are stored one after the other.

    Args:
        gpu: the virtual GPU.
        starts: cumulative lengths, [sequences + 1]. If their values were not computed, all
            sequences are assumed to be equally long.
        total: tokens in all sequences.
    """
    count = starts.numel() - 1
    known = values_of(gpu, starts)
    if known is not None:
        return known.diff().tolist()
    gpu.assumptions.note_here(f"the {count} sequences of this call are equally long")
    return [total // count + (index < total % count) for index in range(count)]


def values_of(gpu: CudaGpu, tensor: Tensor) -> Tensor | None:
    """Return a tensor's values without waiting for the GPU, as a kernel reads them, or None."""
    with hidden, torch._C._DisableTorchDispatch():
        if not tensor.is_meta:
            return tensor
        return gpu.values.value(tensor).clone() if gpu.values.known(tensor) else None
