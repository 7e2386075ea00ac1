"""H100 as a PCIe card: fewer multiprocessors, slower memory, less power, no NVLink."""

from dataclasses import replace

from virtualgpu.core.cards.h100_80gb import CARD as H100

CARD = replace(
    H100,
    name="h100-pcie-80gb",
    product="NVIDIA H100 PCIe",
    memory=81_008 * 2**20,
    bandwidth=2039e9,
    tflops={"fp32": 51.0, "tf32": 378.0, "bf16": 756.0, "fp16": 756.0, "fp8": 1513.0},
    sms=114,
    nvlink=0.0,
    network="ethernet:100gbit",
    node="pcie-switches-2023",
    efficiency=replace(
        H100.efficiency,
        matmul={"fp32": 0.79, "tf32": 0.66, "bf16": 0.66, "fp16": 0.66, "fp8": 0.58},
        link=0.86,
    ),
    sources=(
        "data sheet: NVIDIA H100 Tensor Core GPU architecture whitepaper, 2022; without the bridge "
        "that can join two cards; the network is that of common machines",
        "memory: torch's device properties in public logs, 81008 MiB (79.11 GiB in an error)",
        "context: as the h100-80gb's",
        "matmul: bf16 499.5 of 756 TFLOP/s at the best shape, github.com/mag-/gpu_benchmark; TF32 "
        "is taken from it, fp8 in the h100-80gb's proportion, fp32 from the h100-80gb",
        "vector: as the h100-80gb's",
        "attention: as the h100-80gb's",
        "link: 54.8 of 64 GB/s, copies from the host to an H100, "
        "github.com/ZiyanIshani/vpbenchmarking (Voltage Park)",
        "launch: as the h100-80gb's",
    ),
)
