"""Cost rules for kernels that CUDA runs and our trainer does not.

These are fused attention, optimizers over lists of tensors, scaled GEMMs, and convolutions.

Each rule's docstring names its source, or says that it is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from virtualgpu.core import rms_norm
from virtualgpu.core.attention import CUDNN, EFFICIENT, FLASH, AttentionKernel
from virtualgpu.core.loss_rules import LOSS_RULES
from virtualgpu.core.rules import (
    DTYPES,
    RULES,
    GemmShape,
    KernelWork,
    Rule,
    lookup,
    moved,
    read_and_write,
    tensors,
    two_passes,
    write,
)
from virtualgpu.core.shapes import broadcast_shape

# ATen/native/cuda/MultiTensorApply.cuh, built for CUDA 12: a launch takes up to MAX_CHUNKS chunks
# of CHUNK_ELEMENTS elements, and as many tensors as fit into a kernel's arguments, by the number of
# lists.
CHUNK_ELEMENTS, MAX_CHUNKS = 65536, 320
MAX_TENSORS = (110, 64, 48, 36, 30)
NORM_TENSORS = 400  # tensors per launch of the kernel that ends _foreach_norm (foreach_reduce.cuh)


def attention(kernel: str, gemms: int, causal: int) -> Rule:
    """Cost of fused attention: FLOPs as in FlashAttention-2 (Dao 2023, arXiv:2307.08691, 4.1).

    A forward pass has two matrix multiplications, a backward pass five, because it recomputes the
    scores. A causal mask halves both. The scores never leave the chip.

    Args:
        kernel: name of the kernel (attention.py).
        gemms: matrix multiplications in the kernel: 2 forward, 5 backward.
        causal: position of the argument `is_causal`.
    """
    first = 0 if gemms == 2 else 1  # a backward pass takes the gradient first
    by_value = gemms // 2  # GEMMs as wide as a value head; the others are as wide as a query head

    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
        query, key, value = arguments[first:first + 3]
        batch, heads, rows, width = query.shape
        widths = (gemms - by_value) * width + by_value * value.shape[3]
        flops = 2 * batch * heads * rows * key.shape[2] * widths
        half = len(arguments) > causal and arguments[causal] is True
        return read_and_write(arguments, results)._replace(
            flops=flops // 2 if half else flops, dtype=DTYPES.get(query.dtype, "fp32"),
            attention=AttentionKernel(kernel, gemms > 2, width, key.shape[2], half))
    return rule


def multi_tensor(written: Sequence[int] = (0,), *, read: bool = True, steps: bool = False) -> Rule:
    """Cost of a kernel over lists of tensors, whose launches are those of MultiTensorApply.cuh.

    A launch that ends in the middle of a tensor can lead to one more launch, which is not counted.

    Args:
        written: positions of the lists that it writes in place.
        read: whether the first list is read before it is written.
        steps: whether the last list holds step counts, which are not among the lists that limit a
            launch (FusedOptimizerTensorListMetadata in the same file).
    """
    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
        lists = [item for item in arguments if isinstance(item, (list, tuple)) and tensors([item])]
        size = sum(moved(item) for some in lists[0 if read else 1:] for item in tensors([some]))
        size += sum(map(moved, results)) if results else sum(
            moved(item) for position in written for item in tensors([arguments[position]]))
        return KernelWork(size, kernels=_launches(lists[0], len(lists) - steps + bool(results)))
    return rule


def foreach_norm(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """_foreach_norm(tensors, ..): a kernel zeroes a number per chunk, one reduces the chunks, and
    one reduces their results (ATen/native/cuda/ForeachReduceOp.cu)."""
    given = arguments[0]
    kernels = 1 + _launches(given, 1) + -(-len(given) // NORM_TENSORS)
    return read_and_write(arguments, results)._replace(kernels=kernels)


def _launches(given: Sequence[torch.Tensor], lists: int) -> int:
    """Return the number of launches of a kernel over lists of tensors.

    Args:
        given: the tensors of one list.
        lists: number of lists that the kernel reads or writes.
    """
    chunks = sum(-(-item.numel() // CHUNK_ELEMENTS) for item in given)
    most = MAX_TENSORS[min(lists, len(MAX_TENSORS)) - 1]
    return max(-(-chunks // MAX_CHUNKS), -(-len(given) // most), 1)


def scaled_gemm(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """_scaled_mm(a, b, scale_a, scale_b, ..): two FP8 or FP4 matrices at the GPU's measured rate.

    Assumed: block scales do not slow the GEMM down, apart from reading them. An element of a
    float4_e2m1fn_x2 tensor is a pair of values along k.
    """
    (m, k), n = arguments[0].shape, arguments[1].shape[1]
    dtype, packed = ("fp4", 2) if arguments[0].dtype == torch.float4_e2m1fn_x2 else ("fp8", 1)
    return KernelWork(sum(map(moved, arguments[:4])) + moved(results[0]), gemm=GemmShape(
        dtype, 1, m, n, packed * k))


def convolution(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, .., groups): an
    implicit matrix multiplication (Chetlur et al. 2014, cuDNN, arXiv:1410.0759). A second kernel
    adds the bias in place (ATen/native/Convolution.cpp)."""
    gemm = _convolution_gemm(arguments[0], arguments[1], results[0], arguments[6], arguments[8])
    biased = arguments[2] is not None
    size = read_and_write(arguments, results).bytes + 2 * biased * moved(results[0])
    return KernelWork(size, 1 + biased, gemm)


