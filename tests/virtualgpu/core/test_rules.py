"""FLOPs, bytes, and launches of operations, counted by hand from their shapes."""

import pytest
import torch
import torch.distributed.fsdp  # registers its operations
import torch.nn.functional as F

from virtualgpu.core.rules import (
    COSTS,
    attention,
    gemm,
    moves,
    optimizer,
    pointwise,
    reductions,
)
from virtualgpu.core.rules.work import GemmShape

from .counted import BOOL, HALF, INT, aten, counted, meta, works

Q, K = (2, 4, 64, 32), (2, 4, 48, 32)  # [batch, heads, rows, width]; 16,384 and 12,288 elements


def attended(fused, *rest, value=K, is_causal=True):
    """Forward and backward passes of a fused attention in bf16."""
    def program():
        q, k, v = (meta(*shape, dtype=HALF, grad=True) for shape in (Q, K, value))
        out = fused(q, k, v, *rest, 0.0, is_causal)[0]
        out.backward(meta(*out.shape, dtype=HALF))
    return works(program)


@pytest.mark.parametrize("is_causal", [False, True])
def test_flash_attention(is_causal):
    name = "aten._scaled_dot_product_flash_attention"
    result = attended(aten._scaled_dot_product_flash_attention, is_causal=is_causal)
    forward, backward = result[name], result[f"{name}_backward"]
    # A matrix multiplication is 2 x 8 heads x 64 x 48 x 32 = 1,572,864 FLOPs: Q K^T and P V
    # forward; Q K^T, dO V^T, P^T dO, dS K, dS^T Q backward. A causal mask halves them.
    whole = 2 if is_causal else 1
    assert (forward.flops, backward.flops) == (2 * 1572864 // whole, 5 * 1572864 // whole)
    assert forward.dtype == backward.dtype == "bf16" and forward.gemm is None
    # Q, O of 32,768 bytes; K, V of 24,576; a logsumexp of 8 x 64 x 4 = 2,048 bytes; a random seed
    # of two 8-byte numbers, and one unused number forward.
    assert forward.bytes == 2 * 32768 + 2 * 24576 + 2048 + 24
    # Read: dO, Q, O; K, V; logsumexp; seed. Written: dQ; dK, dV.
    assert backward.bytes == 4 * 32768 + 4 * 24576 + 2048 + 24
    assert forward.kernels == backward.kernels == 1


@pytest.mark.parametrize("is_causal", [False, True])
def test_memory_efficient_attention_with_narrow_values(is_causal):
    name = "aten._scaled_dot_product_efficient_attention"
    result = attended(aten._scaled_dot_product_efficient_attention, None, True,
                      value=(2, 4, 48, 16), is_causal=is_causal)
    forward, backward = result[name], result[f"{name}_backward"]
    # P V, dO V^T, and P^T dO are 16 wide, so half of 1,572,864 FLOPs each.
    whole = 2 if is_causal else 1
    assert forward.flops == (1572864 + 786432) // whole
    assert backward.flops == (3 * 1572864 + 2 * 786432) // whole
    # Q of 32,768 bytes, K of 24,576, V of 12,288, O of 16,384, logsumexp of 2,048, seed of 16.
    assert forward.bytes == 32768 + 24576 + 12288 + 16384 + 2048 + 16
    # Read: dO, O; Q, K, V; logsumexp; seed. Written: dQ, dK, dV.
    assert backward.bytes == 2 * 16384 + 2 * (32768 + 24576 + 12288) + 2048 + 16


def test_a_scaled_matrix_multiplication_in_fp8():
    def program():
        fp8 = torch.float8_e4m3fn
        torch._scaled_mm(meta(32, 64, dtype=fp8), meta(48, 64, dtype=fp8).t(), meta(()), meta(()),
                         out_dtype=HALF)
    work = works(program)["aten._scaled_mm"]
    assert work.gemm == GemmShape("fp8", 1, 32, 48, 64) and work.gemm.flops == 2 * 32 * 48 * 64
    assert (work.bytes, work.kernels) == (32 * 64 + 48 * 64 + 2 * 32 * 48 + 2 * 4, 1)


X, W, Y = (2, 4, 16, 16), (8, 4, 3, 3), (2, 8, 14, 14)  # [n, c, h, w]: 2,048, 288, 3,136 elements


def convolved(*, bias=True, needs=(True, True)):
    """Forward and backward passes of a convolution."""
    def program():
        x, weight = meta(*X, grad=needs[0]), meta(*W, grad=needs[1])
        y = F.conv2d(x, weight, meta(8, grad=True) if bias else None)
        y.backward(meta(*Y))
    return works(program)


def test_a_convolution():
    """392 output positions, 8 channels, of 4 x 3 x 3 products each; then the bias is added."""
    plain = convolved(bias=False)["aten.convolution"]
    assert plain.gemm == GemmShape("fp32", 1, 392, 8, 36)
    assert plain.gemm.flops == 2 * 3136 * 36
    assert (plain.bytes, plain.kernels) == (4 * (2048 + 288 + 3136), 1)
    biased = convolved()["aten.convolution"]
    assert biased.gemm == plain.gemm
    assert (biased.bytes, biased.kernels) == (plain.bytes + 4 * (8 + 2 * 3136), 2)


def test_a_convolution_in_groups():
    """Two groups, each of 4 of the 8 output channels and 2 of the 4 input channels."""
    work = works(lambda: F.conv2d(meta(*X), meta(8, 2, 3, 3), groups=2))["aten.convolution"]
    assert work.gemm == GemmShape("fp32", 2, 392, 4, 18)
    assert work.gemm.flops == 2 * 3136 * 18


def test_a_depthwise_convolution_is_no_matrix_multiplication():
    def program():
        y = F.conv2d(meta(*X, grad=True), meta(4, 1, 3, 3, grad=True), groups=4)
        y.backward(meta(*y.shape))
    found = works(program)
    forward, backward = found["aten.convolution"], found["aten.convolution_backward"]
    products = 2 * 2 * 4 * 14 * 14 * 9
    assert (forward.gemm, forward.flops, backward.flops) == (None, products, 2 * products)


def test_sixteen_bit_images_in_nchw_are_transposed_around_a_convolution():
    def convolved(dtype, memory_format):
        def program():
            x, weight = (meta(*shape, dtype=dtype, grad=True).to(memory_format=memory_format)
                         for shape in (X, W))
            y = F.conv2d(x, weight)
            assert y.is_contiguous(memory_format=memory_format)
            y.backward(torch.empty_like(y))
        found = works(program)
        return found["aten.convolution"], found["aten.convolution_backward"]

    plain = convolved(HALF, torch.channels_last)
    copied = convolved(HALF, torch.contiguous_format)
    for more, less, passes in zip(copied, plain, (1, 2), strict=True):
        assert more.gemm == less.gemm and less.apart == 0
        # Each of X, W, and Y is read and written once more per pass.
        assert more.apart == more.bytes - less.bytes == passes * 2 * 2 * (2048 + 288 + 3136)
        assert more.kernels - less.kernels == 3 * passes
    assert convolved(torch.float32, torch.contiguous_format)[0].apart == 0


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_transposed_convolution_does_not_multiply_the_zeros_between(stride):
    """Each of 2 x 8 x 6 x 6 inputs meets 5 x 4 x 4 weights, whatever the stride."""
    def program():
        x, weight = meta(2, 8, 6, 6, grad=True), meta(8, 5, 4, 4, grad=True)
        y = F.conv_transpose2d(x, weight, stride=stride)
        y.backward(meta(*y.shape))
    result = works(program)
    size = 5 * stride + 4
    forward, backward = result["aten.convolution"], result["aten.convolution_backward"]
    assert forward.gemm.flops == 2 * 2 * 8 * 6 * 6 * 5 * 4 * 4
    assert forward.bytes == 4 * (576 + 640 + 2 * 5 * size * size)
    assert backward.gemm.flops == 2 * forward.gemm.flops


@pytest.mark.parametrize(("needs", "read", "written"), [
    # The gradient of the input reads dY and W; that of the weight, dY and X; of the bias, dY.
    ((True, True), 3 * 3136 + 288 + 2048, 2048 + 288 + 8),
    ((False, True), 2 * 3136 + 2048, 288 + 8),
    ((True, False), 2 * 3136 + 288, 2048 + 8),
    ((False, False), 3136, 8),
])
def test_the_backward_pass_of_a_convolution(needs, read, written):
    """The gradients of the input and the weight have the forward pass's FLOPs each; the bias's is a
    sum, in two kernels."""
    work = convolved(needs=needs)["aten.convolution_backward"]
    assert work.bytes == 4 * (read + written)
    assert work.kernels == sum(needs) + 2
    assert (work.gemm.flops if work.gemm else 0) == sum(needs) * 2 * 3136 * 36


def x():
    return meta(6, 10)  # 60 elements, 240 bytes


def row():
    return meta(6)


def number():
    return meta(())


def chosen(*shape):
    return meta(*shape, dtype=INT)


IMAGE, SMALL = (2, 3, 4, 6), (2, 3, 2, 3)  # 144 and 36 elements: 576 and 144 bytes
PER_CHANNEL = 3 * 4
# Programs, the bytes that are read and written, and launches where they are not one.
COUNTS = {
    # The mask has a byte per element.
    "aten.native_dropout": (lambda: aten.native_dropout(x(), 0.1, True), 240 + 240 + 60),
    "aten.native_dropout_backward": (
        lambda: aten.native_dropout_backward(x(), meta(6, 10, dtype=BOOL), 1.1), 240 + 60 + 240),
    "aten.polar": (lambda: torch.polar(x(), x()), 240 + 240 + 480),
    "aten.complex": (lambda: torch.complex(x(), x()), 240 + 240 + 480),
    "aten._assert_async": (lambda: aten._assert_async(meta(1)), 4),
    "aten._safe_softmax": (lambda: aten._safe_softmax(x(), -1), 480),
    "aten.logsumexp": (lambda: aten.logsumexp(x(), [1]), 240 + 24),
    "aten.tril": (lambda: x().tril(), 480), "aten.tril_": (lambda: x().tril_(), 480),
    "aten.repeat": (lambda: x().repeat(2, 1), 240 + 480),
    "aten.flip": (lambda: x().flip(0), 480), "aten.roll": (lambda: x().roll(1, 0), 480),
    "aten.std": (lambda: x().std(1), 240 + 24), "aten.var": (lambda: x().var(1), 240 + 24),
    "aten.min": (lambda: x().min(), 240 + 4), "aten.amin": (lambda: x().amin(1), 240 + 24),
    "aten.argmax": (lambda: x().argmax(1), 240 + 6 * 8),
    "aten.all": (lambda: meta(6, 10, dtype=BOOL).all(), 60 + 1),
    "aten.histc": (lambda: x().histc(10), 240 + 40),
    "aten.multinomial": (lambda: x().multinomial(2), 240 + 6 * 2 * 8),
    "aten.unfold_copy": (lambda: aten.unfold_copy(x(), 1, 4, 2), 240 + 6 * 4 * 4 * 4),
    "aten.masked_scatter": (lambda: x().masked_scatter(meta(6, 10, dtype=BOOL), x()),
                            240 + 60 + 240 + 240),
    # Scale, growth count, and overflow flag are read, the scale is written: 4 bytes each.
    "aten._amp_update_scale_": (lambda: aten._amp_update_scale_(
        meta(1), meta(1, dtype=torch.int32), meta(1), 2.0, 0.5, 9), 16),
    # Tensors of 6 and 4 rows in two chunks: [2, 3 x 10 + 2 x 10].
    "aten._chunk_cat": (lambda: aten._chunk_cat([x(), meta(4, 10)], 0, 2), 240 + 160 + 400),
    "aten.split_with_sizes_copy": (lambda: aten.split_with_sizes_copy(x(), [2, 4]), 480),
    # FSDP2. Shards of 10 and 20 elements are copied into one rank's part of an output of four.
    "fsdp.all_gather_copy_in": (lambda: torch.ops.fsdp.all_gather_copy_in(
        [meta(10), meta(20)], meta(120), [10, 20], 30, 1), 120 + 120),
    "fsdp.split_with_sizes_copy": (lambda: torch.ops.fsdp.split_with_sizes_copy(
        meta(2, 30), [10, 20], 1, out=[meta(2, 10), meta(2, 20)]), 240 + 240),
    # As _chunk_cat, from bf16 to fp32.
    "fsdp.chunk_cat": (lambda: torch.ops.fsdp.chunk_cat(
        [meta(6, 10, dtype=HALF), meta(4, 10, dtype=HALF)], 0, 2, out=meta(2, 50)),
        120 + 80 + 400),
    # Weight, bias, and running statistics; the batch's statistics are results, and take a pass.
    "aten.native_batch_norm": (lambda: F.batch_norm(
        meta(*IMAGE), meta(3), meta(3), meta(3), meta(3), training=True),
        3 * 576 + 6 * PER_CHANNEL, 2),
    # dY and X are read twice, weight, running and batch statistics once; dX, dW, db written.
    "aten.native_batch_norm_backward": (lambda: aten.native_batch_norm_backward(
        meta(*IMAGE), meta(*IMAGE), *(meta(3) for _ in range(5)), True, 1e-5, [True] * 3),
        5 * 576 + 7 * PER_CHANNEL, 2),
    # The statistics, then the result: X is read twice. 6 groups, 3 channels, 12 bytes each.
    "aten.native_group_norm": (lambda: aten.native_group_norm(
        meta(*IMAGE), meta(3), meta(3), 2, 3, 24, 3, 1e-5),
        3 * 576 + 2 * PER_CHANNEL + 2 * 6 * 4, 3),
    # dY and X are read twice; mean, inverse deviation, and weight once; dX, dW, db written.
    "aten.native_group_norm_backward": (lambda: aten.native_group_norm_backward(
        meta(*IMAGE), meta(*IMAGE), meta(2, 3), meta(2, 3), meta(3), 2, 3, 24, 3, [True] * 3),
        5 * 576 + 3 * PER_CHANNEL + 2 * 6 * 4, 4),
    # X and the weight are read; Y and 6 inverse root mean squares written.
    "aten._fused_rms_norm": (lambda: F.rms_norm(x(), (10,), meta(10)), 2 * 240 + 40 + 24),
    # One kernel reads dY, X, the 6 numbers, and the weight, and writes dX. Another reads all but
    # the weight, and writes dW.
    "aten._fused_rms_norm_backward": (lambda: aten._fused_rms_norm_backward(
        x(), x(), [10], meta(6, 1), meta(10), [True, True]), 5 * 240 + 2 * 24 + 2 * 40, 2),
    # 36 maxima and their 8-byte indices.
    "aten.max_pool2d_with_indices": (
        lambda: F.max_pool2d(meta(*IMAGE, grad=True), 2), 576 + 144 + 288),
    "aten.max_pool2d_with_indices_backward": (
        lambda: F.max_pool2d(meta(*IMAGE, grad=True), 2).backward(meta(*SMALL)),
        144 + 576 + 288 + 576),
    "aten.avg_pool2d": (lambda: F.avg_pool2d(meta(*IMAGE), 2), 576 + 144),
    "aten.avg_pool2d_backward": (
        lambda: F.avg_pool2d(meta(*IMAGE, grad=True), 2).backward(meta(*SMALL)), 144 + 576 + 576),
    "aten._adaptive_avg_pool2d": (
        lambda: F.adaptive_avg_pool2d(meta(*IMAGE), (2, 3)), 576 + 144),
    "aten._adaptive_avg_pool2d_backward": (
        lambda: aten._adaptive_avg_pool2d_backward(meta(*SMALL), meta(*IMAGE)), 144 + 576 + 576),
    # The whole is filled; then 2 of 6 rows, or one, or the diagonal, are read and written.
    "aten.slice_backward": (
        lambda: aten.slice_backward(meta(2, 10), [6, 10], 0, 0, 2, 1), 240 + 2 * 80, 2),
    "aten.select_backward": (
        lambda: aten.select_backward(meta(10), [6, 10], 0, 1), 240 + 2 * 40, 2),
    "aten.diagonal_backward": (
        lambda: aten.diagonal_backward(meta(6), [6, 10], 0, 0, 1), 240 + 2 * 24, 2),
    "aten.unfold_backward": (
        lambda: aten.unfold_backward(meta(6, 4, 4), [6, 10], 1, 4, 2), 240 + 2 * 384, 2),
    "aten.constant_pad_nd": (lambda: F.pad(x(), (1, 1)), 6 * 12 * 4 + 2 * 240, 2),
    # A running sum, a sort, a reduction to one number: two kernels.
    "aten.cumsum": (lambda: x().cumsum(1), 480, 2),
    "aten.sort": (lambda: x().sort(1), 240 + 240 + 480, 2),  # and 8-byte indices
    "aten.topk": (lambda: x().topk(2, 1), 240 + 48 + 96, 2),
    "aten.prod": (lambda: x().prod(), 240 + 4, 2),
    "aten.var_mean": (lambda: torch.var_mean(x(), 1), 240 + 2 * 24, 2),
    # Three rows of 40 bytes are read and written, and three 8-byte numbers read.
    "aten.index": (lambda: x()[chosen(3)], 2 * 120 + 24),
    # A table of 20 rows is written; six rows of gradients are read and written.
    "aten.embedding_dense_backward": (
        lambda: aten.embedding_dense_backward(x(), chosen(6), 20, -1, False), 20 * 40 + 2 * 240),
    "aten.embedding_renorm_": (
        lambda: aten.embedding_renorm_(x(), chosen(3), 1.0, 2.0), 240 + 24 + 240),
    # 12 elements are written, of which the indices, and the values, are read.
    "aten.scatter_": (lambda: x().scatter_(1, chosen(6, 2), meta(6, 2)), 48 + 96 + 48),
    "aten.scatter": (  # and the target is copied first
        lambda: x().scatter(1, chosen(6, 2), meta(6, 2)), 48 + 96 + 48 + 480, 2),
    "aten.index_put_": (lambda: aten.index_put_(x(), [chosen(3)], meta(3, 10)), 120 + 24 + 120),
    "aten.index_copy_": (lambda: x().index_copy_(0, chosen(3), meta(3, 10)), 120 + 24 + 120),
    # Six numbers are compared with three, and six booleans written.
    "aten.isin": (lambda: torch.isin(chosen(6), chosen(3)), 48 + 24 + 6),
    "aten.index_put": (
        lambda: aten.index_put(x(), [chosen(3)], meta(3, 10)), 120 + 24 + 120 + 480, 2),
}
WRITTEN = {  # nothing is read
    "aten.randint": (lambda: torch.randint(5, (6, 10), device="meta"), 480),
    "aten.randn": (lambda: torch.randn(6, 10, device="meta"), 240),
    "aten.rand": (lambda: torch.rand(6, 10, device="meta"), 240),
    "aten.randperm": (lambda: torch.randperm(6, device="meta"), 48),
    "aten.eye": (lambda: torch.eye(6, device="meta"), 144),
    "aten.linspace": (lambda: torch.linspace(0, 1, 6, device="meta"), 24),
    "aten.tril_indices": (lambda: torch.tril_indices(3, 3, device="meta"), 2 * 6 * 8),
    "aten.triu_indices": (lambda: torch.triu_indices(3, 3, device="meta"), 2 * 6 * 8),
    "aten.rand_like": (lambda: torch.rand_like(x()), 240),
    "aten.randn_like": (lambda: torch.randn_like(x()), 240),
    "aten.randint_like": (lambda: torch.randint_like(x(), 5), 240),
    "aten.bernoulli_": (lambda: x().bernoulli_(0.5), 240),
    "aten.random_": (lambda: x().random_(), 240),
    "aten.exponential_": (lambda: x().exponential_(), 240),
}
@pytest.mark.parametrize("name", COUNTS | WRITTEN)
def test_the_bytes_and_launches_of(name):
    program, size, *launches = (COUNTS | WRITTEN)[name]
    assert counted(program, name) == (size, *(launches or [1]))


# Rules of the trainer's kernels, whose bytes test_rooflines.py and tests/virtualgpu/twins compare.
TRAINER = {f"aten.{name}" for name in (
    "mm", "bmm", "addmm", "addmm_", "baddbmm", "copy_", "embedding", "index_select", "gather",
    "index_add_", "scatter_add_", "native_layer_norm_backward", "linalg_vector_norm", "sum",
    "_to_copy", "clone", "cat", "stack", "native_layer_norm", "_softmax",
    "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data", "mean", "amax",
    "any", "max", "triu_", "triu", "where", "masked_fill", "masked_fill_", "zero_", "fill_",
    "full", "zeros", "ones", "zeros_like", "ones_like", "full_like", "new_zeros", "new_full",
    "new_ones", "arange", "normal_", "uniform_", "scalar_tensor")}


def test_every_rule_is_counted():
    """Here, in the tests above, in test_loss_rules.py, or in test_multi_tensor_rules.py."""
    others = {name for name in COSTS if name.startswith("virtualgpu.") or any(
        part in name for part in ("attention", "convolution", "_scaled_mm", "_grouped", "_foreach",
                                  "_fused_ad", "_fused_sgd", "_loss", "cross_entropy"))}
    assert {*COUNTS, *WRITTEN} == {*COSTS} - others - TRAINER
    assert not {*COUNTS, *WRITTEN} & TRAINER


def test_no_operation_has_two_rules():
    kinds = (attention, gemm, moves, optimizer, pointwise, reductions)
    assert sum(len(kind.COSTS) for kind in kinds) == len(COSTS)


def test_silu_s_gradient_is_one_kernel_as_on_cuda():
    """Torch takes it apart where a device has no kernel for it. dY and X are read, dX written."""
    def program():
        F.silu(meta(6, 10, grad=True)).backward(x())
    assert counted(program, "aten.silu_backward") == (3 * 240, 1)


def test_values_that_are_added_are_read_first():
    """Two 8-byte indices name 3 elements of [6, 10] each time they are broadcast: [3, 1] x [2]."""
    def put(*, accumulate):
        return lambda: aten.index_put_(x(), [chosen(3, 1), chosen(2)], meta(3, 2), accumulate)
    read = 8 * (3 + 2) + 4 * 6
    assert counted(put(accumulate=False), "aten.index_put_") == (4 * 6 + read, 1)
    assert counted(put(accumulate=True), "aten.index_put_") == (2 * 4 * 6 + read, 1)


def test_a_mask_may_name_every_element():
    mask = meta(6, 10, dtype=BOOL)
    assert counted(lambda: aten.index_put_(x(), [mask], number()), "aten.index_put_") == (
        240 + 60 + 4 + 240, 1)
