"""H200: an H100 for NVLink with more and faster memory."""

from dataclasses import replace

from virtualgpu.cards.h100_80gb import CARD as H100

CARD = replace(
    H100,
    name="h200",
    product="NVIDIA H200",
    memory=150_121_545_728,
    bandwidth=4.8e12,
)
