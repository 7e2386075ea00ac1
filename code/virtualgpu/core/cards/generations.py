"""Compute capabilities of the GPU models, by architecture."""

from __future__ import annotations

from virtualgpu.core.card import Card

# Compute capability (major, minor) and the most resident threads per multiprocessor. The A100 has a
# different capability than the other Ampere GPUs.
GENERATIONS = {"volta": (7, 0, 2048), "turing": (7, 5, 1024), "ampere": (8, 6, 1536),
               "ada": (8, 9, 1536), "hopper": (9, 0, 2048), "blackwell": (10, 0, 2048)}
A100 = (8, 0, 2048)


def generation(card: Card) -> tuple[int, int, int]:
    """Return (major, minor, threads): compute capability, and most threads per multiprocessor."""
    return A100 if card.name.startswith("a100") else GENERATIONS[card.architecture]
