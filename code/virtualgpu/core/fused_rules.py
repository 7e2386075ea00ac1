"""What fused kernels cost that CUDA runs and our trainer does not: attention, optimizers over lists
of tensors, scaled products, convolutions.

Multi-tensor kernels take up to 320 chunks of 65,536 elements per launch, and as many tensors as fit
into a kernel's arguments (ATen/native/cuda/MultiTensorApply.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from virtualgpu.core.rules import (
    DTYPES,
    RULES,
    Product,
    Rule,
    Work,
    lookup,
    moved,
    read_and_write,
    tensors,
    two_passes,
    write,
)

CHUNK, CHUNKS = 65536, 320
TENSORS = (110, 64, 48, 36, 30)  # per launch, by the number of lists


def attention(products: int, causal: int) -> Rule:
    """Cost of fused attention.

    Args:
        products: matrix products of the kernel: 2 forward, 5 backward.
        causal: position of the argument `is_causal`.
    """
    first = 0 if products == 2 else 1  # the gradient comes first

    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
        query, key = arguments[first:first + 2]
        batch, heads, rows, width = query.shape
        flops = 2 * products * batch * heads * rows * key.shape[2] * width
        half = len(arguments) > causal and arguments[causal] is True
        return read_and_write(arguments, results)._replace(
            flops=flops // 2 if half else flops, dtype=DTYPES.get(query.dtype, "fp32"))
    return rule


def multi_tensor(written: Sequence[int] = (0,), passes: int = 1) -> Rule:
    """Cost of a kernel over lists of tensors.

    Args:
        written: positions of the lists that it writes in place.
        passes: kernels per chunk of work.
    """
    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
        lists = [item for item in arguments if isinstance(item, (list, tuple)) and tensors([item])]
        size = sum(moved(item) for some in lists for item in tensors([some]))
        fresh = list(results)
        size += sum(map(moved, fresh)) if fresh else sum(
            moved(item) for at in written for item in tensors([arguments[at]]))
        chunks = sum(-(-item.numel() // CHUNK) for item in tensors([lists[0]]))
        depth = min(len(lists), len(TENSORS)) - 1
        launches = max(-(-chunks // CHUNKS), -(-len(lists[0]) // TENSORS[depth]))
        return Work(size, kernels=passes * max(1, launches))
    return rule


def scaled_product(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """_scaled_mm(a, b, scale_a, scale_b, ..): two FP8 matrices."""
    (m, k), n = arguments[0].shape, arguments[1].shape[1]
    return Work(sum(map(moved, arguments[:2])) + moved(results[0]), product=Product(
        "fp8", 1, m, n, k))


def convolution(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, .., groups): an
    implicit matrix product."""
    return _convolution(arguments[0], arguments[1], results[0], arguments[8],
                        read_and_write(arguments, results))


def convolution_backward(arguments: Sequence, results: Sequence[torch.Tensor]) -> Work:
    """convolution_backward(grad, input, weight, .., groups, mask): one product per gradient."""
    forward = _convolution(arguments[1], arguments[2], arguments[0], arguments[9],
                           read_and_write(arguments, results))
    wanted = max(1, sum(arguments[10][:2]))
    shape = forward.product
    return forward._replace(product=shape._replace(k=wanted * shape.k), kernels=wanted)


def _convolution(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, groups: int,
                 plain: Work) -> Work:
    rows = out.shape[0] * out[0, 0].numel()
    inner = weight[0].numel()
    return plain._replace(product=Product(DTYPES.get(x.dtype, "fp32"), groups, rows,
                                          weight.shape[0] // groups, inner))


MULTI_TENSOR = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "neg_", "sqrt", "sqrt_",
    "reciprocal", "reciprocal_", "maximum", "maximum_", "minimum", "minimum_", "pow", "abs",
    "clamp_max_", "clamp_min_", "exp", "zero_", "sign", "rsqrt_")
FUSED_RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_flash_attention": attention(2, 4),
    "aten._scaled_dot_product_flash_attention_backward": attention(5, 11),
    "aten._scaled_dot_product_efficient_attention": attention(2, 6),
    "aten._scaled_dot_product_efficient_attention_backward": attention(5, 11),
    "aten._scaled_mm": scaled_product,
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten._foreach_norm": multi_tensor(passes=2),
    "aten._amp_foreach_non_finite_check_and_unscale_": multi_tensor(),
    "aten._fused_adam_": multi_tensor((0, 2, 3)), "aten._fused_adamw_": multi_tensor((0, 2, 3)),
    "aten._fused_sgd_": multi_tensor((0, 2)), "aten._fused_adagrad_": multi_tensor((0, 2)),
    "aten.embedding_dense_backward": lambda a, r: Work(2 * moved(a[0]) + sum(map(moved, r))),
    "aten.cumsum": two_passes, "aten.sort": two_passes, "aten.topk": two_passes,
    "aten.index": lookup, "aten.prod": two_passes, "aten.var_mean": two_passes,
}
FUSED_RULES |= {f"aten._foreach_{name}": multi_tensor() for name in (
    *MULTI_TENSOR, "copy_", "lerp_", "addcmul_", "addcdiv_", "addcmul", "addcdiv", "lerp")}
FUSED_RULES |= dict.fromkeys((
    "aten.native_dropout", "aten.native_dropout_backward", "aten._safe_softmax", "aten.tril",
    "aten.tril_", "aten.slice_backward", "aten.select_backward", "aten.constant_pad_nd",
    "aten._amp_update_scale_", "aten._chunk_cat", "aten.split_with_sizes_copy", "aten.scatter",
    "aten.scatter_", "aten.index_put_", "aten.index_put", "aten.repeat", "aten.flip", "aten.roll",
    "aten.std", "aten.var", "aten.min", "aten.amin", "aten.argmax", "aten.all", "aten.logsumexp",
    "aten.native_batch_norm", "aten.native_batch_norm_backward", "aten.native_group_norm",
    "aten.native_group_norm_backward", "aten.max_pool2d_with_indices", "aten.avg_pool2d",
    "aten.max_pool2d_with_indices_backward", "aten.avg_pool2d_backward", "aten.one_hot",
    "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool2d_backward", "aten.unfold_backward",
    "aten._fused_rms_norm", "aten._fused_rms_norm_backward", "aten.diagonal_backward",
    "aten.embedding_renorm_", "aten.multinomial", "aten.histc", "aten.unfold_copy",
    "aten.nll_loss2d_forward", "aten.nll_loss2d_backward", "aten.masked_scatter",
    "fsdp.all_gather_copy_in", "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"), read_and_write)
FUSED_RULES |= dict.fromkeys((
    "aten.randint", "aten.randn", "aten.rand", "aten.bernoulli_", "aten.rand_like",
    "aten.randn_like", "aten.random_", "aten.randperm", "aten.exponential_", "aten.eye",
    "aten.linspace", "aten.tril_indices", "aten.triu_indices", "aten.randint_like"), write)


def rule_of(operation: torch._ops.OpOverload) -> Rule | None:
    """The operation's rule; None where it has none."""
    name = str(operation._overloadpacket)
    rule = RULES.get(name) or FUSED_RULES.get(name)
    if rule is None and torch.Tag.pointwise in operation.tags:
        return read_and_write
    return rule
