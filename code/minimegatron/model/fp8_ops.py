"""FP8 operations over minite's numerics; a virtual GPU models each as one kernel."""

from __future__ import annotations

import torch

from minimegatron.device.device import operation
from minite import quantize
from minite.functional import gemm


@operation("amax")
def fp8_cast(x: torch.Tensor, scale: torch.Tensor, amax: torch.Tensor | None,
             dtype: torch.dtype) -> torch.Tensor:
    """Round x [m, k] times its scale (one element) to FP8.

    Args:
        x: the matrix.
        amax: one element, raised to the largest magnitude in x by the same kernel; or None.
        dtype: the FP8 format.
    """
    if amax is not None:
        amax.copy_(torch.maximum(amax, quantize.amax_of(x)))
    return quantize.cast(x.float() * scale, dtype)


@operation()
def fp8_amax(x: torch.Tensor) -> torch.Tensor:
    """Return the largest magnitude in x, fp32, one element."""
    return quantize.amax_of(x)


@operation()
def fp8_scales(amax: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scale that maps amax to the largest FP8 number, and its reciprocal."""
    scale = quantize.scale_from_amax(amax, dtype)
    return scale, scale.reciprocal()


@operation()
def fp8_blocks(x: torch.Tensor, dtype: torch.dtype, rows: int, columns: int, mx: bool
               ) -> tuple[torch.Tensor, torch.Tensor]:
    """Round x [m, k] to FP8 with one scale per block, a power of two.

    Args:
        x: the matrix.
        dtype: the FP8 format.
        rows: rows of a block.
        columns: columns of a block.
        mx: whether scales are E8M0.

    Returns:
        The rounded matrix, and the reciprocals of the scales, [m / rows, k / columns].
    """
    rounded = (quantize.quantize_mx(x, dtype) if mx else
               quantize.quantize_blocks(x, dtype, (rows, columns)))
    return rounded.data, rounded.scale_inv


@operation()
def fp8_gemm(a: torch.Tensor, a_scale_inv: torch.Tensor, b: torch.Tensor,
             b_scale_inv: torch.Tensor, a_rows: int, b_rows: int, columns: int,
             bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return a [m, k] times the transpose of b [n, k], plus a bias [n], accumulated in fp32.

    Args:
        a: in FP8.
        a_scale_inv: reciprocals of its scales.
        b: in FP8.
        b_scale_inv: reciprocals of its scales.
        a_rows: rows of a block of a.
        b_rows: rows of a block of b.
        columns: columns of the blocks; 0 with one scale per tensor.
        bias: added to every row, or None.
        dtype: of the result.
    """
    y = gemm(quantize.Quantized(a, a_scale_inv, (a_rows, columns) if columns else None),
             quantize.Quantized(b, b_scale_inv, (b_rows, columns) if columns else None), dtype)
    return y if bias is None else y + bias


@operation("out")
def fp8_gemm_into(out: torch.Tensor, a: torch.Tensor, a_scale_inv: torch.Tensor, b: torch.Tensor,
                  b_scale_inv: torch.Tensor, a_rows: int, b_rows: int, columns: int,
                  bias: torch.Tensor | None) -> None:
    """Write a [m, k] times the transpose of b [n, k], plus a bias [n], into `out` [m, n].

    The arguments are those of fp8_gemm. On a virtual GPU, the GEMM itself writes `out`.
    """
    out.copy_(fp8_gemm(a, a_scale_inv, b, b_scale_inv, a_rows, b_rows, columns, bias, out.dtype))


@operation("history", "scale", "scale_inv")
def fp8_update(history: torch.Tensor, scale: torch.Tensor, scale_inv: torch.Tensor,
               dtype: torch.dtype, margin: int, algo: str) -> None:
    """End a step of delayed scaling: set the scales, and begin the next row of the history.

    Args:
        history: amax per step and tensor, [steps, tensors]; row 0 is the step that ends. An amax
            that is not finite counts as no step: the gradients overflowed.
        scale: [tensors].
        scale_inv: its reciprocal, [tensors].
        dtype: the FP8 format.
        margin: scales are divided by 2^margin.
        algo: "max" or "most_recent".
    """
    history[0] = torch.where(history[0].isfinite(), history[0], 0)
    following, scales = quantize.update_history(history, scale, dtype, margin, algo)
    history.copy_(following)
    scale.copy_(scales)
    scale_inv.copy_(scales.reciprocal())
