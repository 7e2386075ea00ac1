"""The arithmetic that GPU models support: dtypes of GEMMs, and the FP8 and FP4 recipes.

Recipes are those of Transformer Engine, which requires the same compute capabilities
(transformer_engine/pytorch/quantization.py: check_fp8_support and its neighbors).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from virtualgpu.core.card import GENERATIONS, Card, generation
from virtualgpu.core.cards import CARDS
from virtualgpu.core.errors import NoValue

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
# Recipe: (first architecture that supports it, the hardware that it needs).
RECIPES: dict[str, tuple[str, str]] = {
    "delayed": ("ada", "FP8 Tensor Cores"),
    "tensorwise": ("ada", "FP8 Tensor Cores"),
    "blockwise": ("hopper", "FP8 GEMMs with block scales of 1x128 and 128x128"),
    "mxfp8": ("blackwell", "Tensor Cores that read MX block scales"),
    "nvfp4": ("blackwell", "FP4 Tensor Cores"),
}
NO_FP8 = ("torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or "
          "8.9, or ROCm MI300+")
NO_BLOCKS = "DeepSeek style (1x128, 128x128) scaling only supported in CUDA for SM90"
NO_MX = ("CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling "
         "`cublasLtMatmulAlgoGetHeuristic`")


def recipe_support(card: Card) -> dict[str, str]:
    """Return, for each recipe, why a GPU model does not support it; an empty string if it does.

    The reason names the hardware that the recipe needs and, of the GPU models that support it, the
    one with the most similar memory.
    On Blackwell, Transformer Engine runs "blockwise" with MX scales, which PyTorch's own
    torch._scaled_mm does not (refuse).
    """
    return {name: _reason(card, name) for name in RECIPES}


def require_recipe(card: Card, recipe: str) -> None:
    """Raise NoValue if a GPU model does not support a recipe; KeyError for an unknown recipe."""
    reason = recipe_support(card)[recipe]
    if reason:
        raise NoValue(reason)


def _reason(card: Card, recipe: str) -> str:
    first, needs = RECIPES[recipe]
    least = GENERATIONS[first][:2]
    if generation(card)[:2] >= least:
        return ""
    return (f"the virtual {card.name} cannot run the {recipe} recipe: {needs} came with "
            f"{first.capitalize()} (compute capability {_dotted(least)}), and "
            f"{_capability(card, least)}")


def _capability(card: Card, least: tuple[int, int], most: tuple[int, int] = (99, 9)) -> str:
    """Return a sentence: a GPU's compute capability, and the nearest model within these bounds."""
    able = [other for other in CARDS.values() if least <= generation(other)[:2] <= most]
    near = min(able, key=lambda other: abs(math.log(other.memory / card.memory)))
    return (f"it has compute capability {_dotted(generation(card)[:2])}; the nearest GPU model "
            f"that can is {near.name}")


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def scaling(arguments: Sequence) -> str:
    """Return the recipe of a call of _scaled_mm(a, b, scale_a, scale_b, ..).

    Rowwise scales count as "tensorwise", since they run on the same GPUs.
    """
    a, b, scale_a, scale_b = arguments[:4]
    if a.dtype == torch.float4_e2m1fn_x2:
        return "nvfp4" if scale_a.dtype == torch.float8_e4m3fn else "mxfp8"
    if scale_a.dtype == torch.float8_e8m0fnu:
        return "mxfp8"
    per_tensor = scale_a.numel() == scale_b.numel() == 1
    rowwise = (*scale_a.shape, *scale_b.shape) == (a.shape[0], 1, 1, b.shape[1])
    return "tensorwise" if per_tensor or rowwise else "blockwise"


def reads_blocks(card: Card) -> bool:
    """Return whether torch._scaled_mm reads scales of 1x128 and 128x128 blocks on a GPU model.

    Only Hopper does (ATen/native/cuda/ScaledBlas.cpp, _check_deepseek_support).
    """
    return generation(card)[0] == 9


def mx_scales(rows: int, blocks: int) -> int:
    """Return the elements of an MX scale matrix [rows, blocks], padded to tiles of 128 x 4."""
    return -(-rows // 128) * 128 * -(-blocks // 4) * 4


def refuse(card: Card, func: torch._ops.OpOverload, arguments: Sequence) -> None:
    """Raise the error that CUDA raises for an 8-bit or 4-bit GEMM that the GPU does not support.

    Raises:
        RuntimeError: _scaled_mm before Ada, or with MX or NVFP4 scales before Blackwell, where
            cuBLASLt finds no algorithm.
        NotImplementedError: block scales of 1x128 or 128x128 anywhere but on Hopper, or a plain
            GEMM.
    """
    name = str(func._overloadpacket)
    if name in ("aten.mm", "aten.bmm", "aten.addmm", "aten.baddbmm"):
        fp8 = next((item.dtype for item in arguments[:3] if isinstance(item, torch.Tensor)
                    and item.dtype in FP8_DTYPES), None)
        if fp8 is not None:
            kernel = "baddbmm_cuda" if name in ("aten.bmm", "aten.baddbmm") else "addmm_cuda"
            name = str(fp8).removeprefix("torch.").capitalize()
            raise NotImplementedError(f"\"{kernel}\" not implemented for '{name}'; multiply FP8 "
                                      "matrices with torch._scaled_mm and their scales")
    if name != "aten._scaled_mm":
        return
    capability, recipe = generation(card)[:2], scaling(arguments)
    if capability < (8, 9):
        raise RuntimeError(f"{NO_FP8} ({card.name}: {_capability(card, (8, 9))})")
    if recipe == "blockwise" and not reads_blocks(card):
        raise NotImplementedError(f"{NO_BLOCKS} ({card.name}: {_capability(card, (9, 0), (9, 9))})")
    if recipe in ("mxfp8", "nvfp4") and capability < (10, 0):
        raise RuntimeError(f"{NO_MX} ({card.name}: {_capability(card, (10, 0))})")


def require(card: Card, dtype: str) -> None:
    """Raise NoValue if a GPU model has no arithmetic in a dtype (Card.tflops)."""
    if dtype not in card.tflops:
        raise NoValue(f"the virtual {card.name} has no {dtype} arithmetic; it has "
                      f"{', '.join(card.tflops)}")
