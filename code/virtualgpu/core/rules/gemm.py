"""GEMMs and convolutions: tiles, waves, and the data sheet's peak.

The result of a GEMM [m, k] x [k, n] is partitioned into tiles; a multiprocessor computes one at a
time, and all of them finish a wave of tiles together. A last wave that is not full, tiles that
extend past the edge, and a short k waste part of the peak. The fastest of a few tile shapes is
chosen, as in cuBLAS. (NVIDIA's "Matrix Multiplication Background" guide explains the scheme.)
A convolution is an implicit GEMM.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from virtualgpu.core.card import Card
from virtualgpu.core.operand import Operand, channels_last, moved
from virtualgpu.core.rules.returns import (
    Arguments,
    Result,
    expands,
    like,
    matching,
    one_per_dimension,
    promoted,
    require,
    returns,
    same_dtype,
    window_positions,
)
from virtualgpu.core.rules.work import (
    DTYPES,
    FULL_ALIGNMENT,
    CostRule,
    GemmShape,
    KernelWork,
    read_and_write,
)

# Rows and columns of a tile. Small tiles fetch more bytes per FLOP: the rate is proportional to
# area^QUALITY. QUALITY and RAMP are fitted to half of vTrain's measured iterations on the A100
# (benchmarks/virtual_calibration.py).
TILES = ((256, 128), (128, 256), (128, 128), (256, 64), (64, 256), (128, 64), (64, 128), (64, 64),
         (32, 64), (64, 32), (32, 32))
LARGEST_AREA, QUALITY = 256 * 128, 0.08
RAMP = 37  # steps of k that take as long as filling a tile's pipeline and writing the tile out
SLICES = (1, 2, 4, 8)  # parts of a long k on different multiprocessors (split-K)
# The share of the full rate that Tensor Cores reach if a matrix's rows are an odd multiple of 2
# bytes, and if they are a multiple of 4 or 8 bytes. cuBLAS uses Tensor Cores for all sizes since
# version 11, and is fastest if the rows of all three matrices are multiples of 16 bytes, or 8
# elements of 16 bits (NVIDIA, "Matrix Multiplication Background User's Guide", section 2.2).
# Hopper: an H100 with torch 2.11 and CUDA 13 (benchmarks/results/gpu_h100.md). Six bf16 GEMMs
# with rows of odd length reach 0.13 to 0.20 of the modeled rate, bf16 at order 4100 reaches 0.34,
# and TF32 with rows of odd length 0.35.
# The others: an RTX 4090 in bf16, 111 TFLOP/s at the odd orders 2055, 2057, 2071 and 2073, and 156
# at 2040 (github.com/pytorch/pytorch issue 181718). The same table has 90 and 84 at 2056 and 2072,
# where cuBLAS picks a slow kernel although rows are multiples of 16 bytes; this is not modeled.
# Assumed: the same share for rows of 4 or 8 bytes, and for Volta, Turing, and Ampere;
# Blackwell as Hopper.
UNALIGNED = {"hopper": (0.17, 0.34), "blackwell": (0.17, 0.34)}
UNALIGNED_DEFAULT = (0.71, 0.71)


# The share of the fp32 rate that depthwise convolutions reach: their kernels
# (ATen/native/cuda/DepthwiseConv2d.cu) use no Tensor Cores, and compute an index and load two
# operands for every multiplication. Fitted to five of timm's models on an RTX 3090: the calibration
# rows of benchmarks/published/timm_rtx3090.json that have such convolutions.
DEPTHWISE = 0.08


def depthwise_rate(card: Card) -> float:
    """Return the FLOP/s that depthwise convolutions reach."""
    return DEPTHWISE * rate(card, "fp32")


def alignment(*rows: int) -> int:
    """Return the largest power of two, at most 16, that divides the matrices' rows, in bytes."""
    return math.gcd(FULL_ALIGNMENT, *rows)


