"""The closed list of operations that a record may contain, by kind: what each returns.

A rule maps an operation's arguments, under the names of torch's schema, to the shapes and dtypes of
the tensors that it returns, and raises an error for operands that do not fit together. It computes
with integers and dtypes alone. results.py applies the rules, also to the variants that work in
place, write into `out`, or take lists of tensors; elementwise.py has the elementwise operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.core.shapes import broadcast_shape
from virtualgpu.replay.dtypes import (
    COMPLEX,
    DEFAULT,
    accumulated,
    floating,
    promoted,
    real,
    summed,
)

Arguments = SimpleNamespace  # by the schema's names
Result = tuple[tuple[int, ...], torch.dtype]  # shape and dtype
Rule = Callable[[Arguments], "list[Result] | None"]  # None: values decide the shapes
RULES: dict[str, Rule] = {}
LONG, FLOAT = torch.int64, torch.float32


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Return a decorator that enters a rule for these operations."""
    def enter(function: Rule) -> Rule:
        RULES.update({name if "." in name else f"aten.{name}": function for name in names})
        return function
    return enter


def require(match: bool, message: str, **operands: Operand) -> None:
    if not match:
        raise ValueError(message + ": " + ", ".join(
            f"{name} {list(item.shape)}" for name, item in operands.items()))


def mismatched(match: bool, **operands: Operand) -> None:
    require(match, "mismatched shapes", **operands)


def same_dtype(*operands: Operand) -> None:
    names = [str(item.dtype).removeprefix("torch.") for item in operands]
    if len(set(names)) > 1:
        raise ValueError(f"a matrix multiplication of different dtypes: {', '.join(names)}")


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    shape = broadcast_shape((), *shapes)
    if shape is None:
        raise ValueError(f"shapes that do not broadcast: {', '.join(map(str, map(list, shapes)))}")
    return shape


def expands(shape: Sequence[int], target: Sequence[int]) -> None:
    """Raise ValueError unless a shape can be broadcast to `target`."""
    if broadcast(shape, target) != tuple(target):
        raise ValueError(f"{list(shape)} does not broadcast to {list(target)}")


def axis(dim: int, dims: int) -> int:
    """Return a dimension's index, counted from the front."""
    if not -max(dims, 1) <= dim < max(dims, 1):
        raise ValueError(f"dimension {dim} is out of range for a tensor of {dims} dimensions")
    return dim % max(dims, 1)


def axes(dim: int | Sequence[int] | None, dims: int) -> set[int]:
    """Return the dimensions to reduce; all of them if none is named."""
    named = [dim] if isinstance(dim, int) else list(dim or ())
    chosen = {axis(one, dims) for one in named}
    if len(chosen) < len(named):
        raise ValueError(f"dimensions {named}: one occurs twice")
    return chosen if named else set(range(dims))


def reduced(x: Operand, dim: int | Sequence[int] | None, keep: bool) -> tuple[int, ...]:
    """Return a shape without some of its dimensions, or with size 1 in their place."""
    removed = axes(dim, x.dim())
    return tuple(1 if at in removed else size for at, size in enumerate(x.shape)
                 if keep or at not in removed)


