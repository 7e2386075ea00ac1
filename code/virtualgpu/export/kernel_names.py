"""Names and launch configurations of an operation's kernels.

The names follow those of PyTorch, cuBLAS, NCCL, Apex, and Megatron-LM on each generation of GPUs,
so that tools that recognize kernels by name (the profiler's "Tensor Cores used") read them right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from virtualgpu.core.card import Card, generation
from virtualgpu.core.operand import Operand
from virtualgpu.core.plan import OperationPlan, Results
from virtualgpu.core.rules.gemm import best_tile
from virtualgpu.core.rules.work import FULL_ALIGNMENT, GemmShape

KERNEL, COPY, SET = "kernel", "gpu_memcpy", "gpu_memset"
FUSED = "triton"  # Inductor's kernels: triton_poi_fused_add_mul, or _red_ if one of them reduces
# C++ names as the profiler writes them, and as kernels' template arguments.
CPP = {torch.float32: "float", torch.float16: "c10::Half", torch.bfloat16: "c10::BFloat16",
       torch.float64: "double", torch.int64: "long int", torch.int32: "int", torch.bool: "bool",
       torch.uint8: "unsigned char", torch.float8_e4m3fn: "c10::Float8_e4m3fn",
       torch.float8_e5m2: "c10::Float8_e5m2", torch.float8_e8m0fnu: "c10::Float8_e8m0fnu"}


class Kernel(NamedTuple):
    """One kernel of an operation.

    Attributes:
        name: name in a trace.
        kind: KERNEL, COPY, or SET.
        share: share of the operation's time.
        grid: number of thread blocks.
        block: threads per block.
        limit: occupancy that registers and shared memory allow, from 0 to 1.
    """

    name: str
    kind: str = KERNEL
    share: float = 1.0
    grid: int = 1
    block: int = 128
    limit: float = 1.0


class TensorShape(NamedTuple):
    """A tensor's part of a plan's key (plan.signature)."""

    size: torch.Size
    strides: tuple
    dtype: torch.dtype
    on_gpu: bool


def shapes_of(key: tuple) -> Iterator[TensorShape]:
    """Yield the shapes of an operation's tensors, including those in lists."""
    for mark in key:
        if isinstance(mark, tuple):
            if len(mark) == 4 and isinstance(mark[0], torch.Size):
                yield TensorShape(*mark)
            else:
                yield from shapes_of(mark)


def specs_of(results: Results) -> Iterator[Operand]:
    """Yield the specifications of the tensors in a plan's results.

    Results may contain numbers: fused attention returns the longest sequence's length.
    """
    if isinstance(results, Operand):
        yield results
    elif isinstance(results, list):
        for item in results:
            yield from specs_of(item)


def occupancy(card: Card, kernel: Kernel) -> float:
    """Return the occupancy in percent, as the profiler estimates it."""
    _, _, threads = generation(card)
    return 100 * min(kernel.limit, kernel.grid * kernel.block / (card.sms * threads))


def kernels_of(card: Card, key: tuple, plan: OperationPlan) -> list[Kernel]:
    """Return the kernels that an operation launches; their shares of its time add up to 1."""
    shapes = list(shapes_of(key[1:]))
    if plan.work is not None and plan.work.gemm is not None:
        added = plan.name not in ("aten.mm", "aten.bmm", "aten._scaled_mm")  # comes first
        return [gemm_kernel(card, shapes[added:added + 2], plan.work.gemm)]
    if plan.name in ("aten._to_copy", "aten.copy_") and not all(shape.on_gpu for shape in shapes):
        return [Kernel("Memcpy HtoD (Pinned -> Device)", COPY)]
    if plan.name == "aten.copy_" and shapes[0] == shapes[1]:
        return [Kernel("Memcpy DtoD (Device -> Device)", COPY)]
    specs = list(specs_of(plan.results))
    sizes = [shape.size for shape in shapes] + [spec.shape for spec in specs]
    widest = max(sizes, key=math.prod, default=torch.Size())
    dtype = next((item.dtype for item in (*shapes, *specs) if item.dtype.is_floating_point),
                 torch.int64)
    name = plan.name + (" fp32" if dtype == torch.float32 else "")
    patterns = PATTERNS.get(name) or PATTERNS.get(plan.name) or elementwise(plan.name)
    if plan.name.startswith(FUSED):
        patterns = [Pattern(plan.name)]
    kernels = [kernel_from(pattern, CPP.get(dtype, str(dtype)), widest) for pattern in patterns]
    kernels += [kernels[-1]] * (plan.kernels - len(kernels))
    if len(kernels) > plan.kernels:  # a small reduction needs no counters to be set
        kernels = [kernel for kernel in kernels if kernel.kind != SET]
    return normalized(kernels[:plan.kernels])


