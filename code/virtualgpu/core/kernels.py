"""Fused kernels: operations that are one kernel on GPUs but several in torch on meta tensors.

Each saves for the backward pass exactly what the modeled kernel saves. They have shapes and costs
(rules), and torch has no kernel for tensors on other devices. They model Megatron-LM's fused
kernels (scale-mask-softmax in 16 bits, bias-dropout-add, squared ReLU, SwiGLU, rotary embeddings),
PyTorch's dropout, FlashAttention, and Apex's Adam; and those of packages that need CUDA
(packages/), whose small tensors have values (pytorch/package_values.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from virtualgpu.core.plan import changed_argument, changed_tensor, make_tensors
from virtualgpu.core.rules.results import new_tensors

SIGNATURES = (
    "masked_softmax(Tensor scores) -> Tensor",
    "masked_softmax_backward(Tensor(a!) grad, Tensor out) -> Tensor(a!)",
    "dropout(Tensor x, Tensor(a!) keep) -> Tensor",
    "dropout_backward(Tensor grad, Tensor keep) -> Tensor",
    "dropout_add(Tensor x, Tensor residual, Tensor(a!) keep) -> Tensor",
    "flash_attention(Tensor query, Tensor key, Tensor value) -> (Tensor, Tensor)",
    "flash_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp) -> (Tensor, Tensor, Tensor)",
    "squared_relu(Tensor x) -> Tensor",
    "squared_relu_backward(Tensor grad, Tensor x) -> Tensor",
    "swiglu(Tensor x) -> Tensor",
    "swiglu_backward(Tensor grad, Tensor x) -> Tensor",
    "rotary(Tensor x) -> Tensor",
    "adamw(Tensor(a!) weights, Tensor gradients, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq) -> ()",
    # Attention over sequences of any length: rows and columns are those of each sequence's score
    # matrix, and window is how many tokens before and after its own a query sees (-1: all).
    "packed_attention(Tensor query, Tensor key, Tensor value, int[] rows, int[] columns, "
    "int[] window, float scale, float softcap, float dropout, str kernel) -> (Tensor, Tensor)",
    "packed_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp, int[] rows, int[] columns, int[] window, float scale, float softcap, "
    "float dropout, str kernel) -> (Tensor, Tensor, Tensor)",
    # Attention of [batch, heads, tokens, width] that computes a part of all pairs of query and key,
    # in blocks: torch's flex_attention.
    "block_attention(Tensor query, Tensor key, Tensor value, int pairs) -> (Tensor, Tensor)",
    "block_attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor out, "
    "Tensor logsumexp, int pairs) -> (Tensor, Tensor, Tensor)",
    # Rotary embedding by tables [s, width/2] of the first `width` elements of x [.., s, n, d].
    "rotate_pairs(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor",
    "rotate_pairs_(Tensor(a!) x, Tensor cos, Tensor sin, bool interleaved, bool inverse) "
    "-> Tensor(a!)",
    "cast_transpose(Tensor x, Tensor scale, Tensor(a!) amax, ScalarType dtype) "
    "-> (Tensor, Tensor)",
    # A GEMM in 16 bits that adds a [m, k] @ b [k, n] to a buffer, which may be in fp32.
    "add_product(Tensor(a!) total, Tensor a, Tensor b) -> Tensor(a!)",
)
library = torch.library.Library("virtualgpu", "DEF")
run = torch.ops.virtualgpu


def _meta(name: str, *args: torch.Tensor) -> object:
    """Return an operation's result on meta tensors, by its result rule."""
    func = getattr(run, name).default
    changed = changed_argument(func, args, {})
    if changed is not None:
        return changed_tensor(args, {}, changed)
    specs = new_tensors(func, args, {})
    if specs is None:
        shapes = ", ".join(str(list(one.shape)) for one in args if isinstance(one, torch.Tensor))
        raise RuntimeError(f"virtualgpu.{name}: operands or lengths do not fit together: {shapes}")
    return make_tensors(specs)


for signature in SIGNATURES:
    operation, _, _ = signature.partition("(")
    library.define(signature)
    library.impl(operation, partial(_meta, operation), "Meta")


