"""Find a GPU model by its name or its product's; models.py has their data."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

from virtualgpu.core.card import Card
from virtualgpu.core.cards.models import CARDS
from virtualgpu.core.errors import UnknownCard

# Names that clusters use as the type of a Slurm GRES.
ALIASES: dict[str, str] = {
    "v100": "v100-sxm2-16gb", "v100-16gb": "v100-sxm2-16gb", "v100-pcie": "v100-pcie-16gb",
    "a100": "a100-80gb", "h100": "h100-80gb", "h100-pcie": "h100-pcie-80gb",
}
UNKNOWN_VARIANTS = {"ti", "nvl", "fhhl", "mig"}  # words in names of products not modeled here


def find(name: str) -> Card:
    """Return the GPU model with a name or an alias. Raises UnknownCard if there is none."""
    key = name.strip().lower()
    card = CARDS.get(ALIASES.get(key, key))
    if card is None:
        near = " or ".join(nearest(key, [*CARDS, *ALIASES]))
        raise UnknownCard(f"no virtual GPU model is called {name!r}; nearest: {near}. "
                          f"All: {', '.join(CARDS)}")
    return card


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return one to three of `names` that are most similar to `name`."""
    return difflib.get_close_matches(name.lower(), list(names), n=3, cutoff=0.4) or [
        next(iter(names))]


def card_by_product(product: str) -> Card | None:
    """Return the GPU model with the data sheet of a device named `product`, or None.

    "NVIDIA A100-SXM4-80GB" is a100-80gb. Since the peaks do not depend on the size of the memory,
    "Tesla V100-PCIE-32GB" is v100-pcie-16gb.
    """
    words = re.findall(r"[a-z0-9]+", product.lower().replace("rtx 3090", "rtx3090"))
    families = [[card for card in CARDS.values() if card.name.split("-")[0] == word]
                for word in words]
    family = next(filter(None, families), [])
    if not family or UNKNOWN_VARIANTS & set(words):
        return None
    pcie = [card for card in family if "-pcie" in card.name]
    if "pcie" in words and pcie:
        family = pcie
    return next((card for card in family if card.name.rpartition("-")[2] in words), family[0])


def sheet_peak(product: str, dtype: str) -> float | None:
    """Return the data sheet's dense matmul peak in TFLOP/s, or None if it is not known.

    Args:
        product: name of the device, as CUDA reports it.
        dtype: "fp32", "tf32", "bf16", "fp16", "fp8", or "fp4".
    """
    card = card_by_product(product)
    return card.tflops.get(dtype) if card else None