def replaced(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """Return a shape with another size in one dimension."""
    at = axis(dim, len(shape))
    return (*shape[:at], size, *shape[at + 1:]) if shape else ()


def like(x: Operand, dtype: torch.dtype | None = None) -> Result:
    return x.shape, dtype or x.dtype


def optional(x: Operand | None, shape: Sequence[int]) -> None:
    """Check a weight or a bias that may be missing."""
    if x is not None:
        mismatched(x.shape == tuple(shape), operand=x)


# ---- reductions


@rule("sum", "nansum", "prod")
def _sum(a: Arguments) -> list[Result]:
    return [(reduced(a.self, getattr(a, "dim", None), getattr(a, "keepdim", False)),
             a.dtype or summed(a.self.dtype))]


@rule("mean", "amax", "amin", "std", "var", "logsumexp", "norm", "linalg_vector_norm", "any", "all",
      "argmax", "argmin", "count_nonzero", "std_mean", "var_mean", "aminmax")
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


@rule("max", "min", "median", "nanmedian", "mode", "kthvalue")
def _values_and_indices(a: Arguments) -> list[Result]:
    if hasattr(a, "other"):
        return [(broadcast(a.self.shape, a.other.shape), promoted([a.self, a.other]))]
    if not hasattr(a, "dim"):
        return [((), a.self.dtype)]
    shape = reduced(a.self, a.dim, a.keepdim)
    return [(shape, a.self.dtype), (shape, LONG)]


@rule("cumsum", "cumprod", "logcumsumexp")
def _cumulative(a: Arguments) -> list[Result]:
    axis(a.dim, a.self.dim())
    dtype = a.self.dtype if a.name == "logcumsumexp" else summed(a.self.dtype)
    return [like(a.self, getattr(a, "dtype", None) or dtype)]


@rule("sort", "cummax", "cummin")
def _sort(a: Arguments) -> list[Result]:
    axis(a.dim, a.self.dim())
    return [like(a.self), like(a.self, LONG)]


@rule("topk")
def _topk(a: Arguments) -> list[Result]:
    at = axis(a.dim, a.self.dim())
    if not 0 <= a.k <= (a.self.shape[at] if a.self.shape else 1):
        raise ValueError(f"topk of {list(a.self.shape)}: k not in range, found {a.k}")
    shape = replaced(a.self.shape, at, a.k)
    return [(shape, a.self.dtype), (shape, LONG)]


@rule("trace")
def _trace(a: Arguments) -> list[Result]:
    require(a.self.dim() == 2, "expected a matrix", found=a.self)
    return [((), summed(a.self.dtype))]


@rule("renorm")
def _renorm(a: Arguments) -> list[Result]:
    return [like(a.self)]


@rule("dist")
def _dist(a: Arguments) -> list[Result]:
    broadcast(a.self.shape, a.other.shape)
    return [((), real(promoted([a.self, a.other])))]


@rule("_pdist_forward")
def _pdist(a: Arguments) -> list[Result]:
    require(a.self.dim() == 2, "expected a matrix", found=a.self)
    return [((a.self.shape[0] * (a.self.shape[0] - 1) // 2,), a.self.dtype)]


@rule("_cdist_forward")
def _cdist(a: Arguments) -> list[Result]:
    mismatched(a.x1.dim() >= 2 <= a.x2.dim() and a.x1.shape[-1] == a.x2.shape[-1],
               x1=a.x1, x2=a.x2)
    batch = broadcast(a.x1.shape[:-2], a.x2.shape[:-2])
    return [((*batch, a.x1.shape[-2], a.x2.shape[-2]), promoted([a.x1, a.x2]))]


# ---- matrix multiplications


def _matmul(a: Operand, b: Operand, dims: int) -> list[Result]:
    require(a.dim() == b.dim() == dims, f"expected {dims} dimensions", a=a, b=b)
    require(a.shape[:-2] == b.shape[:-2], "expected the batch of batch1 and batch2 to be equal",
            a=a, b=b)
    require(a.shape[-1] == b.shape[-2],
            "expected a and b to have the same reduction dim", a=a, b=b)
    same_dtype(a, b)
    return [((*a.shape[:-1], b.shape[-1]), a.dtype)]


@rule("mm", "bmm")
def _mm(a: Arguments) -> list[Result]:
    found = _matmul(a.self, a.mat2, 2 if a.name == "mm" else 3)
    return [(found[0][0], getattr(a, "out_dtype", None) or found[0][1])]


@rule("addmm", "_addmm_activation", "baddbmm")
def _addmm(a: Arguments) -> list[Result]:
    left, right = (a.batch1, a.batch2) if a.name == "baddbmm" else (a.mat1, a.mat2)
    found = _matmul(left, right, left.dim() if left.dim() in (2, 3) else 2)
    require(left.dim() == (3 if a.name == "baddbmm" else 2), "expected matrices", a=left, b=right)
    expands(a.self.shape, found[0][0])
    return [(found[0][0], getattr(a, "out_dtype", None) or found[0][1])]


@rule("addbmm")
def _addbmm(a: Arguments) -> list[Result]:
    ((_, *shape), dtype), = _matmul(a.batch1, a.batch2, 3)
    expands(a.self.shape, shape)
    return [(tuple(shape), dtype)]


@rule("mv", "addmv")
def _mv(a: Arguments) -> list[Result]:
    matrix = a.mat if a.name == "addmv" else a.self
    require(matrix.dim() == 2 and a.vec.shape == matrix.shape[1:],
            "expected a matrix and a vector with the same reduction dim", a=matrix, b=a.vec)
    same_dtype(matrix, a.vec)
    if a.name == "addmv":
        expands(a.self.shape, matrix.shape[:1])
    return [(matrix.shape[:1], matrix.dtype)]


@rule("dot", "vdot")
def _dot(a: Arguments) -> list[Result]:
    other = a.other if a.name == "vdot" else a.tensor
    mismatched(a.self.dim() == 1 and a.self.shape == other.shape, a=a.self, b=other)
    same_dtype(a.self, other)
    return [((), a.self.dtype)]


@rule("addr")
def _addr(a: Arguments) -> list[Result]:
    require(a.vec1.dim() == a.vec2.dim() == 1, "expected vectors", a=a.vec1, b=a.vec2)
    shape = (*a.vec1.shape, *a.vec2.shape)
    expands(a.self.shape, shape)
    return [(shape, promoted([a.self, a.vec1, a.vec2]))]


@rule("_scaled_mm")
def _scaled_mm(a: Arguments) -> list[Result]:
    require(a.self.dim() == a.mat2.dim() == 2 and a.self.shape[1] == a.mat2.shape[0],
            "expected a and b to have the same reduction dim", a=a.self, b=a.mat2)
    if a.self.dtype.itemsize > 1 or a.mat2.dtype.itemsize > 1:
        raise ValueError("_scaled_mm multiplies matrices of 8 or 4 bits")
    return [((a.self.shape[0], a.mat2.shape[1]), a.out_dtype or a.self.dtype)]


@rule("_int_mm")
def _int_mm(a: Arguments) -> list[Result]:
    return [(_matmul(a.self, a.mat2, 2)[0][0], torch.int32)]


@rule("_trilinear")
def _trilinear(a: Arguments) -> list[Result]:
    shapes = []
    for item, expand in ((a.i1, a.expand1), (a.i2, a.expand2), (a.i3, a.expand3)):
        shape = list(item.shape)
        for at in sorted(expand):
            shape.insert(at, 1)
        shapes.append(shape)
    whole = broadcast(*shapes)
    summed_over = axes(a.sumdim, len(whole)) if a.sumdim else set()
    return [(tuple(size for at, size in enumerate(whole) if at not in summed_over), a.i1.dtype)]


@rule("_fft_r2c", "_fft_c2c", "_fft_c2r")
def _fft(a: Arguments) -> list[Result]:
    dims = axes(a.dim, a.self.dim()) if a.dim else set()
    shape = a.self.shape
    if a.name == "_fft_r2c" and a.onesided and dims:
        shape = replaced(shape, a.dim[-1], shape[a.dim[-1]] // 2 + 1)
    if a.name == "_fft_c2r":
        shape = replaced(shape, a.dim[-1], a.last_dim_size)
    dtype = {"_fft_r2c": COMPLEX.get, "_fft_c2r": real}.get(a.name, lambda same: same)(a.self.dtype)
    if dtype is None:
        raise ValueError(f"no Fourier transform of {a.self.dtype}")
    return [(shape, dtype)]


@rule("linalg_cross")
def _cross(a: Arguments) -> list[Result]:
    return [(broadcast(a.self.shape, a.other.shape), promoted([a.self, a.other]))]


# ---- linear algebra on batches of matrices


@rule("_linalg_det", "_linalg_slogdet")
def _det(a: Arguments) -> list[Result]:
    require(a.A.dim() >= 2 and a.A.shape[-1] == a.A.shape[-2], "expected square matrices", A=a.A)
    batch, dtype = a.A.shape[:-2], a.A.dtype
    found = [(batch, dtype)] if a.name == "_linalg_det" else [(batch, dtype), (batch, real(dtype))]
    return [*found, like(a.A), (a.A.shape[:-1], torch.int32)]


@rule("_linalg_solve_ex")
def _solve(a: Arguments) -> list[Result]:
    matrix, other = a.A, a.B
    mismatched(matrix.dim() >= 2 and matrix.shape[-1] == matrix.shape[-2] and other.dim() > 0,
               A=matrix, B=other)
    shape = other.shape
    if other.dim() > 1 and shape != matrix.shape[:-1]:
        shape = (*broadcast(matrix.shape[:-2], shape[:-2]), *shape[-2:])
    return [(shape, matrix.dtype), like(matrix), (matrix.shape[:-1], torch.int32),
            (matrix.shape[:-2], torch.int32)]


@rule("linalg_qr", "linalg_cholesky_ex", "linalg_inv_ex", "_linalg_eigh", "_linalg_svd",
      "linalg_solve_triangular", "linalg_matrix_exp", "cholesky_solve")
def _linalg(a: Arguments) -> list[Result]:
    x = a.A if hasattr(a, "A") else a.self
    require(x.dim() >= 2, "expected matrices", found=x)
    *batch, m, n = x.shape
    k, info = min(m, n), (tuple(batch), torch.int32)
    if a.name in ("linalg_cholesky_ex", "linalg_inv_ex", "_linalg_eigh", "linalg_matrix_exp"):
        require(m == n, "expected square matrices", found=x)
    if a.name == "linalg_qr":
        left, inner = {"reduced": (k, k), "complete": (m, m), "r": (0, k)}[a.mode]
        q = (0,) if a.mode == "r" else (*batch, m, left)
        return [(q, x.dtype), ((*batch, inner, n), x.dtype)]
    if a.name in ("linalg_cholesky_ex", "linalg_inv_ex"):
        return [like(x), info]
    if a.name == "_linalg_eigh":
        return [((*batch, n), real(x.dtype)), (x.shape if a.compute_v else (0,), x.dtype)]
    if a.name == "_linalg_svd":
        left, right = ((m, n) if a.full_matrices else (k, k))
        both = [((*batch, m, left), x.dtype), ((*batch, right, n), x.dtype)]
        u, vh = both if a.compute_uv else [((0,), x.dtype)] * 2
        return [u, ((*batch, k), real(x.dtype)), vh]
    if a.name == "linalg_matrix_exp":
        return [like(x)]
    other = a.B if hasattr(a, "B") else a.input2
    require(other.dim() >= 2, "expected matrices", found=other)
    size = other.shape[-2:] if a.name == "linalg_solve_triangular" else x.shape[-2:]
    return [((*broadcast(batch, other.shape[:-2]), *size), x.dtype)]


# ---- attention


def _heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [batch, heads, sequence, width]."""
    mismatched(query.dim() == key.dim() == value.dim() == 4
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
    mismatched(grad.shape == (*a.query.shape[:3], a.value.shape[3]), grad=grad, query=a.query,
               value=a.value)
    found = [like(a.query), like(a.key), like(a.value)]
    bias = getattr(a, "attn_bias", None)
    if "efficient" in a.name and bias is not None and a.grad_input_mask[3]:
        found.append(like(bias))
    return found


def _fused_heads_match(query: Operand, key: Operand, value: Operand) -> None:
    """Check queries, keys, and values of shape [sequence, heads, width]; keys may have fewer heads.
    """
    mismatched(query.dim() == key.dim() == 3 and key.shape == value.shape
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
    mismatched(a.grad.numel() == a.query.numel(), grad=a.grad, query=a.query)
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
    mismatched(a.grad.shape == a.out.shape, grad=a.grad, out=a.out)
    return []


@rule("virtualgpu.adamw")
def _adamw(a: Arguments) -> list[Result]:
    for item in (a.gradients, a.exp_avg, a.exp_avg_sq):
        mismatched(item.numel() == a.weights.numel(), weights=a.weights, other=item)
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
    mismatched(a.grad_output.shape == a.output.shape, grad=a.grad_output, output=a.output)
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
    mismatched(x.dim() in (1, 2, 4) and target.shape == (*x.shape[:at], *x.shape[at + 1:]),
               input=x, target=target)
    whole = a.reduction == 0 and x.dim() > 1
    return [(target.shape if whole else (), x.dtype), ((), x.dtype)]


@rule("nll_loss_backward", "nll_loss2d_backward")
def _nll_backward(a: Arguments) -> list[Result]:
    mismatched(a.target.numel() * a.self.shape[-1 if "2d" not in a.name else 1]
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
    mismatched(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    normal = tuple(a.normalized_shape)
    found = [like(a.input), (normal, (a.weight or a.input).dtype),
             (normal, (a.weight or a.input).dtype)]
    return [one for one, wanted in zip(found, a.output_mask, strict=False) if wanted]


@rule("native_group_norm")
def _group_norm(a: Arguments) -> list[Result]:
    mismatched(a.input.numel() == a.N * a.C * a.HxW, input=a.input)
    if a.group < 1 or a.C % a.group:
        raise ValueError(f"{a.C} channels in {a.group} groups")
    return [like(a.input), *([((a.N, a.group), a.input.dtype)] * 2)]


@rule("native_group_norm_backward")
def _group_norm_backward(a: Arguments) -> list[Result]:
    mismatched(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
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
    mismatched(a.grad_out.shape == a.input.shape, grad=a.grad_out, input=a.input)
    channels = (a.input.shape[1:2], (a.weight or a.input).dtype)
    return [one for one, wanted in zip([like(a.input), channels, channels], a.output_mask,
                                       strict=True) if wanted]


@rule("native_dropout")
def _dropout(a: Arguments) -> list[Result]:
    return [like(a.input), like(a.input, torch.bool)]


# ---- factories and random numbers


@rule("full", "zeros", "ones", "rand", "randn", "randint", "empty_permuted")
def _factory(a: Arguments) -> list[Result]:
    default = DEFAULT
    if a.name == "full" and not isinstance(a.fill_value, float):
        default = {bool: torch.bool, int: LONG}.get(type(a.fill_value), torch.complex64)
    elif a.name == "randint":
        default = LONG
    return [(tuple(a.size), a.dtype or default)]


@rule("zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
def _like(a: Arguments) -> list[Result]:
    return [like(a.self, a.dtype)]


@rule("new_zeros", "new_ones", "new_full")
def _new(a: Arguments) -> list[Result]:
    return [(tuple(a.size), a.dtype or a.self.dtype)]


@rule("arange", "range")
def _arange(a: Arguments) -> list[Result] | None:
    start, step = getattr(a, "start", 0), getattr(a, "step", 1)
    if any(type(one) is not int for one in (start, a.end, step)):
        return None  # a record does not contain floats
    if step == 0 or step * (a.end - start) < 0:
        raise ValueError(f"no numbers from {start} to {a.end} in steps of {step}")
    count = -(-(a.end - start) // step) if a.name == "arange" else (a.end - start) // step + 1
    return [((count,), a.dtype or (LONG if a.name == "arange" else DEFAULT))]


@rule("linspace", "logspace")
def _linspace(a: Arguments) -> list[Result]:
    return [((a.steps,), a.dtype or DEFAULT)]


@rule("eye")
def _eye(a: Arguments) -> list[Result]:
    return [((a.n, getattr(a, "m", a.n)), a.dtype or DEFAULT)]


@rule("randperm")
def _randperm(a: Arguments) -> list[Result]:
    return [((a.n,), a.dtype or LONG)]


@rule("scalar_tensor")
def _scalar(a: Arguments) -> list[Result]:
    return [((), a.dtype or DEFAULT)]


@rule("tril_indices", "triu_indices")
def _indices(a: Arguments) -> list[Result]:
    # The elements of the leading triangle of a [row, col] matrix, counted in closed form.
    rows, columns, offset = a.row, a.col, a.offset
    if min(rows, columns) < 0:
        raise ValueError(f"a matrix of {rows} x {columns}")
    shift = offset if a.name == "tril_indices" else offset - 1
    full = min(max(rows - (columns - shift - 1), 0), rows)  # rows below the diagonal, complete
    first, last = max(-shift, 0), max(min(rows - full, rows), 0)
    partial = max(last - first, 0)
    lower = full * columns + partial * (first + shift + 1 + last + shift) // 2
    return [((2, lower if a.name == "tril_indices" else rows * columns - lower), a.dtype or LONG)]


@rule("normal", "bernoulli", "poisson")
def _random(a: Arguments) -> list[Result]:
    if hasattr(a, "size"):
        return [(tuple(a.size), a.dtype or DEFAULT)]
    given = [one for one in (getattr(a, "mean", None), getattr(a, "std", None),
                             getattr(a, "self", None)) if isinstance(one, Operand)]
    return [(broadcast(*(one.shape for one in given)), given[0].dtype)]


@rule("multinomial")
def _multinomial(a: Arguments) -> list[Result]:
    return [((*a.self.shape[:-1], a.num_samples), LONG)]


@rule("hann_window", "hamming_window", "blackman_window")
def _window(a: Arguments) -> list[Result]:
    return [((a.window_length,), a.dtype or DEFAULT)]
