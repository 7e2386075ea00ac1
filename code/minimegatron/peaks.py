"""Data-sheet peaks of accelerators: dense matrix products, no sparsity, in TFLOP/s.

Sources: NVIDIA's data sheets of each card, and for the RTX 3090 the GA102 whitepaper. Half
precision accumulates in fp32. "fp32" is without TF32, as torch multiplies by default.
"""

from __future__ import annotations

import re

_HOPPER_SXM = {"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9}
TFLOPS: dict[str, dict[str, float]] = {
    "v100": {"fp32": 15.7, "fp16": 125.0},
    "v100-pcie": {"fp32": 14.0, "fp16": 112.0},
    "t4": {"fp32": 8.1, "fp16": 65.0},
    "a100": {"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    "a10": {"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0},
    "rtx3090": {"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0},
    "l4": {"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5},
    "h100": _HOPPER_SXM,
    "h100-pcie": {"fp32": 51.0, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0},
    "h200": _HOPPER_SXM,
}


def peak(card: str, dtype: str) -> float | None:
    """TFLOP/s of `card` (a key of TFLOPS) in "fp32", "tf32", "bf16", "fp16" or "fp8"; None where
    the card or its arithmetic in that type is not in the table."""
    return TFLOPS.get(card, {}).get(dtype)


def card_of(name: str) -> str | None:
    """The key of TFLOPS for a device's own name ("NVIDIA A100-SXM4-80GB": "a100"), or None."""
    words = re.findall(r"[a-z0-9]+", name.lower().replace("rtx 3090", "rtx3090"))
    if "ti" in words or "nvl" in words:  # other cards of the same name
        return None
    card = next((word for word in words if word in TFLOPS), None)
    return f"{card}-pcie" if "pcie" in words and f"{card}-pcie" in TFLOPS else card
