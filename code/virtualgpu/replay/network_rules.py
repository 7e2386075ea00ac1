"""Results of the fused kernels of neural networks: attention, losses, and normalizations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.replay.dtypes import accumulated, promoted
from virtualgpu.replay.result_rules import (
    FLOAT,
    LONG,
    Arguments,
    Result,
    axis,
    broadcast,
    expands,
    like,
    matching,
    optional,
    require,
    rule,
    same_dtype,
)

# ---- attention


def _heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [batch, heads, sequence, width]."""
    matching(query.dim() == key.dim() == value.dim() == 4
               and key.shape[:3] == value.shape[:3] and key.shape[0] == query.shape[0]
               and key.shape[3] == query.shape[3] and key.shape[1] > 0
               and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    same_dtype(query, key, value)


SDPA = "_scaled_dot_product_"


@rule(f"{SDPA}flash_attention", f"{SDPA}efficient_attention", f"{SDPA}cudnn_attention")
def _attention(a: Arguments) -> list[Result]:
    _heads_match(a.query, a.key, a.value)
    batch, heads, rows, width = a.query.shape
    out = (batch, heads, rows, a.value.shape[3])
    number = ((), LONG)
    if "flash" in a.name:
        mask: tuple[int, ...] = (0,)
        if a.return_debug_mask:
            block = 128 if width > 64 else 256
            columns = -(-rows // block)
            columns = 128 if a.key.shape[2] <= 128 else 256 if a.key.shape[2] <= 256 else columns
            mask = (batch, heads, rows, columns)
        return [(a.query.shape, a.query.dtype), ((batch, heads, rows), FLOAT),
                ((2,), torch.uint64), ((), torch.uint64), (mask, a.query.dtype)]
    if "cudnn" in a.name:
        return [(out, a.query.dtype), ((batch, heads, rows, 1), FLOAT), number, number]
    padded = -(-rows // 32) * 32 if a.compute_log_sumexp else 0
    return [(out, a.query.dtype), ((batch, heads, padded), FLOAT), number, number]


@rule(f"{SDPA}flash_attention_backward", f"{SDPA}efficient_attention_backward",
      f"{SDPA}cudnn_attention_backward")
def _attention_backward(a: Arguments) -> list[Result]:
    grad = a.grad_out_ if hasattr(a, "grad_out_") else a.grad_out
    _heads_match(a.query, a.key, a.value)
    matching(grad.shape == (*a.query.shape[:3], a.value.shape[3]), grad=grad, query=a.query,
               value=a.value)
    found = [like(a.query), like(a.key), like(a.value)]
    bias = getattr(a, "attn_bias", None)
    if "efficient" in a.name and bias is not None and a.grad_input_mask[3]:
        found.append(like(bias))
    return found


def _fused_heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [sequence, heads, width]; keys may have fewer heads.
    """
    matching(query.dim() == key.dim() == 3 and key.shape == value.shape
               and query.shape[::2] == key.shape[::2] and key.shape[1] > 0
               and query.shape[1] % key.shape[1] == 0, query=query, key=key, value=value)
    same_dtype(query, key, value)


@rule("virtualgpu.flash_attention")
def _fused_attention(a: Arguments) -> list[Result]:
    _fused_heads_match(a.query, a.key, a.value)
    return [like(a.query), ((a.query.shape[1], a.query.shape[0]), FLOAT)]


@rule("virtualgpu.flash_attention_backward")
def _fused_attention_backward(a: Arguments) -> list[Result]:
    _fused_heads_match(a.query, a.key, a.value)
    matching(a.grad.numel() == a.query.numel(), grad=a.grad, query=a.query)
    return [like(a.query), like(a.key), like(a.value)]


# ---- fused kernels of the trainer (core/kernels.py)


@rule("virtualgpu.masked_softmax", "virtualgpu.squared_relu", "virtualgpu.rotary",
      "virtualgpu.dropout", "virtualgpu.dropout_add", "virtualgpu.squared_relu_backward",
      "virtualgpu.swiglu_backward", "virtualgpu.dropout_backward")
def _fused(a: Arguments) -> list[Result]:
    shown = {"dropout_add": "residual", "dropout_backward": "grad"}.get(a.name)
    return [like(getattr(a, shown or ("x" if hasattr(a, "x") else "scores")))]


@rule("virtualgpu.swiglu")
def _swiglu(a: Arguments) -> list[Result]:
    return [((*a.x.shape[:-1], a.x.shape[-1] // 2), a.x.dtype)]


@rule("virtualgpu.masked_softmax_backward")
def _masked_softmax_backward(a: Arguments) -> list[Result]:
    matching(a.grad.shape == a.out.shape, grad=a.grad, out=a.out)
    return []


@rule("virtualgpu.adamw")
def _adamw(a: Arguments) -> list[Result]:
    for item in (a.gradients, a.exp_avg, a.exp_avg_sq):
        matching(item.numel() == a.weights.numel(), weights=a.weights, other=item)
    return []


# ---- softmax and losses


@rule("_softmax", "_log_softmax", "_safe_softmax", "_masked_softmax")
def _softmax(a: Arguments) -> list[Result]:
    dim = getattr(a, "dim", None)
    axis(-1 if dim is None else dim, a.self.dim())
    half_to_float = getattr(a, "half_to_float", False)
    return [like(a.self, FLOAT if half_to_float else getattr(a, "dtype", None))]


@rule("_softmax_backward_data", "_log_softmax_backward_data", "_masked_softmax_backward")
def _softmax_backward(a: Arguments) -> list[Result]:
    matching(a.grad_output.shape == a.output.shape, grad=a.grad_output, output=a.output)
    return [like(a.grad_output, getattr(a, "input_dtype", None))]


@rule("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
      "binary_cross_entropy_with_logits", "soft_margin_loss")
def _loss(a: Arguments) -> list[Result]:
    shape = broadcast(a.self.shape, a.target.shape)
    dtype = promoted([a.self, a.target]) if a.name in ("mse_loss", "smooth_l1_loss", "huber_loss",
                                                       "binary_cross_entropy_with_logits",
                                                       "soft_margin_loss") else a.self.dtype
    return [(() if a.reduction else shape, dtype)]


@rule("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward",
      "binary_cross_entropy_backward", "soft_margin_loss_backward")
def _loss_backward(a: Arguments) -> list[Result]:
    shape = broadcast(a.self.shape, a.target.shape)
    expands(a.grad_output.shape, shape)
    dtype = a.self.dtype if a.name.startswith("binary") else promoted([a.self, a.target])
    return [(shape, dtype)]


@rule("multi_margin_loss", "multilabel_margin_loss_forward")
def _margin_loss(a: Arguments) -> list[Result]:
    x = a.self
    rows = x.shape[:1] if x.dim() > 1 else ()
    loss = (() if a.reduction else rows, x.dtype)
    return [loss, (a.target.shape, x.dtype)][:1 if a.name == "multi_margin_loss" else 2]


@rule("nll_loss_forward", "nll_loss2d_forward")
def _nll(a: Arguments) -> list[Result]:
    x, target = a.self, a.target
    at = x.dim() - 1 if "2d" not in a.name else 1
    matching(x.dim() in (1, 2, 4) and target.shape == (*x.shape[:at], *x.shape[at + 1:]),
               input=x, target=target)
    whole = a.reduction == 0 and x.dim() > 1
    return [(target.shape if whole else (), x.dtype), ((), x.dtype)]


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(a: Arguments) -> list[Result]:
    matching(a.target.numel() * a.self.shape[-1 if "2d" not in a.name else 1]
               == a.self.numel(), input=a.self, target=a.target)
    return [like(a.self)]


# ---- normalization and dropout


def _inner(x: Operand, normalized: Sequence[int], *weights: Operand | None) -> tuple[int, ...]:
    """Check the last dimensions, over which x is normalized; return the statistics' shape."""
    outer = x.dim() - len(normalized)
    require(outer >= 0 and x.shape[max(outer, 0):] == tuple(normalized),
            f"a normalization over {list(normalized)}", input=x)
    for weight in weights:
        optional(weight, normalized)
    return (*x.shape[:outer], *([1] * len(normalized)))


@rule("native_layer_norm", "_fused_rms_norm")
def _layer_norm(a: Arguments) -> list[Result]:
    outer = _inner(a.input, a.normalized_shape, a.weight, getattr(a, "bias", None))
    statistics = (outer, accumulated(a.input.dtype))
    return [like(a.input), *([statistics] * (2 if a.name == "native_layer_norm" else 1))]


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(a: Arguments) -> list[Result]:
    _inner(a.input, a.normalized_shape, a.weight)
    matching(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    normal = tuple(a.normalized_shape)
    found = [like(a.input), (normal, (a.weight or a.input).dtype),
             (normal, (a.weight or a.input).dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=False) if wanted]


@rule("native_group_norm")
def _group_norm(a: Arguments) -> list[Result]:
    matching(a.input.numel() == a.N * a.C * a.HxW, input=a.input)
    if a.group < 1 or a.C % a.group:
        raise ValueError(f"{a.C} channels in {a.group} groups")
    return [like(a.input), *([((a.N, a.group), a.input.dtype)] * 2)]


@rule("native_group_norm_backward")
def _group_norm_backward(a: Arguments) -> list[Result]:
    matching(a.grad_out.shape == a.input.shape and a.input.numel() == a.N * a.C * a.HxW,
             grad=a.grad_out, input=a.input)
    found = [like(a.input), ((a.C,), a.input.dtype), ((a.C,), a.input.dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]


@rule("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def _batch_norm(a: Arguments) -> list[Result]:
    channels = a.input.shape[1:2]
    optional(a.weight, channels)
    kept = channels if hasattr(a, "training") else (0,)
    return [like(a.input), *([(kept, accumulated(a.input.dtype))] * 2)]


@rule("native_batch_norm_backward")
def _batch_norm_backward(a: Arguments) -> list[Result]:
    matching(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    channels = (a.input.shape[1:2], (a.weight or a.input).dtype)
    return [one for one, wanted in zip([like(a.input), channels, channels], a.output_mask,
                                       strict=True) if wanted]


@rule("native_dropout")
def _dropout(a: Arguments) -> list[Result]:
    return [like(a.input), like(a.input, torch.bool)]
