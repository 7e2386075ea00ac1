"""L4, 24 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="l4",
    product="NVIDIA L4",
    architecture="ada",
    memory=23_580_639_232,
    bandwidth=300e9,
    tflops={"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5},
    half=30.3,
    sms=58,
    nvlink=0.0,
    pcie=32e9,
    peer=True,
    network="ethernet:25gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.5, "tf32": 0.5, "bf16": 0.5, "fp16": 0.5, "fp8": 0.5},
        vector=0.85,
        attention=0.5,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA L4 Tensor Core GPU data sheet, 2023",
    ),
)