def normalized(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with shares that add up to 1."""
    total = sum(kernel.share for kernel in kernels)
    return [kernel._replace(share=kernel.share / total) for kernel in kernels]


def gemm_kernel(card: Card, factors: list[TensorShape], work: GemmShape) -> Kernel:
    """Return the kernel of a GEMM.

    Column-major libraries see a row-major a @ b as b^T @ a^T, so b's letter comes first.
    """
    rows, columns, slices = best_tile(card, *work)
    a, b = factors
    layout = "".join("n" if matrix.strides[-1] == 1 else "t" for matrix in (b, a))
    tile = f"{columns}x{rows}"
    tiles = work.batch * -(-work.m // rows) * -(-work.n // columns)
    name = (gemm_name(card, work, tile, layout) if work.dtype not in ("fp8", "fp4") else
            scaled_gemm_name(card, tile, layout, b.dtype, a.dtype)) + ("_splitK" if slices > 1
                                                                       else "")
    # 128 threads compute a small tile, 256 a large one; registers leave room for 512 at a time.
    return Kernel(name, grid=tiles * slices, block=256 if rows * columns > 64 * 64 else 128,
                  limit=512 / generation(card)[2])


def gemm_name(card: Card, work: GemmShape, tile: str, layout: str) -> str:
    """Return cuBLAS's kernel name by generation: s884, s1688 and s16816 are the shapes of the
    Tensor Core instructions of Volta, Turing and Ampere."""
    dtype, by = work.dtype, card.architecture
    load = 8 if work.aligned == FULL_ALIGNMENT else 1
    if dtype == "fp64":
        return f"{by}_dgemm_{tile}_{layout}"
    if dtype == "fp32":
        return f"{'volta' if by in ('volta', 'turing') else 'ampere'}_sgemm_{tile}_{layout}"
    if by in ("volta", "turing"):
        shape = {"volta": "s884", "turing": "s1688"}[by]
        return f"{by}_fp16_{shape}gemm_fp16_{tile}_ldg{load}_f2f_{layout}"
    if by == "hopper":
        short = {"fp16": "f16f16_f16f32_f32", "bf16": "bf16bf16_bf16f32_f32"}.get(
            dtype, "tf32f32_tf32f32_f32")
        return f"sm90_xmma_gemm_{short}_{layout}_n_tilesize{tile}x64_warpgroupsize1x1x1_cublas"
    return (f"ampere_{dtype}_s16816gemm_{dtype}_{tile}_ldg{load}_f2f_stages_64x3_"
            f"{layout}")


def scaled_gemm_name(card: Card, tile: str, layout: str, b: torch.dtype, a: torch.dtype) -> str:
    """Return cuBLASLt's kernel name for 8-bit and 4-bit operands; "qq" means two 8-bit ones."""
    if card.architecture == "blackwell":
        letters = "oo" if a == torch.float4_e2m1fn_x2 else "qq"
        return f"nvjet_sm100_{letters}tst_{tile}_128x6_2x1_2cta_v_bz_{layout.upper()}T"
    one, other = (("e5m2" if item == torch.float8_e5m2 else "e4m3") for item in (b, a))
    name = {"ada": "sm89", "hopper": "sm90"}[card.architecture]
    return f"{name}_xmma_gemm_{one}{other}_{one}f32_f32_{layout}_n_tilesize{tile}x128_cublas"


def nccl_kernel_name(name: str, dtype: torch.dtype, tree: bool) -> str:
    """Return the name of NCCL's kernel for a collective or a transfer."""
    reduction = f"Sum_{NCCL_TYPES.get(dtype, 'u8')}_"
    kernel = {"all_reduce": f"AllReduce_{reduction}{'TREE' if tree else 'RING'}_LL",
              "barrier": "AllReduce_Sum_f32_RING_LL", "all_gather": "AllGather_RING_LL",
              "reduce_scatter": f"ReduceScatter_{reduction}RING_LL",
              "broadcast": "Broadcast_RING_LL"}.get(name, "SendRecv")
    return f"ncclDevKernel_{kernel}(ncclDevKernelArgsStorage<4096ul>)"


NCCL_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
              torch.float64: "f64", torch.int64: "i64", torch.int32: "i32"}


