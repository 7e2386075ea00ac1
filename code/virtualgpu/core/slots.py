"""Where a node's cards are plugged in: made up, and the same wherever it is shown."""

from __future__ import annotations

FIRST_BUS = 0x1B

# Set by a cluster in the environment of its jobs: in place of `--device cpu`, cuda.
INSTEAD_OF_CPU = "DEVICE_INSTEAD_OF_CPU"


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
