"""FP8 in NumPy, from the definition of a floating-point number: no float8 type anywhere."""

from __future__ import annotations

import numpy as np

FORMATS = {"e4m3": (3, -6, 448.0), "e5m2": (2, -14, 57344.0)}  # mantissa bits, least exponent, max


def round_to(x: np.ndarray, name: str) -> np.ndarray:
    """Round to the nearest multiple of the spacing at each value, ties to even; saturate."""
    bits, least, largest = FORMATS[name]
    x = np.asarray(x, np.float64)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(x)))
    spacing = 2.0 ** (np.maximum(exponent, least) - bits)
    return np.clip(np.rint(x / spacing) * spacing, -largest, largest)


def per_tensor(x: np.ndarray, name: str, scale: np.float32 | None = None) -> np.ndarray:
    """Round with one scale; the tensor's own unless given."""
    largest = np.float32(FORMATS[name][2])
    scale = largest / np.abs(x).max() if scale is None else scale
    return round_to(x * scale, name) / np.float64(scale)


def blocks(x: np.ndarray, name: str, rows: int, columns: int, power_of_2: bool = True
           ) -> np.ndarray:
    """Round with one scale per block, block by block."""
    y = np.empty(x.shape)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], columns):
            part = x[i:i + rows, j:j + columns]
            scale = np.float32(FORMATS[name][2]) / np.abs(part).max()
            scale = 2.0 ** np.floor(np.log2(scale)) if power_of_2 else scale
            y[i:i + rows, j:j + columns] = round_to(part * scale, name) / np.float64(scale)
    return y


def mx(x: np.ndarray, name: str) -> np.ndarray:
    """Round with one shared exponent per 32 values, rounded up."""
    y = np.empty(x.shape)
    for i in range(x.shape[0]):
        for j in range(0, x.shape[1], 32):
            part = np.float64(x[i, j:j + 32])
            shared = 2.0 ** np.ceil(np.log2(np.abs(part).max() / FORMATS[name][2]))
            y[i, j:j + 32] = round_to(part / shared, name) * shared
    return y


def quantize(x: np.ndarray, recipe: str, role: str, name: str) -> np.ndarray:
    """Round a matrix whose rows a GEMM contracts."""
    if recipe == "tensorwise":
        return per_tensor(x, name)
    if recipe == "mxfp8":
        return mx(x, name)
    return blocks(x, name, 128 if role == "weight" else 1, 128, recipe == "blockwise")


def linear(x: np.ndarray, w: np.ndarray, dy: np.ndarray, recipe: str, formats: tuple[str, str]
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return y, dx and dw of y = x w^T, in float64 over rounded operands."""
    forward, backward = formats
    y = quantize(x, recipe, "input", forward) @ quantize(w, recipe, "weight", forward).T
    dx = quantize(dy, recipe, "grad", backward) @ quantize(w.T, recipe, "weight", forward).T
    dw = quantize(dy.T, recipe, "grad", backward) @ quantize(x.T, recipe, "input", forward).T
    return y, dx, dw
