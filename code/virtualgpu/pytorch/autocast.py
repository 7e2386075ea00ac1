"""torch.autocast("cuda") on meta tensors.

C++ casts CUDA tensors only, so the casts here are Python kernels, at the same places as CUDA's.
The lists are those of aten/src/ATen/autocast_mode.h.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import DispatchKey

from virtualgpu.pytorch.attention import choose, dropout
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import hidden

aten = torch.ops.aten
LOWER_PRECISION = (
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv",
    "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)
FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p",
    "reciprocal", "rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar",
    "softplus", "layer_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm",
    "nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss",
    "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss",
    "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist",
    "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d", "upsample_nearest2d",
    "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "upsample_bicubic2d",
)
# Reductions whose result is fp32, with the overload that takes a dtype ("": the same one).
FP32_RESULT = {
    "softmax.int": "", "log_softmax.int": "", "cumprod": "", "cumsum": "", "prod": "",
    "prod.dim_int": "", "sum": "", "sum.dim_IntList": "", "linalg_vector_norm": "",
    "linalg_matrix_norm": "", "linalg_matrix_norm.str_ord": "",
    "norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
WIDEST_DTYPE = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
)
libraries: list[torch.library.Library] = []  # kept alive, because registrations end with them
cached: dict[int, tuple[Tensor, Tensor]] = {}  # a parameter and its cast, until autocast exits


def install(gpu: CudaGpu) -> None:
    """Register CUDA's choices for meta tensors, and the casts of autocast."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is replaced
        chosen = torch.library.Library("aten", "IMPL", "AutogradMeta")
        attention = choose(gpu)
        chosen.impl("scaled_dot_product_attention", attention)
        gpu.replacements[aten.scaled_dot_product_attention.default] = inside(gpu, attention)
        gpu.replacements[aten.dropout.default] = inside(gpu, dropout)
        chosen.impl("dropout", dropout)
        casts = torch.library.Library("aten", "IMPL", "AutocastCUDA")
        for names, kernel in ((LOWER_PRECISION, lowered), (FP32, raised),
                              (WIDEST_DTYPE, promoted)):
            for name in names:
                op = overload(name)
                if op is not None:
                    casts.impl(op._schema.name.split("::")[1] + (
                        f".{op._schema.overload_name}" if op._schema.overload_name else ""),
                        below_autocast(op, kernel))
        casts.impl("trace", trace)
        for name, other in FP32_RESULT.items():
            casts.impl(name, with_dtype(overload(name), other))
    libraries[:] = chosen, casts
    _follow_contexts()


def inside(gpu: CudaGpu, function: Callable) -> Callable:
    """Return a function that calls another one inside the dispatch mode."""
    def call(*args, **kwargs):
        with gpu:
            return function(*args, **kwargs)
    return call


def overload(name: str) -> torch._ops.OpOverload | None:
    base, _, rest = name.partition(".")
    packet = getattr(aten, base, None)
    return None if packet is None else getattr(packet, rest or "default", None)


def below_autocast(op: torch._ops.OpOverload, kernel: Callable) -> Callable:
    """Return the kernel with autocast disabled for the operations that it calls.

    The operation itself runs with the devices that the program sees, because hooks on saved tensors
    do: activation checkpointing compares the devices of saved and recomputed tensors.
    """
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastCUDA)

    def call(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            with hidden:
                cast = kernel((*args, *kwargs.values()))
                # C++ evaluates arguments from the last to the first.
                kwargs = {name: each(item, cast) for name, item in kwargs.items()}
                args = [each(item, cast) for item in reversed(args)][::-1]
            return op(*args, **kwargs)
    return call


def with_dtype(op: torch._ops.OpOverload, name: str) -> Callable:
    """Return a reduction that returns fp32 unless the program specifies a dtype.

    CUDA's kernels read 16 bits and write 32, so nothing is cast beforehand.

    Args:
        op: the operation that the program called.
        name: the overload with the argument `dtype`; "" if it is op itself.
    """
    target = overload(name) if name else op
    position = [item.name for item in target._schema.arguments].index("dtype")
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastCUDA)

    def call(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            first = args[0] if args else None
            applies = isinstance(first, Tensor) and first.is_floating_point() and (
                first.dtype != torch.float64)
            given = kwargs.get("dtype", args[position] if position < len(args) else None)
            if not applies or (given is not None and target is op):
                return op(*args, **kwargs)
            if position < len(args):
                args = (*args[:position], torch.float32, *args[position + 1:])
            else:
                kwargs = {**kwargs, "dtype": torch.float32}
            if target is not op:  # the other overload has no defaults
                rest = op._schema.arguments[len(args):]
                kwargs = {item.name: item.default_value for item in rest} | kwargs
            return target(*args, **kwargs)
    return call


def trace(x: Tensor) -> Tensor:
    """Compute the trace as CUDA does: sum the diagonal, in fp32."""
    return x.diagonal().sum()


def each(value: object, cast: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return cast(value) if value.is_meta and value.is_floating_point() and (
            value.dtype != torch.float64) else value
    return type(value)(each(item, cast) for item in value) if type(value) in (
        list, tuple) else value


def lowered(_: object) -> Callable[[Tensor], Tensor]:
    """Return a cast to autocast's dtype, which caches parameters."""
    to = torch.get_autocast_dtype("cuda")

    def cast(x: Tensor) -> Tensor:
        if x.dtype == to:
            return x
        if not (x.requires_grad and x.is_leaf and x.dtype == torch.float32
                and torch.is_autocast_cache_enabled() and torch.is_grad_enabled()):
            return x.to(to)
        entry = cached.get(id(x))
        if entry is None:
            entry = cached[id(x)] = x, x.to(to)
        return entry[1]
    return cast


def raised(_: object) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(torch.float32)


def promoted(operands: tuple) -> Callable[[Tensor], Tensor]:
    """Return a cast to the widest dtype of the operands, as at::autocast::prioritize does.

    Raises:
        RuntimeError: an operand has the 16-bit dtype that is not autocast's, as on CUDA.
    """
    to = lower = torch.get_autocast_dtype("cuda")
    for x in operands:
        if not (isinstance(x, Tensor) and x.is_meta and x.is_floating_point()) or (
                x.dtype == torch.float64):
            continue
        if torch.float32 in (to, x.dtype):
            to = torch.float32
        elif x.dtype != lower:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return lambda x: x.to(to)


def _follow_contexts() -> None:
    """Include autocast's dispatch key, which meta tensors lack, while autocast is enabled.

    The casts of parameters are freed when PyTorch clears its cache.
    """
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        cached.clear()
        clear()

    torch.clear_autocast_cache = clear_both
    enable = torch.set_autocast_enabled  # torch.autocast calls it when it begins and ends

    def enable_and_refresh(*arguments) -> None:
        enable(*arguments)
        refresh()

    torch.set_autocast_enabled = enable_and_refresh


def refresh() -> None:
    on = torch.is_autocast_enabled("cuda")
    torch._C._dispatch_tls_set_dispatch_key_included(DispatchKey.AutocastCUDA, on)
    torch._C._dispatch_tls_set_dispatch_key_excluded(DispatchKey.AutocastCUDA, not on)
