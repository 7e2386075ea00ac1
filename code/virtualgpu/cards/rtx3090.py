"""GeForce RTX 3090, 24 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="rtx3090",
    product="NVIDIA GeForce RTX 3090",
    architecture="ampere",
    memory=25_447_170_048,
    bandwidth=936e9,
    tflops={"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0},
    half=35.6,
    sms=82,
    nvlink=0.0,
    pcie=32e9,
    peer=False,
    network="ethernet:10gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.7, "tf32": 0.9, "bf16": 0.9, "fp16": 0.9},
        vector=0.9,
        attention=0.6,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA Ampere GA102 GPU architecture whitepaper, 2021",
    ),
)
