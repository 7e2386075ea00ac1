"""A node's GPU slots: their numbers, and their PCI buses, which are invented but consistent."""

from __future__ import annotations

FIRST_BUS = 0x1B

# A cluster sets this to "cuda" in the environment of its jobs to replace `--device cpu`.
INSTEAD_OF_CPU = "DEVICE_INSTEAD_OF_CPU"


def bus(number: int) -> int:
    """Return the PCI bus of a GPU from its number on the node, from 0."""
    return FIRST_BUS + number


def visible(text: str, index: int) -> int | None:
    """Return a visible GPU's number on its node, or None if it is not known.

    Args:
        text: value of CUDA_VISIBLE_DEVICES, in which Slurm lists the numbers of a job's GPUs.
        index: index of the GPU in the program, as in cuda:INDEX.
    """
    numbers = text.split(",")
    number = numbers[index].strip() if 0 <= index < len(numbers) else ""
    return int(number) if number.isdecimal() else None