def convolution_backward(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """convolution_backward(grad, input, weight, .., transposed, .., groups, mask): the gradients of
    the input and of the weight are a matrix multiplication each, with the forward pass's FLOPs
    (Chetlur et al. 2014). The bias's gradient is a sum in two passes, as in aten.sum."""
    grad, x, weight, *_ = arguments
    for_input, for_weight, for_bias = map(bool, arguments[10])
    read = (for_input * (moved(grad) + moved(weight)) + for_weight * (moved(grad) + moved(x))
            + for_bias * moved(grad))
    count, gemm = for_input + for_weight, None
    if count:
        gemm = _convolution_gemm(x, weight, grad, arguments[7], arguments[9])
        gemm = gemm._replace(k=count * gemm.k)
    return KernelWork(read + sum(map(moved, results)), count + 2 * for_bias, gemm)


def _convolution_gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor,
                      transposed: bool, groups: int) -> GemmShape:
    """Return the GEMM of a convolution, with one row per position of its output.

    A transposed convolution is the input gradient of the one that leads from its output to its
    input (Dumoulin and Visin 2016, arXiv:1603.07285), so it has the same GEMM.
    """
    if transposed:
        out = x
    rows = out.shape[0] * math.prod(out.shape[2:])
    return GemmShape(DTYPES.get(x.dtype, "fp32"), groups, rows, weight.shape[0] // groups,
                     math.prod(weight.shape[1:]))


def index_put(copies: bool) -> Rule:
    """index_put(target, indices, values, accumulate): writes only the indexed elements, and reads
    them first if it accumulates.

    An estimate: accumulating sorts the indices first, which is not counted. The number of elements
    that a mask selects is unknown, so it counts as all of them.

    Args:
        copies: whether the target is copied first, and the copy is written.
    """
    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
        target, indices = arguments[:2]
        index_tensors = tensors([indices])
        if any(item.dtype in (torch.bool, torch.uint8) for item in index_tensors):
            return read_and_write(arguments, results)
        indexed = math.prod(broadcast_shape((), *(item.shape for item in index_tensors)))
        rest = math.prod(size for dim, size in enumerate(target.shape)
                         if dim >= len(indices) or indices[dim] is None)
        passes = 2 if len(arguments) > 3 and arguments[3] else 1
        return _partial_write(arguments, passes * indexed * rest, copies)
    return rule


def scatter(copies: bool) -> Rule:
    """scatter(target, dim, index, source or value): writes only the indexed elements.

    An estimate: as if no two of them shared a cache line.

    Args:
        copies: whether the target is copied first, and the copy is written.
    """
    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
        return _partial_write(arguments, arguments[2].numel(), copies)
    return rule


def _partial_write(arguments: Sequence, elements: int, copies: bool) -> KernelWork:
    """Cost of writing some elements of a tensor.

    Args:
        arguments: the tensor, then the other operands, which are read.
        elements: number of its elements that are read or written.
        copies: whether all of it is copied first.
    """
    target, *others = arguments
    return KernelWork(elements * target.element_size() + sum(map(moved, tensors(others)))
                      + 2 * copies * moved(target), kernels=1 + copies)


def into_zeros(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
    """Cost of zeroing the result and copying the first argument into a part of it, as
    slice_backward (ATen/native/TensorShape.cpp) and constant_pad_nd (ATen/native/PadNd.cpp) do."""
    return KernelWork(2 * moved(arguments[0]) + sum(map(moved, results)), kernels=2)


def group_norm(activations: int, kernels: int) -> Rule:
    """Cost of group normalization: the statistics, or their gradients, take a pass of their own
    over the activations (ATen/native/cuda/group_norm_kernel.cu).

    Args:
        activations: number of leading arguments that are as large as the activations.
        kernels: number of launches, with a weight and a bias.
    """
    def rule(arguments: Sequence, results: Sequence[torch.Tensor]) -> KernelWork:
        statistics = sum(map(moved, arguments[:activations]))
        return KernelWork(read_and_write(arguments, results).bytes + statistics, kernels)
    return rule


MULTI_TENSOR = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "neg_", "sqrt", "sqrt_",
    "reciprocal", "reciprocal_", "maximum", "maximum_", "minimum", "minimum_", "pow", "abs",
    "clamp_max_", "clamp_min_", "exp", "sign", "rsqrt_")
