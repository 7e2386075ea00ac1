"""Results of reductions, matrix multiplications, and linear algebra."""

from __future__ import annotations

import torch

from virtualgpu.core.operand import Operand
from virtualgpu.replay.dtypes import COMPLEX, floating, promoted, real, summed
from virtualgpu.replay.result_rules import (
    LONG,
    Arguments,
    Result,
    axes,
    axis,
    broadcast,
    expands,
    like,
    matching,
    reduced,
    replaced,
    require,
    rule,
    same_dtype,
)

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
    matching(a.x1.dim() >= 2 <= a.x2.dim() and a.x1.shape[-1] == a.x2.shape[-1],
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
    matching(a.self.dim() == 1 and a.self.shape == other.shape, a=a.self, b=other)
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
    matching(matrix.dim() >= 2 and matrix.shape[-1] == matrix.shape[-2] and other.dim() > 0,
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
