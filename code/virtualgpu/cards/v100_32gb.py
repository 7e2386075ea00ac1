"""V100 for NVLink with twice the memory."""

from dataclasses import replace

from virtualgpu.cards.v100_sxm2_16gb import CARD as V100

CARD = replace(
    V100,
    name="v100-32gb",
    product="Tesla V100-SXM2-32GB",
    memory=34_089_730_048,
)
