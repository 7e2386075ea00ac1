"""The recipe with one scale per block of a matrix."""

import torch


def quantize_blocks(x, dtype, rows, columns):
    """Round a matrix to FP8 with one scale per block of rows x columns.

    Args:
        x: [m, k]; m is divisible by rows, and k by columns.
        dtype: a float8 type of PyTorch.

    Returns the float8 matrix [m, k], and 1 / scale for each block, float32 [m / rows, k / columns].
    A scale is the largest power of two for which nothing in the block saturates, and 1 if all of it is 0.
    """
    m, k = x.shape
    tiles = x.float().reshape(m // rows, rows, k // columns, columns)
    amax = tiles.abs().amax((1, 3), keepdim=True)
    exponents = torch.frexp(torch.finfo(dtype).max / amax).exponent - 1
    scales = torch.where(amax > 0, torch.ldexp(torch.ones_like(amax), exponents), 1.0)
    return (tiles * scales).to(dtype).view(m, k), scales[:, 0, :, 0].reciprocal()


def restore(matrix):
    """Return the values of a quantized matrix, float64."""
    data, inverse = matrix
    rows, columns = len(data) // len(inverse), data.shape[1] // inverse.shape[1]
    return data.double() * inverse.double().repeat_interleave(rows, 0).repeat_interleave(columns, 1)


class Blocks:
    """DeepSeek-V3's recipe: a quantized matrix is a tuple of its float8 elements, and 1 / scale of each block."""

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix; m and k are multiples of 128.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad".

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        if role == "weight":
            data, inverse = quantize_blocks(x, dtype, 128, 128)
            return (data, inverse), (data.t().contiguous(), inverse.t().contiguous())
        return quantize_blocks(x, dtype, 1, 128), quantize_blocks(x.t(), dtype, 1, 128)

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k]."""
        return (restore(a) @ restore(b).t()).to(dtype)
