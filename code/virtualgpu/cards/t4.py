"""T4, 16 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="t4",
    product="Tesla T4",
    architecture="turing",
    memory=15_843_721_216,
    bandwidth=320e9,
    tflops={"fp32": 8.1, "fp16": 65.0},
    half=16.2,
    sms=40,
    nvlink=0.0,
    pcie=16e9,
    peer=True,
    network="ethernet:25gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.6, "fp16": 0.6},
        vector=0.75,
        attention=0.5,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA T4 Tensor Core GPU data sheet, 2019",
    ),
)
