"""H100 as a PCIe card: fewer multiprocessors, HBM2e, no NVLink but by a bridge."""

from dataclasses import replace

from virtualgpu.cards.h100_80gb import CARD as H100

CARD = replace(
    H100,
    name="h100-pcie-80gb",
    product="NVIDIA H100 PCIe",
    bandwidth=2039e9,
    tflops={"fp32": 51.0, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0},
    half=102.4,
    sms=114,
    nvlink=0.0,
)