class Pattern(NamedTuple):
    """A kernel for any dtype and size.

    Attributes:
        name: its name, with {t} for the type of its elements.
        per_row: 1 if a thread block processes a row, 0 if it processes 512 elements.
        limit, share: as in Kernel.
    """

    name: str
    per_row: int = 0
    limit: float = 1.0
    share: float = 1.0


def kernel_from(pattern: Pattern, dtype: str, size: torch.Size) -> Kernel:
    """Return the kernel for a dtype, as C++ names it, and the size of the largest operand."""
    count = math.prod(size)
    grid = math.prod(size[:-1]) if pattern.per_row and size else -(-count // 512)
    kind = SET if pattern is MEMSET else KERNEL
    return Kernel(pattern.name.replace("{t}", dtype), kind, grid=max(1, grid),
                  limit=pattern.limit, share=pattern.share)


VECTORIZED = "void at::native::vectorized_elementwise_kernel<4, at::native::"


def elementwise(name: str) -> list[Pattern]:
    short = name.partition(".")[2].strip("_")
    functor = FUNCTORS.get(short, f"{short}_kernel_cuda")
    return [Pattern(VECTORIZED + functor + ">")]


FUNCTORS = {"add": "CUDAFunctor_add<{t}>", "sub": "CUDAFunctor_add<{t}>",
            "mul": "BinaryFunctor<{t}, {t}, {t}, MulFunctor>",
            "div": "BinaryFunctor<{t}, {t}, {t}, DivFunctor>",
            "fill": "FillFunctor<{t}>", "full": "FillFunctor<{t}>", "zeros": "FillFunctor<{t}>",
            "ones": "FillFunctor<{t}>", "ones_like": "FillFunctor<{t}>",
            "zeros_like": "FillFunctor<{t}>", "full_like": "FillFunctor<{t}>",
            "zero": "FillFunctor<{t}>", "scalar_tensor": "FillFunctor<{t}>",
            "gelu": "GeluCUDAKernelImpl<{t}>",
            "gelu_backward": "GeluBackwardCUDAKernelImpl<{t}>"}
COPIES = [
    Pattern("void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>")]
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<{t}, "
MEMSET = Pattern("Memset (Device)", share=0.05)  # of the counters of a reduction by many blocks
NORM = [MEMSET, Pattern(REDUCE + "NormTwoOps> >")]
SUM = [MEMSET, Pattern(REDUCE + "sum_functor> >")]
MEAN = [MEMSET, Pattern(REDUCE + "MeanOps> >")]
LOOKUP = [Pattern("void at::native::vectorized_gather_kernel<16, long>")]
SCATTER = [Pattern("void at::native::_scatter_gather_elementwise_kernel<128, 8, {t}>")]
CAT = [Pattern("void at::native::CatArrayBatchedCopy_aligned16_contig<{t}>")]
MASK = Pattern("void at::native::vectorized_elementwise_kernel<4, masked_fill_kernel<{t}> >")
PATTERNS = {
    "aten._to_copy": COPIES, "aten.copy_": COPIES, "aten.clone": COPIES,
    "aten.sum": SUM, "aten.mean": MEAN,
    "aten.linalg_vector_norm": NORM,
    "aten.amax": [Pattern(REDUCE + "MaxNanFunctor> >")],
    "aten.max": [Pattern(REDUCE + "MaxOps> >")],
    "aten.any": [Pattern(REDUCE + "or_kernel_cuda> >")],
    "aten.embedding": LOOKUP, "aten.index_select": LOOKUP, "aten.gather": SCATTER,
    "aten.scatter_add_": SCATTER,
    "aten.index_add_": [Pattern("void at::native::indexFuncLargeIndex<{t}, long>")],
    "aten.cat": CAT, "aten.stack": CAT,
    "aten.native_layer_norm": [
        Pattern("void at::native::vectorized_layer_norm_kernel<{t}, float>", 1)],
    "aten.native_layer_norm_backward": [
        Pattern("void at::native::layer_norm_grad_input_kernel_vectorized<{t}, float>", 1,
                 share=0.65),
        Pattern("void at::native::GammaBetaBackwardCUDAKernel<{t}, float>", 0, 0.5, 0.35)],
    "aten._fused_rms_norm": [
        Pattern("void at::native::vectorized_layer_norm_kernel<{t}, float, true>", 1)],
    "aten._fused_rms_norm_backward": [
        Pattern("void at::native::layer_norm_grad_input_kernel_vectorized<{t}, float, true>", 1,
                 share=0.6),
        Pattern("void at::native::GammaBetaBackwardCUDAKernel<{t}, float, true>", 0, 0.5, 0.4)],
    "aten._softmax": [Pattern("void softmax_warp_forward<{t}, {t}, float, 10, false>", 1)],
    "aten._softmax_backward_data": [
        Pattern("void softmax_warp_backward<{t}, {t}, float, 10, false>", 1)],
    "aten._log_softmax": [
        Pattern("void at::native::cunn_SoftMaxForward<4, {t}, float, LogSoftMaxForwardEpilogue>",
                 1)],
    "aten._log_softmax_backward_data": [
        Pattern("void at::native::cunn_SoftMaxBackward<4, {t}, float, LogSoftMaxBackwardEpilogue>",
                 1)],
    "aten.nll_loss_forward": [
        Pattern("void at::native::nll_loss_forward_no_reduce_cuda_kernel<{t}>")],
    "aten.nll_loss_backward": [
        Pattern("void at::native::nll_loss_backward_no_reduce_cuda_kernel<{t}>")],
    "aten.mse_loss": [Pattern(VECTORIZED + "mse_kernel_cuda>"), *MEAN],
    "aten.mse_loss_backward": [
        Pattern(VECTORIZED + "FillFunctor<{t}>>", share=0.3),
        Pattern(VECTORIZED + "mse_backward_cuda_kernel>")],
    "virtualgpu.dropout": [
        Pattern("void at::native::fused_dropout_kernel_vec<{t}, float, unsigned int, 1, 4>")],
    "virtualgpu.dropout_backward": [
        Pattern("void at::native::vectorized_elementwise_kernel<4, masked_scale_kernel<{t}> >")],
    "virtualgpu.dropout_add": [Pattern("void bias_dropout_add_kernel<{t}>")],
    "virtualgpu.squared_relu": [Pattern("triton_poi_fused_pow_relu<{t}>")],
    "virtualgpu.squared_relu_backward": [
        Pattern("triton_poi_fused_mul_pow_threshold_backward<{t}>")],
    "virtualgpu.swiglu": [Pattern("triton_poi_fused_mul_silu_split<{t}>")],
    "virtualgpu.swiglu_backward": [Pattern("triton_poi_fused_cat_mul_sigmoid_silu<{t}>")],
    "virtualgpu.rotary": [Pattern("void fused_rope_forward_kernel<{t}>")],
    "virtualgpu.masked_softmax": [
        Pattern("void scaled_upper_triang_masked_softmax_warp_forward<{t}, {t}, float, 10>", 1)],
    "virtualgpu.masked_softmax_backward": [
        Pattern("void scaled_upper_triang_masked_softmax_warp_backward<{t}, {t}, float, 10>", 1)],
    "virtualgpu.masked_softmax fp32": [
        MASK, Pattern("void softmax_warp_forward<{t}, {t}, float, 10, false>", 1)],
    "virtualgpu.masked_softmax_backward fp32": [
        Pattern("void softmax_warp_backward<{t}, {t}, float, 10, false>", 1), MASK],
    "virtualgpu.flash_attention": [
        Pattern("void flash_fwd_kernel<Flash_fwd_kernel_traits<{t}> >", 1,
                                        0.125)],
    "virtualgpu.flash_attention_backward": [
        Pattern(
            "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<{t}> >", 1,
             0.125)],
    "virtualgpu.adamw": [Pattern("void multi_tensor_apply_kernel<TensorListMetadata<4>, "
                                  "multi_tensor_adam<{t}> >")],
}
