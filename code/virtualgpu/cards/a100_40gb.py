"""A100 for NVLink with half the memory, and slower memory."""

from dataclasses import replace

from virtualgpu.cards.a100_80gb import CARD as A100

CARD = replace(
    A100,
    name="a100-40gb",
    product="NVIDIA A100-SXM4-40GB",
    memory=42_506_321_920,
    bandwidth=1555e9,
)
