"""Where a node's cards are plugged in: made up, and the same wherever it is shown."""

from __future__ import annotations

FIRST_BUS = 0x1B


def bus(number: int) -> int:
    """The PCI bus of a node's card with this number, from 0."""
    return FIRST_BUS + number


def visible(text: str, index: int) -> int | None:
    """The number on its node of the card that a program sees as `index`; None: it is not said.

    text: CUDA_VISIBLE_DEVICES, in which Slurm names a job's cards, by numbers.
    """
    numbers = text.split(",")
    found = numbers[index].strip() if 0 <= index < len(numbers) else ""
    return int(found) if found.isdecimal() else None
