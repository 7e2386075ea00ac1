"""torch's own attention functions for any mask: flex_attention, and varlen_attn.

On a GPU, flex_attention is a Triton kernel that computes the blocks of the scores in which the mask
leaves anything; varlen_attn is FlashAttention over sequences of different lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as library

from virtualgpu.core.card import FLASH
from virtualgpu.core.errors import NoValue
from virtualgpu.core.gpu import program_line
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.packed import lengths, values_of
from virtualgpu.pytorch.visible import bypassed, hidden

run = torch.ops.virtualgpu
PROBES = 64  # queries and keys at which a mask is evaluated
NO_MASK = 1 << 30  # tokens in a block of the mask that flex_attention uses without one


def install(gpu: CudaGpu) -> None:
    """Model the two functions for tensors on this GPU."""
    # Compiled code runs eagerly here, but costs what the fused kernel does.
    library._WARNINGS_SHOWN.add("flex_attention_performance")
    operator = type(torch._higher_order_ops.flex_attention)
    original = operator.__call__
    masks = BlockMasks(gpu)

    def flex_attention(self, query: Tensor, key: Tensor, value: Tensor, score_mod: Callable,
                       block_mask: tuple, *options, **named):
        if hidden.depth or bypassed.depth or type(query) is not Tensor or not query.is_cuda:
            return original(self, query, key, value, score_mod, block_mask, *options, **named)
        pairs = masks.pairs(query.shape[2], key.shape[2], block_mask)
        out, logsumexp = BlockAttention.apply(query, key, value, pairs)
        return out, logsumexp / log(2), torch.empty(0, device=query.device)

    operator.__call__ = flex_attention
    gpu.handlers["torch_attn"] = varlen


class BlockAttention(torch.autograd.Function):
    """Attention of [batch, heads, tokens, width] over a number of pairs per head."""

    @staticmethod
    def forward(ctx, query, key, value, pairs):
        out, logsumexp = run.block_attention(query, key, value, pairs)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        ctx.pairs = pairs
        ctx.mark_non_differentiable(logsumexp)
        return out, logsumexp

    @staticmethod
    def backward(ctx, grad, _):
        return *run.block_attention_backward(grad, *ctx.saved_tensors, ctx.pairs), None


class BlockMasks:
    """The number of pairs of query and key that masks leave, each evaluated once."""

    def __init__(self, gpu: CudaGpu) -> None:
        self.gpu = gpu
        self.last: tuple[object, float] = (None, 1.0)  # the mask function, and its density

    def pairs(self, rows: int, columns: int, mask: tuple) -> int:
        """Return the pairs in the blocks of one head that the kernel computes.

        Args:
            rows: number of queries.
            columns: number of keys.
            mask: torch.nn.attention.flex_attention.BlockMask.as_tuple().
        """
        _, _, partial, _, full, *_, height, width, function = mask
        if height >= NO_MASK:
            return rows * columns
        counts = [values_of(self.gpu, one) for one in (partial, full) if one is not None]
        if all(count is not None for count in counts):
            heads = partial.shape[:-1].numel()
            blocks = sum(int(count.sum()) for count in counts)
            return min(blocks * height * width // heads, rows * columns)
        return int(rows * columns * self.density(rows, columns, function))

    def density(self, rows: int, columns: int, function: Callable) -> float:
        """Return the share of pairs that a mask leaves, evaluated at some of them.

        If the mask needs values that were not computed, half of the pairs are assumed.
        """
        if self.last[0] is function:
            return self.last[1]
        density, zero = None, torch.zeros((), dtype=torch.int64, device=self.gpu.device)
        queries, keys = (torch.arange(size // (2 * PROBES), size, max(size // PROBES, 1),
                                      device=self.gpu.device) for size in (rows, columns))
        try:
            seen = function(zero, zero, queries[:, None], keys[None, :])
            known = values_of(self.gpu, seen)
            density = None if known is None else known.float().mean().item()
        except (NoValue, RuntimeError, TypeError, ValueError, IndexError):
            pass
        if density is None:
            self.gpu.assumptions.note_here("the mask of flex_attention keeps half of the pairs of "
                                           "query and key, like a causal mask")
            density = 0.5
        else:
            self.gpu.assumptions.note_here(
                f"the mask of flex_attention keeps {density:.0%} of the pairs of query and key, "
                f"as it does at {PROBES} x {PROBES} of them")
        self.last = function, density
        return density


def varlen(gpu: CudaGpu, func: torch._ops.OpOverload, args: Sequence, kwargs: dict) -> object:
    """Run an operation of torch.nn.attention.varlen."""
    given = {item.name: item.default_value for item in func._schema.arguments}
    given |= dict(zip(given, args, strict=False)) | kwargs
    name = func._schema.name.partition("::")[2]
    if name == "_varlen_attn_out":
        raise NoValue(f"{program_line()}: varlen_attn_out is not modeled on virtual GPUs; "
                      "call varlen_attn instead")
    for option in ("seqused_k", "block_table"):
        if given.get(option) is not None:
            raise NoValue(f"{program_line()}: varlen_attn({option}=..) is not modeled on virtual "
                          "GPUs; call it without that argument")
    query, key, value = given["query"], given["key"], given["value"]
    starts, key_starts = given["cu_seq_q"], given["cu_seq_k"]
    rows = lengths(gpu, starts, query.shape[0])
    columns = rows if key_starts is None else lengths(gpu, key_starts, key.shape[0])
    window = list(given["window_size"] or (-1, -1))
    if given["is_causal"]:
        window[1] = 0
    scale = query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    options = rows, columns, window, float(scale), 0.0, 0.0, FLASH
    if name.endswith("backward"):
        saved = given["grad_out"], query, key, value, given["out"], given["lse"]
        return gpu.dispatch(run.packed_attention_backward.default, (*saved, *options), {})
    state = gpu.dispatch(torch.ops.aten.empty.memory_format, ([2],),
                         {"dtype": torch.uint64, "device": gpu.device})
    return *gpu.dispatch(run.packed_attention.default, (query, key, value, *options), {}), state
