"""H200: an H100 for NVLink with more and faster memory."""

from dataclasses import replace

from virtualgpu.core.cards.h100_80gb import CARD as H100

CARD = replace(
    H100,
    name="h200",
    product="NVIDIA H200",
    memory=143_156 * 2**20,
    bandwidth=4.8e12,
    efficiency=replace(
        H100.efficiency,
        matmul={**H100.efficiency.matmul, "fp8": 0.73},
        vector=0.81,
    ),
    sources=(
        "data sheet: NVIDIA H200 Tensor Core GPU, 2023; the network is that of a DGX H200",
        "memory: 139.80 GiB in public out-of-memory lines",
        "context: 0.51 GiB in one of them: in use, less what torch has allocated and reserved",
        "matmul: bf16 is the same as the h100-80gb's, fp8 1453.4 of 1979 TFLOP/s, S. Bekman, ML "
        "Engineering, table of maximum achievable matmul FLOPS; the others as the h100-80gb's",
        "vector: 3898 of 4800 GB/s, one stream out, github.com/te42kyfo/gpu-benches; with a stream "
        "in as well its kernel does not saturate the memory",
        "attention: as the h100-80gb's",
        "link: as the h100-80gb's",
        "launch: as the h100-80gb's",
    ),
)
