"""Reductions, softmax, normalizations, losses, and poolings: kernels that read rows or windows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.core.operand import Operand, moved, tensors
from virtualgpu.core.rules.returns import (
    FLOAT,
    LONG,
    Arguments,
    Result,
    accumulated,
    axis,
    broadcast,
    expands,
    floating,
    like,
    matching,
    one_per_dimension,
    optional,
    promoted,
    real,
    reduced,
    replaced,
    require,
    returns,
    summed,
    window_positions,
)
from virtualgpu.core.rules.work import CostRule, KernelWork, read_and_write, two_passes

# ---- costs


def masked_softmax(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of a masked softmax: one kernel in 16 bits. In fp32, where Megatron-LM of 2021 has no
    such kernel, masking is a separate pass."""
    plain = read_and_write(arguments, results)
    if arguments[0].dtype != torch.float32:
        return plain
    return KernelWork(2 * plain.bytes, kernels=2)


def rms_norm_backward(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Cost of _fused_rms_norm_backward(grad, input, shape, rstd, weight, mask): one kernel for the
    gradient of the input and one for the weight's, each of which reads grad, input, and rstd."""
    grad, x, _, rstd, weight, mask = arguments
    for_input, for_weight = map(bool, mask)
    read = (for_input + for_weight) * sum(map(moved, (grad, x, rstd)))
    read += for_input * sum(map(moved, tensors([weight])))
    return KernelWork(read + sum(map(moved, results)), kernels=for_input + for_weight)


def group_norm(activations: int, kernels: int) -> CostRule:
    """Cost of group normalization: the statistics, or their gradients, take a pass of their own
    over the activations (ATen/native/cuda/group_norm_kernel.cu).

    Args:
        activations: number of leading arguments that are as large as the activations.
        kernels: number of launches, with a weight and a bias.
    """
    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        statistics = sum(map(moved, arguments[:activations]))
        return KernelWork(read_and_write(arguments, results).bytes + statistics, kernels)
    return rule


def batch_norm(activations: int, training: int) -> CostRule:
    """Cost of a batch normalization: with the batch's statistics, these are a kernel of their own,
    which reads the activations once more (ATen/native/cuda/Normalization.cuh).

    Args:
        activations: number of leading arguments that are as large as the activations.
        training: position of the argument that says whether the batch's statistics are used.
    """
    def rule(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
        work = read_and_write(arguments, results)
        if not arguments[training]:
            return work
        return KernelWork(work.bytes + sum(map(moved, arguments[:activations])), 2)
    return rule


def loss(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """mse_loss(input, target, .., reduction) and its like: one kernel, then the reduction."""
    return _reduced(sum(map(moved, tensors(arguments))), 1, arguments[0], results[0])


def loss_backward(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """Count mse_loss_backward(grad, input, target, ..) and its like: the result is filled with
    zeros, and then computed."""
    work = read_and_write(arguments, results)
    return work._replace(bytes=work.bytes + sum(map(moved, results)), kernels=2)


def with_logits(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """binary_cross_entropy_with_logits(input, target, weight, pos_weight, reduction).

    Its kernels are log_sigmoid and 1 - target, which read one operand, and an in-place
    multiplication and subtraction, which read two. `weight` is one more in-place multiplication.
    `pos_weight` is decremented, multiplied by the target, incremented in place, and multiplied in
    place.
    """
    weight, pos_weight = (*arguments[2:4], None, None)[:2]
    weighted, positive = weight is not None, pos_weight is not None
    passes = 2 + 2 + 3 + 2 + 3 * weighted + (2 + 2 + 3) * positive
    size = passes * moved(arguments[0]) + 3 * sum(map(moved, tensors([pos_weight])))
    return _reduced(size, 4 + weighted + 4 * positive, arguments[0], results[0])


def _reduced(size: int, kernels: int, given: Operand, result: Operand) -> KernelWork:
    """Cost of a loss: its elementwise kernels and, if it is reduced, a reduction in two kernels, as
    in aten.sum.

    Args:
        size: bytes that the elementwise kernels move, without the last one's result.
        kernels: number of elementwise kernels.
        given: the input.
        result: the loss.
    """
    if result.shape == given.shape:
        return KernelWork(size + moved(result), kernels)
    return KernelWork(size + 2 * moved(given) + moved(result), kernels + 2)


def nll_loss(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """nll_loss_forward(input, target, weight, ..): reads one element of the input per target."""
    selected = arguments[1].numel() * arguments[0].element_size()
    return KernelWork(selected + sum(map(moved, tensors(arguments[1:]))) + sum(map(moved, results)))


def nll_loss_backward(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """nll_loss_backward(grad, input, target, weight, ..): zeroes the result and writes one element
    per target; does not read the input."""
    grad, given, *others = arguments
    selected = arguments[2].numel() * given.element_size()
    read = moved(grad) + sum(map(moved, tensors(others)))
    return KernelWork(read + sum(map(moved, results)) + selected, kernels=2)


LOSSES = ("mse_loss", "smooth_l1_loss", "huber_loss")
COSTS: dict[str, CostRule] = {
    **dict.fromkeys((
        "aten.sum", "aten.linalg_vector_norm", "aten.native_layer_norm_backward", "aten.prod",
        "aten.var_mean"), two_passes),
    # An estimate: CUDA sorts long rows in more passes, by the width of the type.
    **dict.fromkeys(("aten.cumsum", "aten.sort", "aten.topk"), two_passes),
    # Estimates: one kernel that reads every operand once and writes every result once.
    # Normalizations of rows, whose statistics take a pass of their own where a row does not fit on
    # the chip, can cost more.
    **dict.fromkeys((
        "aten.mean", "aten.amax", "aten.amin", "aten.any", "aten.all", "aten.max", "aten.min",
        "aten.argmax", "aten.std", "aten.var", "aten.logsumexp", "aten.histc", "aten._softmax",
        "aten._softmax_backward_data", "aten._safe_softmax", "aten._log_softmax",
        "aten._log_softmax_backward_data", "aten.native_layer_norm", "aten._fused_rms_norm",
        "aten.avg_pool2d", "aten.avg_pool2d_backward", "aten.max_pool2d_with_indices",
        "aten.max_pool2d_with_indices_backward", "aten._adaptive_avg_pool2d",
        "aten._adaptive_avg_pool2d_backward", "aten.binary_cross_entropy_backward"),
        read_and_write),
    "virtualgpu.masked_softmax": masked_softmax,
    "virtualgpu.masked_softmax_backward": masked_softmax,
    "aten._fused_rms_norm_backward": rms_norm_backward,
    "aten.native_batch_norm": batch_norm(1, 5),
    "aten.native_batch_norm_backward": batch_norm(2, 7),
    "aten.native_group_norm": group_norm(1, 3),
    "aten.native_group_norm_backward": group_norm(2, 4),
    **{f"aten.{name}": loss for name in (*LOSSES, "binary_cross_entropy")},
    **{f"aten.{name}_backward": loss_backward for name in LOSSES},
    "aten.binary_cross_entropy_with_logits": with_logits,
    "aten.nll_loss_forward": nll_loss, "aten.nll_loss_backward": nll_loss_backward,
    "aten.nll_loss2d_forward": nll_loss, "aten.nll_loss2d_backward": nll_loss_backward,
}


# ---- results of reductions


@returns("sum", "nansum", "prod")
def _sum(a: Arguments) -> list[Result]:
    return [(reduced(a.self, getattr(a, "dim", None), getattr(a, "keepdim", False)),
             a.dtype or summed(a.self.dtype))]


@returns("mean", "amax", "amin", "std", "var", "logsumexp", "norm", "linalg_vector_norm", "any",
         "all", "argmax", "argmin", "count_nonzero", "std_mean", "var_mean", "aminmax")
def _reduction(a: Arguments) -> list[Result]:
    named = getattr(a, "dim", None)
    shape = reduced(a.self, named, getattr(a, "keepdim", False) is True)
    dtype = getattr(a, "dtype", None) or a.self.dtype
    name = a.name
    if name in ("any", "all"):
        dtype = torch.uint8 if dtype is torch.uint8 else torch.bool
    elif name in ("argmax", "argmin", "count_nonzero"):
        dtype = LONG
    elif name == "logsumexp":
        dtype = floating(dtype)
    elif name not in ("amax", "amin", "aminmax", "mean"):
        dtype = real(dtype)
    both = name in ("std_mean", "var_mean", "aminmax")
    return [(shape, dtype), (shape, a.self.dtype)][:1 + both]


@returns("max", "min", "median", "nanmedian", "mode", "kthvalue")
def _values_and_indices(a: Arguments) -> list[Result]:
    if hasattr(a, "other"):
        return [(broadcast(a.self.shape, a.other.shape), promoted([a.self, a.other]))]
    if not hasattr(a, "dim"):
        return [((), a.self.dtype)]
    shape = reduced(a.self, a.dim, a.keepdim)
    return [(shape, a.self.dtype), (shape, LONG)]


@returns("cumsum", "cumprod", "logcumsumexp")
def _cumulative(a: Arguments) -> list[Result]:
    axis(a.dim, a.self.dim())
    dtype = a.self.dtype if a.name == "logcumsumexp" else summed(a.self.dtype)
    return [like(a.self, getattr(a, "dtype", None) or dtype)]


@returns("sort", "cummax", "cummin")
def _sort(a: Arguments) -> list[Result]:
    axis(a.dim, a.self.dim())
    return [like(a.self), like(a.self, LONG)]


@returns("topk")
def _topk(a: Arguments) -> list[Result]:
    at = axis(a.dim, a.self.dim())
    if not 0 <= a.k <= (a.self.shape[at] if a.self.shape else 1):
        raise ValueError(f"topk of {list(a.self.shape)}: k not in range, found {a.k}")
    shape = replaced(a.self.shape, at, a.k)
    return [(shape, a.self.dtype), (shape, LONG)]


@returns("trace")
def _trace(a: Arguments) -> list[Result]:
    require(a.self.dim() == 2, "expected a matrix", found=a.self)
    return [((), summed(a.self.dtype))]


@returns("histc")
def _histc(a: Arguments) -> list[Result]:
    return [((a.bins,), a.self.dtype)]


# ---- results of softmax and losses


@returns("_softmax", "_log_softmax", "_safe_softmax", "_masked_softmax")
def _softmax(a: Arguments) -> list[Result]:
    dim = getattr(a, "dim", None)
    axis(-1 if dim is None else dim, a.self.dim())
    half_to_float = getattr(a, "half_to_float", False)
    return [like(a.self, FLOAT if half_to_float else getattr(a, "dtype", None))]


@returns("_softmax_backward_data", "_log_softmax_backward_data", "_masked_softmax_backward")
def _softmax_backward(a: Arguments) -> list[Result]:
    matching(a.grad_output.shape == a.output.shape, grad=a.grad_output, output=a.output)
    return [like(a.grad_output, getattr(a, "input_dtype", None))]


@returns("virtualgpu.masked_softmax")
def _fused_softmax(a: Arguments) -> list[Result]:
    return [like(a.scores)]


@returns("virtualgpu.masked_softmax_backward")
def _masked_softmax_backward(a: Arguments) -> list[Result]:
    matching(a.grad.shape == a.out.shape, grad=a.grad, out=a.out)
    return []


@returns("mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
         "binary_cross_entropy_with_logits", "soft_margin_loss")
def _loss(a: Arguments) -> list[Result]:
    shape = broadcast(a.self.shape, a.target.shape)
    dtype = promoted([a.self, a.target]) if a.name in ("mse_loss", "smooth_l1_loss", "huber_loss",
                                                       "binary_cross_entropy_with_logits",
                                                       "soft_margin_loss") else a.self.dtype
    return [(() if a.reduction else shape, dtype)]


@returns("mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward",
         "binary_cross_entropy_backward", "soft_margin_loss_backward")
def _loss_backward(a: Arguments) -> list[Result]:
    shape = broadcast(a.self.shape, a.target.shape)
    expands(a.grad_output.shape, shape)
    dtype = a.self.dtype if a.name.startswith("binary") else promoted([a.self, a.target])
    return [(shape, dtype)]


@returns("nll_loss_forward", "nll_loss2d_forward")
def _nll(a: Arguments) -> list[Result]:
    x, target = a.self, a.target
    at = x.dim() - 1 if "2d" not in a.name else 1
    matching(x.dim() in (1, 2, 4) and target.shape == (*x.shape[:at], *x.shape[at + 1:]),
             input=x, target=target)
    whole = a.reduction == 0 and x.dim() > 1
    return [(target.shape if whole else (), x.dtype), ((), x.dtype)]


@returns("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(a: Arguments) -> list[Result]:
    matching(a.target.numel() * a.self.shape[-1 if "2d" not in a.name else 1]
             == a.self.numel(), input=a.self, target=a.target)
    return [like(a.self)]


# ---- results of normalizations


def _inner(x: Operand, normalized: Sequence[int], *weights: Operand | None) -> tuple[int, ...]:
    """Check the last dimensions, over which x is normalized; return the statistics' shape."""
    outer = x.dim() - len(normalized)
    require(outer >= 0 and x.shape[max(outer, 0):] == tuple(normalized),
            f"a normalization over {list(normalized)}", input=x)
    for weight in weights:
        optional(weight, normalized)
    return (*x.shape[:outer], *([1] * len(normalized)))


@returns("native_layer_norm", "_fused_rms_norm")
def _layer_norm(a: Arguments) -> list[Result]:
    outer = _inner(a.input, a.normalized_shape, a.weight, getattr(a, "bias", None))
    statistics = (outer, accumulated(a.input.dtype))
    return [like(a.input), *([statistics] * (2 if a.name == "native_layer_norm" else 1))]


@returns("native_layer_norm_backward", "_fused_rms_norm_backward")
def _layer_norm_backward(a: Arguments) -> list[Result]:
    _inner(a.input, a.normalized_shape, a.weight)
    matching(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    normal = tuple(a.normalized_shape)
    found = [like(a.input), (normal, (a.weight or a.input).dtype),
             (normal, (a.weight or a.input).dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=False) if wanted]


@returns("native_group_norm")
def _group_norm(a: Arguments) -> list[Result]:
    matching(a.input.numel() == a.N * a.C * a.HxW, input=a.input)
    if a.group < 1 or a.C % a.group:
        raise ValueError(f"{a.C} channels in {a.group} groups")
    return [like(a.input), *([((a.N, a.group), a.input.dtype)] * 2)]


@returns("native_group_norm_backward")
def _group_norm_backward(a: Arguments) -> list[Result]:
    matching(a.grad_out.shape == a.input.shape and a.input.numel() == a.N * a.C * a.HxW,
             grad=a.grad_out, input=a.input)
    found = [like(a.input), ((a.C,), a.input.dtype), ((a.C,), a.input.dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]


@returns("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")
def _batch_norm(a: Arguments) -> list[Result]:
    channels = a.input.shape[1:2]
    optional(a.weight, channels)
    kept = channels if hasattr(a, "training") else (0,)
    return [like(a.input), *([(kept, accumulated(a.input.dtype))] * 2)]


@returns("native_batch_norm_backward")
def _batch_norm_backward(a: Arguments) -> list[Result]:
    matching(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    channels = (a.input.shape[1:2], (a.weight or a.input).dtype)
    return [one for one, wanted in zip([like(a.input), channels, channels], a.output_mask,
                                       strict=True) if wanted]


# ---- results of poolings


def _pooled(x: Operand, a: Arguments) -> tuple[int, ...]:
    dims = 3 if "3d" in a.name else 2
    require(x.dim() in (dims + 1, dims + 2), "a pooling", input=x)
    kernel, padding, dilation = (one_per_dimension(values, dims) for values in (
        a.kernel_size, a.padding, getattr(a, "dilation", [1])))
    stride = one_per_dimension(a.stride, dims) if a.stride else kernel
    windows = zip(x.shape[x.dim() - dims:], kernel, stride, padding, dilation, strict=True)
    return (*x.shape[:x.dim() - dims],
            *(window_positions(*window, a.ceil_mode) for window in windows))


@returns("max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool2d", "avg_pool3d")
def _pool(a: Arguments) -> list[Result]:
    shape = _pooled(a.self, a)
    return [(shape, a.self.dtype), (shape, LONG)][:2 if a.name.startswith("max") else 1]


@returns("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward",
         "avg_pool2d_backward", "avg_pool3d_backward")
def _pool_backward(a: Arguments) -> list[Result]:
    matching(a.grad_output.shape == _pooled(a.self, a), grad=a.grad_output, input=a.self)
    return [like(a.self)]


@returns("_adaptive_avg_pool2d")
def _adaptive_pool(a: Arguments) -> list[Result]:
    return [((*a.self.shape[:-2], *a.output_size), a.self.dtype)]


@returns("_adaptive_avg_pool2d_backward")
def _adaptive_pool_backward(a: Arguments) -> list[Result]:
    return [like(a.self)]
