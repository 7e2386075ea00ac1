"""The recipe with an exponent that 32 elements of a row share."""

import torch


def mxfp8(x, dtype):
    """Round a matrix to MXFP8.

    Args:
        x: [m, k]; k is divisible by 32.
        dtype: E4M3 or E5M2.

    Returns the float8 elements [m, k], and the shared exponents [m, k / 32], int32.
    """
    m, k = x.shape
    blocks = x.float().reshape(m, k // 32, 32)
    amax = blocks.abs().amax(2, keepdim=True)
    fraction, exponents = torch.frexp(amax / torch.finfo(dtype).max)
    exponents = exponents - (fraction == 0.5).int()  # the largest number times a power of two fits exactly
    exponents = torch.where(amax > 0, exponents, -127).clamp(-127, 127)
    return torch.ldexp(blocks, -exponents).to(dtype).view(m, k), exponents[:, :, 0]


def restore(matrix):
    """Return the values of a quantized matrix, float64."""
    data, exponents = matrix
    return torch.ldexp(data.double(), exponents.repeat_interleave(32, 1))


class MX:
    """MXFP8: a quantized matrix is a tuple of its float8 elements, and its shared exponents."""

    def pair(self, x, dtype, role):
        """Quantize a matrix [m, k] for GEMMs that sum over its columns, and for those over its rows.

        Args:
            x: the matrix; m and k are multiples of 32.
            dtype: E4M3 or E5M2.
            role: "input", "weight", or "grad".

        Returns the quantized matrix [m, k], and its quantized transpose [k, m].
        """
        return mxfp8(x, dtype), mxfp8(x.t(), dtype)

    def multiply(self, a, b, dtype):
        """Return a @ b.T for two quantized matrices [m, k] and [n, k]; Blackwell's GEMMs read the exponents."""
        return (restore(a) @ restore(b).t()).to(dtype)
