"""V100 as a PCIe card: lower clocks, no NVLink."""

from dataclasses import replace

from virtualgpu.core.cards.v100_sxm2_16gb import CARD as V100

CARD = replace(
    V100,
    name="v100-pcie-16gb",
    product="Tesla V100-PCIE-16GB",
    tflops={"fp32": 14.0, "fp16": 112.0},
    nvlink=0.0,
    network="ethernet:25gbit",
    node="pcie-switches",
    efficiency=replace(V100.efficiency, link=0.77),
    sources=(
        "data sheet: NVIDIA Tesla V100 GPU Accelerator, March 2018; the network is that of common "
        "cloud machines",
        "memory: as the v100-sxm2-16gb's",
        "context: as the v100-sxm2-16gb's",
        "full context: as the v100-sxm2-16gb's",
        "matmul: as the v100-sxm2-16gb's",
        "vector: as the v100-sxm2-16gb's",
        "attention: as the v100-sxm2-16gb's",
        "link: 12.35 GB/s of PCIe 3's 16, copies between host and GPU, "
        "github.com/te42kyfo/gpu-benches",
        "launch: as the v100-sxm2-16gb's",
    ),
)