def _rms_norm(x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None,
              eps: float | None = None) -> object:
    """Return the result of aten._fused_rms_norm on meta tensors, where torch would run some twenty
    small operations. Raises RuntimeError if the shapes do not match."""
    specs = new_tensors(torch.ops.aten._fused_rms_norm.default, (x, normalized_shape, weight, eps),
                        {})
    if specs is None:
        raise RuntimeError(f"RMSNorm over {list(normalized_shape)}: the input is {list(x.shape)}, "
                           f"the weight {None if weight is None else list(weight.shape)}")
    return make_tensors(specs)


def _scaled_mm_out(*args: object, out: torch.Tensor, **_: object) -> torch.Tensor:
    """Return `out`: torch has no meta kernel for a scaled GEMM that writes an existing tensor."""
    return out


# Library.impl refuses a meta kernel for an operation that torch can decompose, but CUDA does not
# decompose RMSNorm.
overrides = torch.library.Library("aten", "IMPL", "Meta")
overrides.m.impl("_fused_rms_norm", "Meta", _rms_norm, False)
overrides.impl("_scaled_mm.out", _scaled_mm_out)


class _MaskedSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, scores):
        out = run.masked_softmax(scores)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, grad):
        return run.masked_softmax_backward(grad, *ctx.saved_tensors)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keep):
        ctx.save_for_backward(keep)
        return run.dropout(x, keep)

    @staticmethod
    def backward(ctx, grad):
        return run.dropout_backward(grad, *ctx.saved_tensors), None


class _DropoutAdd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, keep):
        ctx.save_for_backward(keep)
        return run.dropout_add(x, residual, keep)

    @staticmethod
    def backward(ctx, grad):
        return run.dropout_backward(grad, *ctx.saved_tensors), grad, None


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, query, key, value):
        out, logsumexp = run.flash_attention(query, key, value)
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx, grad):
        return run.flash_attention_backward(grad, *ctx.saved_tensors)


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return run.squared_relu(x)

    @staticmethod
    def backward(ctx, grad):
        return run.squared_relu_backward(grad, *ctx.saved_tensors)


class _SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return run.swiglu(x)

    @staticmethod
    def backward(ctx, grad):
        return run.swiglu_backward(grad, *ctx.saved_tensors)


class _Rotary(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return run.rotary(x)

    @staticmethod
    def backward(ctx, grad):
        return run.rotary(grad)  # by the negative angles


class _AddBias(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, grad.flatten(0, -2).sum(0)


def add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Return x [.., h] itself, at no cost: the next kernel adds bias [h], as in Megatron-LM's
    bias-dropout-add."""
    return _AddBias.apply(x, bias)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
              keep: torch.Tensor | None) -> torch.Tensor:
    """Compute causal attention with materialized scores.

    Args:
        query: [s, b*heads, d]; key and value have the same shape.
        key: see query.
        value: see query.
        keep: dropout mask of the probabilities, bool [b*heads, s, s], or None for no dropout.

    Returns:
        The attention's output [s, b*heads, d].
    """
    scores = torch.bmm(query.transpose(0, 1), key.permute(1, 2, 0))
    probabilities = _MaskedSoftmax.apply(scores)
    if keep is not None:
        probabilities = dropout(probabilities, keep)
    return torch.bmm(probabilities, value.transpose(0, 1)).transpose(0, 1)


def flash_attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute fused causal attention of query, key, and value [s, b*heads, d]; return query's
    shape.

    Keys and values may have fewer heads (grouped-query attention).
    """
    return _FlashAttention.apply(query, key, value)


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """Return max(x, 0)^2 of x [..] in one kernel."""
    return _SquaredRelu.apply(x)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """Return SiLU(gate) * up [.., f] of x [.., 2f] in one kernel."""
    return _SwiGLU.apply(x)


def rotary(x: torch.Tensor) -> torch.Tensor:
    """Apply rotary embeddings to x [s, n, d] in one kernel, which does not save x."""
    return _Rotary.apply(x)


def dropout(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Apply dropout to x [..]; keep, bool [..], is the mask that the kernel draws and saves."""
    return _Dropout.apply(x, keep)


def dropout_add(x: torch.Tensor, residual: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Return residual + dropout(x), all [..], in one kernel; keep is the mask, bool [..]."""
    return _DropoutAdd.apply(x, residual, keep)


def adamw(weights: torch.Tensor, gradients: torch.Tensor, exp_avg: torch.Tensor,
          exp_avg_sq: torch.Tensor) -> None:
    """Take one AdamW step in place on flat buffers [n]."""
    run.adamw(weights, gradients, exp_avg, exp_avg_sq)
