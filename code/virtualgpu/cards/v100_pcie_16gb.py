"""V100 as a PCIe card: lower clocks, no NVLink."""

from dataclasses import replace

from virtualgpu.cards.v100_sxm2_16gb import CARD as V100

CARD = replace(
    V100,
    name="v100-pcie-16gb",
    product="Tesla V100-PCIE-16GB",
    tflops={"fp32": 14.0, "fp16": 112.0},
    half=28.0,
    nvlink=0.0,
)
