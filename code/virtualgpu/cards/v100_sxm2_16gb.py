"""V100 for NVLink, 16 GB."""

from virtualgpu.card import Card, Efficiency

CARD = Card(
    name="v100-sxm2-16gb",
    product="Tesla V100-SXM2-16GB",
    architecture="volta",
    memory=16_945_512_448,
    bandwidth=900e9,
    tflops={"fp32": 15.7, "fp16": 125.0},
    half=31.4,
    sms=80,
    nvlink=150e9,
    pcie=16e9,
    peer=True,
    network="ethernet:25gbit",
    context=500 * 2**20,
    efficiency=Efficiency(  # not yet from measurements
        matmul={"fp32": 0.9, "fp16": 0.75},
        vector=0.83,
        attention=0.5,
        kernel=2e-6,
        dispatch=6e-6,
        link=0.8,
    ),
    sources=(
        "NVIDIA Tesla V100 GPU Accelerator data sheet, March 2018",
    ),
)
