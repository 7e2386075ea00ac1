"""On-demand prices of GPUs, in US dollars per hour.

From Amazon EC2 (us-east-1, Linux, first half of 2025), per GPU of the named instance. They give the
order of magnitude: prices change, and long reservations cost less. --price-per-gpu-hour overrides
them.
"""

from __future__ import annotations

from collections.abc import Mapping

from virtualgpu.core.card import Card

DOLLARS_PER_HOUR = {
    "v100-sxm2-16gb": 24.48 / 8,  # p3.16xlarge
    "v100-32gb": 31.212 / 8,  # p3dn.24xlarge
    "a100-40gb": 32.7726 / 8,  # p4d.24xlarge
    "a100-80gb": 40.9657 / 8,  # p4de.24xlarge
    "h100-80gb": 98.32 / 8,  # p5.48xlarge
    "a10": 16.288 / 8,  # g5.48xlarge (A10G)
    "t4": 0.526,  # g4dn.xlarge
    "l4": 0.8048,  # g6.xlarge
}


def dollars(gpus: Mapping[Card, int], hours: float, price: float | None) -> float | None:
    """Return the price of GPUs for some hours; None if a GPU has no known price.

    Args:
        gpus: the number of GPUs of each model.
        hours: how long they are rented.
        price: of every GPU per hour; None for the prices above.
    """
    prices = {card: DOLLARS_PER_HOUR.get(card.name) if price is None else price for card in gpus}
    if None in prices.values():
        return None
    return sum(hours * count * prices[card] for card, count in gpus.items())
