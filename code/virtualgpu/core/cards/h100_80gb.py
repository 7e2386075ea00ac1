"""H100 for NVLink, 80 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
    name="h100-80gb",
    product="NVIDIA H100 80GB HBM3",
    architecture="hopper",
    memory=81_008 * 2**20,
    bandwidth=3352e9,
    tflops={"fp32": 67.0, "tf32": 494.7, "bf16": 989.4, "fp16": 989.4, "fp8": 1978.9},
    sms=132,
    nvlink=450e9,
    pcie=64e9,
    peer=True,
    network="infiniband:8x400gbit",
    node="dgx-h100",
    context=520 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.79, "tf32": 0.8, "bf16": 0.8, "fp16": 0.8, "fp8": 0.71},
        vector=0.87,
        attention=0.35,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.82,
    ),
    sources=(
        "data sheet: NVIDIA H100 Tensor Core GPU architecture whitepaper, 2022; the network is "
        "that of a DGX H100",
        "memory: 79.11 GiB in public out-of-memory lines; some drivers leave 79.19",
        "context: taken from the h200",
        "matmul: bf16 794.5 of 989 and fp8 1402.6 of 1979 TFLOP/s at the best shape, S. Bekman, ML "
        "Engineering, table of maximum achievable matmul FLOPS; TF32 is taken from bf16; fp32 "
        "is 47.28 of 60 on an H200 NVL, github.com/xzwgit/gpu-flops-bench",
        "vector: 2903 of 3350 GB/s, copies on the GPU, github.com/ZiyanIshani/vpbenchmarking "
        "(Voltage Park)",
        "attention: FlashAttention-2, which torch has: 35% of the peak, Shah et al. 2024 "
        "(arXiv:2407.08608); FlashAttention-3 reaches 75%",
        "link: 370 of 450 GB/s without the switches' own sums, S. Jeaugey (NCCL) in "
        "github.com/NVIDIA/nccl-tests issue 212",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)
