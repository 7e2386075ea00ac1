"""The kernel that scaled_dot_product_attention chooses, for many shapes and masks."""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.gpu.probe import is_virtual
from virtualgpu.export.ledger import Ledger
from virtualgpu.pytorch.attention import choose_backend

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cuDNN", -1: "error"}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
# Heads of queries and of keys; tokens of queries and of keys; head size of queries and of values.
SHAPES = {
    "plain": (8, 8, 128, 128, 64, 64), "head of 8": (8, 8, 128, 128, 8, 8),
    "head of 36": (8, 8, 128, 128, 36, 36), "head of 40": (8, 8, 128, 128, 40, 40),
    "head of 80": (8, 8, 128, 128, 80, 80), "head of 96": (8, 8, 128, 128, 96, 96),
    "head of 128": (8, 8, 128, 128, 128, 128), "head of 136": (8, 8, 128, 128, 136, 136),
    "head of 192": (8, 8, 128, 128, 192, 192), "head of 256": (8, 8, 128, 128, 256, 256),
    "head of 512": (8, 8, 128, 128, 512, 512), "values of 128": (8, 8, 128, 128, 64, 128),
    "grouped": (8, 2, 128, 128, 64, 64), "one head of keys": (8, 1, 128, 128, 64, 64),
    "cross": (8, 8, 128, 77, 64, 64), "one query": (8, 8, 1, 128, 64, 64),
    "one token": (8, 8, 1, 1, 64, 64), "odd tokens": (8, 8, 197, 197, 64, 64),
}
MASKS = ("", "causal", "bool", "bias", "bias with gradient")
CONTEXTS = {"all": None, "flash only": [SDPBackend.FLASH_ATTENTION],
            "efficient only": [SDPBackend.EFFICIENT_ATTENTION], "math only": [SDPBackend.MATH],
            "cuDNN only": [SDPBackend.CUDNN_ATTENTION],
            "flash and math": [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]}


def evaluate() -> dict[str, str]:
    """Return the chosen kernel by dtype, shape, mask, and enabled backends."""
    found = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            for mask in MASKS:
                for gradient in (True, False):
                    name = ", ".join((dtype, shape, mask or "no mask",
                                      "training" if gradient else "no gradient"))
                    found[name] = choice(dtype, shape, mask, gradient)
    for context, backends in CONTEXTS.items():
        for dtype in DTYPES:
            for mask in ("", "bool"):
                with sdpa_kernel(backends) if backends else torch.enable_grad():
                    found[f"{context}: {dtype}, {mask or 'no mask'}"] = choice(
                        dtype, "plain", mask, True)
    return found


def choice(dtype: str, shape: str, mask: str, gradient: bool) -> str:
    """Return the kernel that is chosen for one call, or "error" if there is none.

    Args:
        dtype: a key of DTYPES.
        shape: a key of SHAPES.
        mask: one of MASKS.
        gradient: whether the operands require gradients.
    """
    heads, groups, rows, columns, width, narrow = SHAPES[shape]
    make = {"device": "cuda", "dtype": DTYPES[dtype], "requires_grad": gradient}
    q = torch.empty(2, heads, rows, width, **make)
    k = torch.empty(2, groups, columns, width, **make)
    v = torch.empty(2, groups, columns, narrow, **make)
    extra = None
    if mask == "bool":
        extra = torch.ones(rows, columns, dtype=torch.bool, device="cuda")
    elif mask.startswith("bias"):
        extra = torch.zeros(2, heads, rows, columns, device="cuda", dtype=DTYPES[dtype],
                            requires_grad="gradient" in mask)
    try:
        if is_virtual():
            number = choose_backend(Ledger.current.gpu, q, k, v, extra, groups != heads).value
        else:
            number = torch._fused_sdp_choice(q, k, v, extra, 0.0, mask == "causal",
                                             enable_gqa=groups != heads)
    except RuntimeError:
        number = -1
    return NAMES[number]
