"""torch.autocast("cuda") on meta tensors.

C++ casts CUDA tensors only, so the casts are Python kernels here, in the places where CUDA's are.
The lists are those of aten/src/ATen/autocast_mode.h.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.amp import autocast_mode

from virtualgpu.pytorch.attention import choose, dropout
from virtualgpu.pytorch.mode import CudaGpu
from virtualgpu.pytorch.visible import hidden

aten = torch.ops.aten
LOWER = (
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv",
    "addr", "matmul", "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm",
    "chain_matmul", "linalg_multi_dot", "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell",
    "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
)
FULL = (
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
FULL_RESULT = {
    "softmax.int": "", "log_softmax.int": "", "cumprod": "", "cumsum": "", "prod": "",
    "prod.dim_int": "", "sum": "", "sum.dim_IntList": "", "linalg_vector_norm": "",
    "linalg_matrix_norm": "", "linalg_matrix_norm.str_ord": "",
    "norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler",
    "index_put", "tensordot", "scatter_add",
)
libraries: list[torch.library.Library] = []  # registrations end with them
cached: dict[int, tuple[Tensor, Tensor]] = {}  # a parameter and its cast, until autocast ends


def install(gpu: CudaGpu) -> None:
    """Register CUDA's choices for meta tensors, and the casts of autocast."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that a kernel is replaced
        chosen = torch.library.Library("aten", "IMPL", "AutogradMeta")
        attention = choose(gpu)
        chosen.impl("scaled_dot_product_attention", attention)
        gpu.whole[aten.scaled_dot_product_attention.default] = inside(gpu, attention)
        gpu.whole[aten.dropout.default] = inside(gpu, dropout)
        chosen.impl("dropout", dropout)
        casts = torch.library.Library("aten", "IMPL", "AutocastCUDA")
        for names, kernel in ((LOWER, lowered), (FULL, raised), (WIDEST, promoted)):
            for name in names:
                op = overload(name)
                if op is not None:
                    casts.impl(op._schema.name.split("::")[1] + (
                        f".{op._schema.overload_name}" if op._schema.overload_name else ""),
                        below_autocast(op, kernel))
        casts.impl("trace", trace)
        for name, other in FULL_RESULT.items():
            casts.impl(name, with_dtype(overload(name), other))
    libraries[:] = chosen, casts
    _follow_contexts()


def inside(gpu: CudaGpu, function: Callable) -> Callable:
    """Call a function in the dispatch mode, which its operations then reach."""
    def call(*args, **kwargs):
        with gpu:
            return function(*args, **kwargs)
    return call


def overload(name: str) -> torch._ops.OpOverload | None:
    base, _, rest = name.partition(".")
    packet = getattr(aten, base, None)
    return None if packet is None else getattr(packet, rest or "default", None)


def below_autocast(op: torch._ops.OpOverload, kernel: Callable) -> Callable:
    """The kernel with autocast switched off for what it calls.

    The operation itself runs with devices as the program knows them, because hooks on saved tensors
    do: activation checkpointing compares the devices of what it saved and of what it recomputed.
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
    """A reduction that computes and returns fp32 where the program names no dtype.

    CUDA's kernels read 16 bits and write 32: nothing is cast beforehand.

    Args:
        op: what the program called.
        name: the overload with the argument `dtype`; "" where it is op itself.
    """
    target = overload(name) if name else op
    at = [one.name for one in target._schema.arguments].index("dtype")
    keys = torch._C.DispatchKeySet(DispatchKey.AutocastCUDA)

    def call(*args, **kwargs):
        with torch._C._ExcludeDispatchKeyGuard(keys):
            first = args[0] if args else None
            mine = isinstance(first, Tensor) and first.is_floating_point() and (
                first.dtype != torch.float64)
            given = kwargs.get("dtype", args[at] if at < len(args) else None)
            if not mine or (given is not None and target is op):
                return op(*args, **kwargs)
            if at < len(args):
                args = (*args[:at], torch.float32, *args[at + 1:])
            else:
                kwargs = {**kwargs, "dtype": torch.float32}
            if target is not op:  # where what may be left out of op must be named
                rest = op._schema.arguments[len(args):]
                kwargs = {one.name: one.default_value for one in rest} | kwargs
            return target(*args, **kwargs)
    return call


def trace(x: Tensor) -> Tensor:
    """CUDA sums the diagonal, in fp32."""
    return x.diagonal().sum()


def each(value: object, cast: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return cast(value) if value.is_meta and value.is_floating_point() and (
            value.dtype != torch.float64) else value
    return type(value)(each(item, cast) for item in value) if type(value) in (
        list, tuple) else value


def lowered(_: object) -> Callable[[Tensor], Tensor]:
    """Cast to autocast's type, and a parameter once only."""
    to = torch.get_autocast_dtype("cuda")

    def cast(x: Tensor) -> Tensor:
        if x.dtype == to:
            return x
        if not (x.requires_grad and x.is_leaf and x.dtype == torch.float32
                and torch.is_autocast_cache_enabled() and torch.is_grad_enabled()):
            return x.to(to)
        found = cached.get(id(x))
        if found is None:
            found = cached[id(x)] = x, x.to(to)
        return found[1]
    return cast


def raised(_: object) -> Callable[[Tensor], Tensor]:
    return lambda x: x.to(torch.float32)


def promoted(operands: tuple) -> Callable[[Tensor], Tensor]:
    """Cast to the widest type among the operands, as at::autocast::prioritize finds it.

    Raises RuntimeError, as CUDA does, where the 16-bit type that is not autocast's comes first.
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
    """Meta tensors lack autocast's dispatch key: it is included while autocast is on."""
    clear = torch.clear_autocast_cache

    def clear_both() -> None:
        cached.clear()
        clear()

    torch.clear_autocast_cache = clear_both
    mode = autocast_mode.autocast
    enter, leave = mode.__enter__, mode.__exit__

    def entered(self):
        found = enter(self)
        refresh()
        return found

    def left(self, *details):
        found = leave(self, *details)
        refresh()
        return found

    mode.__enter__, mode.__exit__ = entered, left


def refresh() -> None:
    on = torch.is_autocast_enabled("cuda")
    torch._C._dispatch_tls_set_dispatch_key_included(DispatchKey.AutocastCUDA, on)
    torch._C._dispatch_tls_set_dispatch_key_excluded(DispatchKey.AutocastCUDA, not on)