def rate(card: Card, dtype: str, aligned: int = FULL_ALIGNMENT) -> float:
    """Return the FLOP/s that large GEMMs reach.

    Args:
        card: the GPU model.
        dtype: dtype of the operands.
        aligned: result of `alignment`, in bytes.
    """
    full = card.tflops[dtype] * 1e12 * card.efficiency.matmul[dtype]
    if aligned == FULL_ALIGNMENT or dtype not in ("tf32", "fp16", "bf16"):
        return full
    odd, even = UNALIGNED.get(card.architecture, UNALIGNED_DEFAULT)
    return full * (odd if aligned <= 2 else even)


def matmul_seconds(card: Card, dtype: str, batch: int, m: int, n: int, k: int,
                   aligned: int = FULL_ALIGNMENT) -> float:
    """Return the compute time of `batch` GEMMs [m, k] x [k, n], in seconds, without memory traffic.

    Args:
        card: the GPU model.
        dtype: dtype of the operands.
        batch: number of GEMMs.
        m: rows of the first operand.
        n: columns of the second operand.
        k: the inner dimension.
        aligned: result of `alignment`, in bytes.
    """
    return min(seconds for seconds, _ in choices(card, dtype, batch, m, n, k, aligned))


def best_tile(card: Card, dtype: str, batch: int, m: int, n: int, k: int,
              aligned: int = FULL_ALIGNMENT) -> tuple[int, int, int]:
    """Return the fastest tile's rows and columns, and the number of slices of k.

    The arguments are those of matmul_seconds.
    """
    return min(choices(card, dtype, batch, m, n, k, aligned), key=lambda choice: choice[0])[1]


