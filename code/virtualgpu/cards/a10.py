"""A10, 24 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="a10",
    product="NVIDIA A10",
    architecture="ampere",
    memory=23_836_098_560,
    bandwidth=600e9,
    tflops={"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0},
    half=31.2,
    sms=72,
    nvlink=0.0,
    pcie=32e9,
    peer=True,
    network="ethernet:25gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.6, "tf32": 0.6, "bf16": 0.6, "fp16": 0.6},
        vector=0.85,
        attention=0.5,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA A10 Tensor Core GPU data sheet, 2021",
    ),
)
