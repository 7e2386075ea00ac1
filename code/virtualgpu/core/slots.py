"""Slots of a node's GPUs: their PCI buses, which are made up but consistent, and their numbers."""

from __future__ import annotations

FIRST_BUS = 0x1B

# A cluster sets this to "cuda" in the environment of its jobs to replace `--device cpu`.
INSTEAD_OF_CPU = "DEVICE_INSTEAD_OF_CPU"


def bus(number: int) -> int:
    """Return the PCI bus of a GPU from its number on the node, from 0."""
    return FIRST_BUS + number


def visible(text: str, index: int) -> int | None:
    """Return the number on its node of a GPU that a program sees, or None if it is not known.

    Args:
        text: CUDA_VISIBLE_DEVICES, in which Slurm lists the numbers of a job's GPUs.
        index: the program's number of the GPU, as in cuda:INDEX.
    """
    numbers = text.split(",")
    found = numbers[index].strip() if 0 <= index < len(numbers) else ""
    return int(found) if found.isdecimal() else None
