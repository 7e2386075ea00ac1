"""A100 for NVLink, 80 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="a100-80gb",
    product="NVIDIA A100-SXM4-80GB",
    architecture="ampere",
    memory=84_987_740_160,
    bandwidth=2039e9,
    tflops={"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    half=78.0,
    sms=108,
    nvlink=300e9,
    pcie=32e9,
    peer=True,
    network="infiniband:200gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.9, "tf32": 0.8, "bf16": 0.8, "fp16": 0.8},
        vector=0.85,
        attention=0.6,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA A100 Tensor Core GPU data sheet, June 2021",
    ),
)
