"""H100 for NVLink, 80 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="h100-80gb",
    product="NVIDIA H100 80GB HBM3",
    architecture="hopper",
    memory=84_942_979_072,
    bandwidth=3352e9,
    tflops={"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
    half=133.8,
    sms=132,
    nvlink=450e9,
    pcie=64e9,
    peer=True,
    network="infiniband:400gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.8, "tf32": 0.7, "bf16": 0.7, "fp16": 0.7, "fp8": 0.65},
        vector=0.9,
        attention=0.5,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA H100 Tensor Core GPU architecture whitepaper, 2022",
    ),
)