def choices(card: Card, dtype: str, batch: int, m: int, n: int, k: int, aligned: int
            ) -> Iterator[tuple[float, tuple[int, int, int]]]:
    """Yield the time in seconds for each tile shape and number of slices.

    The arguments are those of matmul_seconds.
    """
    per_sm = rate(card, dtype, aligned) / card.sms
    for rows, columns in TILES:
        quality = (rows * columns / LARGEST_AREA) ** QUALITY
        tiles = batch * -(-m // rows) * -(-n // columns)
        for slices in SLICES:
            if slices > 1 and (k < 1024 * slices or tiles * slices > 2 * card.sms):
                break
            waves = -(-tiles * slices // card.sms)
            steps = k / slices + RAMP
            yield waves * 2 * rows * columns * steps / (per_sm * quality), (rows, columns, slices)


# ---- costs


def gemm(a: Operand, b: Operand, results: Sequence[Operand],
         addend: Operand | None = None) -> KernelWork:
    """Cost of a GEMM.

    Args:
        a: operand [.., m, k].
        b: operand [.., k, n].
        results: a list with only the result.
        addend: tensor that the same kernel adds, or None.
    """
    *batch, m, k = a.shape
    shape = GemmShape(DTYPES.get(a.dtype, "fp32"), batch[0] if batch else 1, m, b.shape[-1], k,
                      alignment(*map(row_bytes, (a, b, results[0]))))
    size = moved(a) + moved(b) + moved(results[0]) + (0 if addend is None else moved(addend))
    return KernelWork(size, gemm=shape)


def row_bytes(matrix: Operand) -> int:
    """Return the stride between rows in bytes, or between columns if these are contiguous.

    It is 0 for a single row or column.
    """
    return matrix.element_size() * math.gcd(*(
        step for size, step in zip(matrix.shape, matrix.stride(), strict=True)
        if size > 1 and step > 1))


def scaled_gemm(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """_scaled_mm(a, b, scale_a, scale_b, ..): two FP8 or FP4 matrices at the GPU's measured rate.

    Assumed: block scales do not slow the GEMM down, apart from reading them. An element of a
    float4_e2m1fn_x2 tensor is a pair of values along k.
    """
    (m, k), n = arguments[0].shape, arguments[1].shape[1]
    dtype, packed = ("fp4", 2) if arguments[0].dtype == torch.float4_e2m1fn_x2 else ("fp8", 1)
    return KernelWork(sum(map(moved, arguments[:4])) + moved(results[0]), gemm=GemmShape(
        dtype, 1, m, n, packed * k))


def grouped_gemm(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """_grouped_mm(a, b, offsets, ..): one GEMM per group, in one kernel.

    The offsets divide the rows of a [m, k] among the matrices of b [groups, k, n], or the columns
    of b, or the inner dimension of two matrices. Assumed: all groups are equally large.
    """
    a, b = arguments[:2]
    rows, columns = results[0].shape[-2:]
    inner = a.shape[-1]
    if a.dim() == 3:
        groups = a.shape[0]
        columns = columns if b.dim() == 3 else columns // groups
    elif b.dim() == 3:
        groups = b.shape[0]
        rows = -(-rows // groups)
    else:
        groups = results[0].shape[0]
        inner = -(-inner // groups)
    shape = GemmShape(DTYPES.get(a.dtype, "fp32"), groups, rows, columns, inner,
                      alignment(*map(row_bytes, (a, b, results[0]))))
    return KernelWork(moved(a) + moved(b) + moved(results[0]), gemm=shape)


def convolution(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """convolution(input, weight, bias, stride, padding, dilation, transposed, .., groups): an
    implicit matrix multiplication (Chetlur et al. 2014, cuDNN, arXiv:1410.0759). A second kernel
    adds the bias in place (ATen/native/Convolution.cpp)."""
    x, weight, bias = arguments[:3]
    work = _convolution_work(x, weight, results[0], arguments[6], arguments[8], 1)
    biased = bias is not None
    size = read_and_write(arguments, results).bytes + 2 * biased * moved(results[0])
    copied = _transposed(work, x, weight, (x, weight, results[0]))
    apart = 2 * biased * moved(results[0]) + 2 * sum(map(moved, copied))
    return work._replace(bytes=size + 2 * sum(map(moved, copied)), apart=apart,
                         kernels=1 + biased + len(copied))


def convolution_backward(arguments: Sequence, results: Sequence[Operand]) -> KernelWork:
    """convolution_backward(grad, input, weight, .., transposed, .., groups, mask): the gradients of
    the input and of the weight are a matrix multiplication each, with the forward pass's FLOPs
    (Chetlur et al. 2014). The bias's gradient is a sum in two passes, as in aten.sum."""
    grad, x, weight, *_ = arguments
    for_input, for_weight, for_bias = map(bool, arguments[10])
    read = (for_input * (moved(grad) + moved(weight)) + for_weight * (moved(grad) + moved(x))
            + for_bias * moved(grad))
    count, work, copied = for_input + for_weight, KernelWork(0), ()
    if count:
        work = _convolution_work(x, weight, grad, arguments[7], arguments[9], count)
        copied = _transposed(work, x, weight, (grad, x, weight) * count)
    size = 2 * sum(map(moved, copied))
    return work._replace(bytes=read + sum(map(moved, results)) + size,
                         apart=for_bias * moved(grad) + size,
                         kernels=count + 2 * for_bias + len(copied))


def _transposed(work: KernelWork, x: Operand, weight: Operand, images: Sequence[Operand]
                ) -> Sequence[Operand]:
    """Return those operands and results of a convolution that kernels of their own transpose.

    Tensor Cores read 16-bit images in NHWC only; cuDNN transposes others before and after
    (docs.mosaicml.com/projects/composer/en/stable/method_cards/channels_last.html).

    Args:
        work: the convolution's.
        x: its input.
        images: what the convolution's passes read and write, each as often as a pass does.
    """
    if (work.gemm is None or work.gemm.dtype not in ("fp16", "bf16") or x.dim() != 4
            or channels_last(x) or channels_last(weight)):
        return ()
    return images


def _convolution_work(x: Operand, weight: Operand, out: Operand, transposed: bool, groups: int,
               count: int) -> KernelWork:
    """Return the work of `count` passes over a convolution, without its bytes.

    A depthwise convolution, with one input channel per group, is no matrix multiplication
    (depthwise_rate), and memory traffic limits it unless the window is large.
    """
    gemm = _convolution_gemm(x, weight, out, transposed, groups)
    if groups > 1 and groups == x.shape[1] and weight.shape[1] == 1 and not transposed:
        return KernelWork(0, flops=count * gemm.flops, dtype="fp32")
    return KernelWork(0, gemm=gemm._replace(k=count * gemm.k))


def _convolution_gemm(x: Operand, weight: Operand, out: Operand,
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


COSTS: dict[str, CostRule] = {
    "aten.mm": lambda a, r: gemm(a[0], a[1], r),
    "aten.bmm": lambda a, r: gemm(a[0], a[1], r),
    "aten.addmm": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "aten.addmm_": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "aten.baddbmm": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "virtualgpu.add_product": lambda a, r: gemm(a[1], a[2], r, a[0]),
    "aten._grouped_mm": grouped_gemm,
    "aten._scaled_mm": scaled_gemm,
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
}


# ---- results


def _matmul(a: Operand, b: Operand, dims: int) -> list[Result]:
    require(a.dim() == b.dim() == dims, f"expected {dims} dimensions", a=a, b=b)
    require(a.shape[:-2] == b.shape[:-2], "expected the batch of batch1 and batch2 to be equal",
            a=a, b=b)
    require(a.shape[-1] == b.shape[-2],
            "expected a and b to have the same reduction dim", a=a, b=b)
    same_dtype(a, b)
    return [((*a.shape[:-1], b.shape[-1]), a.dtype)]


@returns("mm", "bmm")
def _mm(a: Arguments) -> list[Result]:
    found = _matmul(a.self, a.mat2, 2 if a.name == "mm" else 3)
    return [(found[0][0], getattr(a, "out_dtype", None) or found[0][1])]


@returns("addmm", "_addmm_activation", "baddbmm")
def _addmm(a: Arguments) -> list[Result]:
    left, right = (a.batch1, a.batch2) if a.name == "baddbmm" else (a.mat1, a.mat2)
    found = _matmul(left, right, left.dim() if left.dim() in (2, 3) else 2)
    require(left.dim() == (3 if a.name == "baddbmm" else 2), "expected matrices", a=left, b=right)
    expands(a.self.shape, found[0][0])
    return [(found[0][0], getattr(a, "out_dtype", None) or found[0][1])]


@returns("virtualgpu.add_product")
def _add_product(a: Arguments) -> list[Result]:
    require(a.total.shape == _matmul(a.a, a.b, 2)[0][0], "another shape than the sum's",
            total=a.total, a=a.a, b=a.b)
    return []


@returns("addbmm")
def _addbmm(a: Arguments) -> list[Result]:
    ((_, *shape), dtype), = _matmul(a.batch1, a.batch2, 3)
    expands(a.self.shape, shape)
    return [(tuple(shape), dtype)]


@returns("mv", "addmv")
def _mv(a: Arguments) -> list[Result]:
    matrix = a.mat if a.name == "addmv" else a.self
    require(matrix.dim() == 2 and a.vec.shape == matrix.shape[1:],
            "expected a matrix and a vector with the same reduction dim", a=matrix, b=a.vec)
    same_dtype(matrix, a.vec)
    if a.name == "addmv":
        expands(a.self.shape, matrix.shape[:1])
    return [(matrix.shape[:1], matrix.dtype)]


@returns("dot", "vdot")
def _dot(a: Arguments) -> list[Result]:
    other = a.other if a.name == "vdot" else a.tensor
    matching(a.self.dim() == 1 and a.self.shape == other.shape, a=a.self, b=other)
    same_dtype(a.self, other)
    return [((), a.self.dtype)]


@returns("addr")
def _addr(a: Arguments) -> list[Result]:
    require(a.vec1.dim() == a.vec2.dim() == 1, "expected vectors", a=a.vec1, b=a.vec2)
    shape = (*a.vec1.shape, *a.vec2.shape)
    expands(a.self.shape, shape)
    return [(shape, promoted([a.self, a.vec1, a.vec2]))]


@returns("_scaled_mm")
def _scaled_mm(a: Arguments) -> list[Result]:
    require(a.self.dim() == a.mat2.dim() == 2 and a.self.shape[1] == a.mat2.shape[0],
            "expected a and b to have the same reduction dim", a=a.self, b=a.mat2)
    if a.self.dtype.itemsize > 1 or a.mat2.dtype.itemsize > 1:
        raise ValueError("_scaled_mm multiplies matrices of 8 or 4 bits")
    return [((a.self.shape[0], a.mat2.shape[1]), a.out_dtype or a.self.dtype)]


@returns("_grouped_mm")
def _grouped_mm(a: Arguments) -> list[Result]:
    left, right = a.self, a.mat2
    require(2 <= left.dim() <= 3 and 2 <= right.dim() <= 3
            and left.shape[-1] == right.shape[-2], "grouped matrices", a=left, b=right)
    require(left.dim() == 2 or right.dim() == 2 or left.shape[0] == right.shape[0],
            "expected equally many groups", a=left, b=right)
    same_dtype(left, right)
    groups: tuple[int, ...] = ()
    if left.dim() == right.dim() == 3:
        groups = left.shape[:1]
    elif left.dim() == right.dim():
        require(a.offs is not None, "expected offsets", a=left, b=right)
        groups = a.offs.shape
    return [((*groups, left.shape[-2], right.shape[-1]), a.out_dtype or left.dtype)]


@returns("_int_mm")
def _int_mm(a: Arguments) -> list[Result]:
    return [(_matmul(a.self, a.mat2, 2)[0][0], torch.int32)]


def _convolved(x: Operand, weight: Operand, a: Arguments) -> tuple[int, ...]:
    """Return the output's shape."""
    dims = x.dim() - 2
    require(dims > 0 and weight.dim() == x.dim(), "a convolution", input=x, weight=weight)
    options = [one_per_dimension(values, dims) for values in (a.stride, a.padding, a.dilation,
                                                  a.output_padding if a.transposed else [0])]
    sizes = []
    given, out = (weight.shape[0], weight.shape[1] * a.groups) if a.transposed else (
        weight.shape[1] * a.groups, weight.shape[0])
    require(a.groups >= 1 and given == x.shape[1] and out % a.groups == 0,
            f"a convolution in {a.groups} groups: another number of channels", input=x,
            weight=weight)
    for size, kernel, stride, padding, dilation, extra in zip(
            x.shape[2:], weight.shape[2:], *options, strict=True):
        if a.transposed:
            window_positions(dilation * kernel, kernel, stride, padding, dilation)  # valid numbers
            size = (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
            require(size > 0 <= extra, "an empty convolution", input=x, weight=weight)
            sizes.append(size)
        else:
            sizes.append(window_positions(size, kernel, stride, padding, dilation))
    same_dtype(x, weight)
    return (x.shape[0], out, *sizes)


@returns("convolution")
def _convolution(a: Arguments) -> list[Result]:
    shape = _convolved(a.input, a.weight, a)
    if a.bias is not None:
        matching(a.bias.shape == shape[1:2], bias=a.bias, weight=a.weight)
    return [(shape, a.input.dtype)]


@returns("convolution_backward")
def _convolution_backward(a: Arguments) -> list[Result]:
    shape = _convolved(a.input, a.weight, a)
    same_dtype(a.grad_output, a.input)
    matching(a.grad_output.shape == shape, grad=a.grad_output,
             output=Operand(shape, (), a.input.dtype))
    found = [like(a.input), like(a.weight), (shape[1:2], a.grad_output.dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=True) if wanted]