FUSED_RULES: dict[str, Rule] = {
    "aten._scaled_dot_product_flash_attention": attention(FLASH, 2, 4),
    "aten._scaled_dot_product_flash_attention_backward": attention(FLASH, 5, 11),
    "aten._scaled_dot_product_efficient_attention": attention(EFFICIENT, 2, 6),
    "aten._scaled_dot_product_efficient_attention_backward": attention(EFFICIENT, 5, 11),
    "aten._scaled_dot_product_cudnn_attention": attention(CUDNN, 2, 6),
    "aten._scaled_dot_product_cudnn_attention_backward": attention(CUDNN, 5, 14),
    "aten._scaled_mm": scaled_gemm,
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten._foreach_norm": foreach_norm,
    "aten._foreach_copy_": multi_tensor(read=False),
    "aten._foreach_zero_": multi_tensor(read=False),
    "aten._amp_foreach_non_finite_check_and_unscale_": multi_tensor(),
    "aten._fused_adam_": multi_tensor((0, 2, 3, 4), steps=True),
    "aten._fused_adamw_": multi_tensor((0, 2, 3, 4), steps=True),
    "aten._fused_sgd_": multi_tensor((0, 2)),
    "aten._fused_adagrad_": multi_tensor((0, 2), steps=True),
    "aten.embedding_dense_backward": lambda a, r: KernelWork(2 * moved(a[0]) + sum(map(moved, r))),
    "aten.scatter": scatter(True), "aten.scatter_": scatter(False),
    "aten.index_put": index_put(True), "aten.index_put_": index_put(False),
    # The rank's shards are copied into its part of the all-gather's output.
    "fsdp.all_gather_copy_in": lambda a, r: KernelWork(2 * sum(map(moved, a[0]))),
    # An estimate for sort and topk: CUDA sorts long rows in more passes, by the width of the type.
    "aten.cumsum": two_passes, "aten.sort": two_passes, "aten.topk": two_passes,
    "aten.prod": two_passes, "aten.var_mean": two_passes,
    "aten.index": lookup,
    "aten._fused_rms_norm_backward": rms_norm.backward,
    "aten.native_group_norm": group_norm(1, 3),
    "aten.native_group_norm_backward": group_norm(2, 4),
}
FUSED_RULES |= {f"aten._foreach_{name}": multi_tensor() for name in (
    *MULTI_TENSOR, "lerp_", "addcmul_", "addcdiv_", "addcmul", "addcdiv", "lerp")}
FUSED_RULES |= dict.fromkeys((
    "aten.slice_backward", "aten.select_backward", "aten.diagonal_backward", "aten.unfold_backward",
    "aten.constant_pad_nd"), into_zeros)
# Estimates: one kernel that reads every operand once and writes every result once. Normalizations,
# whose statistics take a pass of their own where a row does not fit on the chip, can cost more.
FUSED_RULES |= dict.fromkeys((
    "aten.native_dropout", "aten.native_dropout_backward", "aten._safe_softmax", "aten.tril",
    "aten.tril_", "aten._amp_update_scale_", "aten._chunk_cat", "aten.split_with_sizes_copy",
    "aten.repeat", "aten.flip", "aten.roll", "aten.std", "aten.var", "aten.min", "aten.amin",
    "aten.argmax", "aten.all", "aten.logsumexp", "aten.native_batch_norm",
    "aten.native_batch_norm_backward", "aten.max_pool2d_with_indices", "aten.avg_pool2d",
    "aten.max_pool2d_with_indices_backward", "aten.avg_pool2d_backward",
    "aten._adaptive_avg_pool2d", "aten._adaptive_avg_pool2d_backward",
    "aten._fused_rms_norm", "aten.embedding_renorm_", "aten.multinomial", "aten.histc",
    "aten.unfold_copy", "aten.masked_scatter", "fsdp.split_with_sizes_copy", "fsdp.chunk_cat"),
    read_and_write)
FUSED_RULES |= dict.fromkeys((
    "aten.randint", "aten.randn", "aten.rand", "aten.bernoulli_", "aten.rand_like",
    "aten.randn_like", "aten.random_", "aten.randperm", "aten.exponential_", "aten.eye",
    "aten.linspace", "aten.tril_indices", "aten.triu_indices", "aten.randint_like"), write)


def rule_of(operation: torch._ops.OpOverload) -> Rule | None:
    """Return the operation's rule, or None if it has none."""
    name = str(operation._overloadpacket)
    rule = RULES.get(name) or FUSED_RULES.get(name) or LOSS_RULES.get(name)
    if rule is None and torch.Tag.pointwise in operation.tags:
        return read_and_write
    return rule
