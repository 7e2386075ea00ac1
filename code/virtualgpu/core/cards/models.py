"""The GPU models: data sheets, efficiencies of single kernels, and the sources of both."""

from __future__ import annotations

from dataclasses import replace

from virtualgpu.core.card import Card, Efficiency

# V100 for NVLink, 16 GB.
V100_SXM2_16GB = Card(
    name="v100-sxm2-16gb",
    product="Tesla V100-SXM2-16GB",
    architecture="volta",
    memory=16_160 * 2**20,
    bandwidth=900e9,
    tflops={"fp32": 15.7, "fp16": 125.0},
    sms=80,
    nvlink=150e9,
    pcie=16e9,
    peer=True,
    network="infiniband:4x100gbit",
    node="dgx-1",
    context=380 * 2**20,
    full_context=1271 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.89, "fp16": 0.76},
        vector=0.87,
        attention=0.4,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.8,
    ),
    sources=(
        "data sheet: NVIDIA Tesla V100 GPU Accelerator, March 2018; the network is that of a DGX-1",
        "memory: torch's device properties in public logs, 16160 MiB (15.78 GiB in an error)",
        "context: 15.75 GiB in use less 14.89 allocated and 0.49 reserved, a public out-of-memory "
        "line",
        "full context: the kernels of BigScience's 104B model, github.com/bigscience-workshop/"
        "bigscience, train/tr11-176B-ml/chronicles-prequel.md; 1.26 GiB in "
        "github.com/kchengiva/Shift-GCN issue 34: of 15.78 GiB, 14.34 reserved and 0.18 free",
        "matmul: 14 of 15.7 and 95 of 125 TFLOP/s, products of order 8192, M. Li 2022, "
        "github.com/mli/transformers-benchmarks; Markidis et al. 2018 had 83 in fp16 with an "
        "older cuBLAS",
        "vector: 788 of 900 GB/s, one stream in and one out on a V100-PCIE-16GB, "
        "github.com/te42kyfo/gpu-benches; 784 by M. Li 2022, "
        "github.com/mli/transformers-benchmarks",
        "attention: FlashAttention-2 does not run here; what Dao 2023 (arXiv:2307.08691) says of "
        "the first FlashAttention on the A100, 25 to 40% of the peak",
        "link: 20 of 25 GB/s of each NVLink is left by the packets' heads, S. Jeaugey (NCCL) of "
        "the A100's, which have the same rate, in github.com/NVIDIA/nccl-tests issue 149",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# V100 for NVLink with twice the memory.
V100_32GB = replace(
    V100_SXM2_16GB,
    name="v100-32gb",
    product="Tesla V100-SXM2-32GB",
    memory=32_510 * 2**20,
    sources=(
        "data sheet: NVIDIA Tesla V100 GPU Accelerator, March 2018; the network is that of a DGX-1",
        "memory: 31.75 GiB in public out-of-memory lines, such as github.com/uni-medical/SAM-Med3D "
        "issue 8",
        "context: as the v100-sxm2-16gb's",
        "full context: as the v100-sxm2-16gb's",
        "matmul: as the v100-sxm2-16gb's",
        "vector: as the v100-sxm2-16gb's",
        "attention: as the v100-sxm2-16gb's",
        "link: as the v100-sxm2-16gb's",
        "launch: as the v100-sxm2-16gb's",
    ),
)

# V100 as a PCIe card: lower clocks, no NVLink.
V100_PCIE_16GB = replace(
    V100_SXM2_16GB,
    name="v100-pcie-16gb",
    product="Tesla V100-PCIE-16GB",
    tflops={"fp32": 14.0, "fp16": 112.0},
    nvlink=0.0,
    network="ethernet:25gbit",
    node="pcie-switches",
    efficiency=replace(V100_SXM2_16GB.efficiency, link=0.77),
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

# T4, 16 GB.
T4 = Card(
    name="t4",
    product="Tesla T4",
    architecture="turing",
    memory=15_104 * 2**20,
    bandwidth=320e9,
    tflops={"fp32": 8.1, "fp16": 65.0},
    sms=40,
    nvlink=0.0,
    pcie=16e9,
    peer=True,
    network="ethernet:50gbit",
    node="pcie",
    context=120 * 2**20,
    full_context=1050 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.49, "fp16": 0.49},
        vector=0.75,
        attention=0.26,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.77,
    ),
    sources=(
        "data sheet: NVIDIA T4 70W low profile PCIe GPU accelerator, product brief, 2019; the "
        "network is that of common cloud machines",
        "memory: 14.75 GiB in public out-of-memory lines, such as github.com/hpcaitech/Open-Sora "
        "issue 697",
        "context: 0.11 to 0.16 GiB in public out-of-memory lines: in use, less what torch has "
        "allocated and reserved",
        "full context: 1.03 GiB in github.com/rshaojimmy/MADDoG issue 11 of 2021: of 14.76 GiB, "
        "13.71 reserved and 0.02 free",
        "matmul: 4 of 8.1 TFLOP/s in fp32: its 70 W hold the clock down, S. Chilamkurthy, "
        "github.com/chsasank/device-benchmarks; fp16 is taken from fp32",
        "vector: 240 of 320 GB/s, copies, S. Chilamkurthy, github.com/chsasank/device-benchmarks",
        "attention: taken from the v100-sxm2-16gb in proportion to matmul (0.4 / 0.76)",
        "link: 12.35 GB/s of PCIe 3's 16, copies between host and a V100, "
        "github.com/te42kyfo/gpu-benches; taken from there",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# A100 for NVLink, 80 GB.
A100_80GB = Card(
    name="a100-80gb",
    product="NVIDIA A100-SXM4-80GB",
    architecture="ampere",
    memory=81_152 * 2**20,
    bandwidth=2039e9,
    tflops={"fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0},
    sms=108,
    nvlink=300e9,
    pcie=32e9,
    peer=True,
    network="infiniband:8x200gbit",
    node="dgx-a100",
    context=460 * 2**20,
    full_context=1573 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.97, "tf32": 0.74, "bf16": 0.74, "fp16": 0.74},
        vector=0.88,
        attention=0.7,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.77,
    ),
    sources=(
        "data sheet: NVIDIA A100 Tensor Core GPU, June 2021; the network is that of a DGX A100",
        "memory: 79.25 GiB in public out-of-memory lines, such as github.com/HiDream-ai/VAREdit "
        "issue 6",
        "context: 0.40 GiB there and 0.49 in github.com/TianheWu/CoSeR issue 10: in use, less what "
        "torch has allocated and reserved",
        "full context: one tensor on a 40 GB model, github.com/bigscience-workshop/bigscience, "
        "train/tr11-176B-ml/chronicles-prequel.md; 1.52 GiB in a public out-of-memory line: of "
        "79.35 GiB, 77.79 reserved and 0.04 free",
        "matmul: 230 of 312 TFLOP/s in fp16 and 116 of 156 in TF32 at order 8192, M. Li 2022, "
        "github.com/mli/transformers-benchmarks; bf16 as fp16; fp32 19 of 19.5, S. Chilamkurthy, "
        "github.com/chsasank/device-benchmarks. The best of all shapes reaches 271.2 in bf16, in "
        "short runs (S. Bekman, ML Engineering, maximum achievable matmul FLOPS)",
        "vector: 1381 of 1555 GB/s, one stream in and one out on an A100-SXM4-40GB, "
        "github.com/te42kyfo/gpu-benches",
        "attention: FlashAttention-2 reaches up to 73% forward, Dao 2023 "
        "(arXiv:2307.08691)",
        "link: 230.8 of 300 GB/s, all-reduce over 8, github.com/NVIDIA/nccl issue 527",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# A100 for NVLink with half the memory, and slower memory.
A100_40GB = replace(
    A100_80GB,
    name="a100-40gb",
    product="NVIDIA A100-SXM4-40GB",
    memory=40_537 * 2**20,
    bandwidth=1555e9,
    sources=(
        "data sheet: NVIDIA A100 Tensor Core GPU, June 2021; the network is that of a DGX A100",
        "memory: 39.59 GiB in public out-of-memory lines, such as github.com/raoyongming/DenseCLIP "
        "issue 52",
        "context: as the a100-80gb's",
        "full context: as the a100-80gb's",
        "matmul: as the a100-80gb's",
        "vector: as the a100-80gb's",
        "attention: as the a100-80gb's",
        "link: as the a100-80gb's",
        "launch: as the a100-80gb's",
    ),
)

# A10, 24 GB.
A10 = Card(
    name="a10",
    product="NVIDIA A10",
    architecture="ampere",
    memory=22_557 * 2**20,
    bandwidth=600e9,
    tflops={"fp32": 31.2, "tf32": 62.5, "bf16": 125.0, "fp16": 125.0},
    sms=72,
    nvlink=0.0,
    pcie=32e9,
    peer=True,
    network="ethernet:100gbit",
    node="pcie-switches",
    context=320 * 2**20,
    full_context=1680 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.45, "tf32": 0.45, "bf16": 0.45, "fp16": 0.45},
        vector=0.78,
        attention=0.36,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.77,
    ),
    sources=(
        "data sheet: NVIDIA A10 Tensor Core GPU, 2021; the network is that of common cloud "
        "machines",
        "memory: the 23028 MiB of nvidia-smi, github.com/modal-labs/modal-client pull request "
        "2797, less the 471 that the driver keeps on an L4",
        "context: taken from the rtx3090",
        "full context: 1.64 GiB in a public out-of-memory line of PyTorch 1.8 with CUDA 11.1: of "
        "22.20 GiB, 19.88 reserved and 0.68 free",
        "matmul: 14 of 31.2 in fp32, 56 of 125 TFLOP/s in bf16: its 150 W hold the clock down, S. "
        "Chilamkurthy, github.com/chsasank/device-benchmarks; TF32 is taken from bf16",
        "vector: 469 of 600 GB/s, copies, S. Chilamkurthy, github.com/chsasank/device-benchmarks",
        "attention: taken from the a100-80gb in proportion to its best products (0.7 / 0.87)",
        "link: 12.35 GB/s of PCIe 3's 16, copies between host and a V100, "
        "github.com/te42kyfo/gpu-benches; taken from there",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# GeForce RTX 3090, 24 GB.
RTX3090 = Card(
    name="rtx3090",
    product="NVIDIA GeForce RTX 3090",
    architecture="ampere",
    memory=24_259 * 2**20,
    bandwidth=936e9,
    tflops={"fp32": 35.6, "tf32": 35.6, "bf16": 71.0, "fp16": 71.0},
    sms=82,
    nvlink=0.0,
    pcie=32e9,
    peer=False,
    network="ethernet:10gbit",
    node="workstation",
    context=320 * 2**20,
    full_context=1640 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.76, "tf32": 1.0, "bf16": 1.0, "fp16": 1.0},
        vector=0.89,
        attention=0.8,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.77,
    ),
    sources=(
        "data sheet: NVIDIA Ampere GA102 GPU architecture whitepaper, 2021; without the bridge "
        "that can join two cards; the network is a workstation's",
        "memory: torch's device properties in public logs, 24259 MiB (23.69 GiB in an error)",
        "context: 19.49 GiB in use less 19.10 allocated and 0.08 reserved, "
        "github.com/3DTopia/OpenLRM issue 42",
        "full context: 1.60 GiB in huggingface.co/blog/zero-deepspeed-fairscale of 2021: of 23.70 "
        "GiB, 22.05 reserved and 0.04 free",
        "matmul: 78.0 TFLOP/s in bf16, above the sheet's 71 since the clock rises above the "
        "sheet's, github.com/mag-/gpu_benchmark; taken as 1; fp32 27 of 35.6, S. Chilamkurthy, "
        "github.com/chsasank/device-benchmarks; TF32 42 of 40 on a 3090 Ti, M. Li 2022, "
        "github.com/mli/transformers-benchmarks",
        "vector: 831 of 936 GB/s, copies, S. Chilamkurthy, github.com/chsasank/device-benchmarks",
        "attention: taken from the a100-80gb in proportion to its best products (0.7 / 0.87)",
        "link: 12.35 GB/s of PCIe 3's 16, copies between host and a V100, "
        "github.com/te42kyfo/gpu-benches; taken from there. GeForce drivers give no peer "
        "access: github.com/NVIDIA/nccl issue 1127",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# L4, 24 GB.
L4 = Card(
    name="l4",
    product="NVIDIA L4",
    architecture="ada",
    memory=22_563 * 2**20,
    bandwidth=300e9,
    tflops={"fp32": 30.3, "tf32": 60.0, "bf16": 121.0, "fp16": 121.0, "fp8": 242.5},
    sms=58,
    nvlink=0.0,
    pcie=32e9,
    peer=True,
    network="ethernet:100gbit",
    node="pcie",
    context=250 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.45, "tf32": 0.75, "bf16": 0.75, "fp16": 0.75, "fp8": 0.75},
        vector=0.89,
        attention=0.6,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.77,
    ),
    sources=(
        "data sheet: NVIDIA L4 Tensor Core GPU, 2023, its figures with sparsity halved; the "
        "network is that of common cloud machines",
        "memory: 22.03 GiB in public out-of-memory lines",
        "context: 0.245 GiB in two of them: in use, less what torch has allocated and reserved",
        "matmul: 91.4 of 121 TFLOP/s in bf16 at the best shape, github.com/mag-/gpu_benchmark; "
        "TF32 and fp8 are taken from it, fp32 from the a10",
        "vector: 770 of 864 GB/s, one stream in and one out on an L40, "
        "github.com/te42kyfo/gpu-benches",
        "attention: taken from the a100-80gb in proportion to its best products (0.7 / 0.87)",
        "link: 12.35 GB/s of PCIe 3's 16, copies between host and a V100, "
        "github.com/te42kyfo/gpu-benches; taken from there",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

# H100 for NVLink, 80 GB.
H100_80GB = Card(
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

# H100 as a PCIe card: fewer multiprocessors, slower memory, less power, no NVLink.
H100_PCIE_80GB = replace(
    H100_80GB,
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
        H100_80GB.efficiency,
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

# H200: an H100 for NVLink with more and faster memory.
H200 = replace(
    H100_80GB,
    name="h200",
    product="NVIDIA H200",
    memory=143_156 * 2**20,
    bandwidth=4.8e12,
    efficiency=replace(
        H100_80GB.efficiency,
        matmul={**H100_80GB.efficiency.matmul, "fp8": 0.73},
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

# B200 for NVLink, 180 GB.
B200 = Card(
    name="b200",
    product="NVIDIA B200",
    architecture="blackwell",
    memory=182_632 * 2**20,
    bandwidth=7.7e12,
    tflops={"fp32": 75.0, "tf32": 1100.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0,
            "fp4": 9000.0},
    sms=148,
    nvlink=900e9,
    pcie=64e9,
    peer=True,
    network="infiniband:8x400gbit",
    node="dgx-b200",
    context=520 * 2**20,
    efficiency=Efficiency(
        matmul={"fp32": 0.79, "tf32": 0.67, "bf16": 0.67, "fp16": 0.67, "fp8": 0.57, "fp4": 0.58},
        vector=0.81,
        attention=0.35,
        kernel=2e-6,
        dispatch=5e-6,
        link=0.82,
    ),
    sources=(
        "data sheet: NVIDIA Blackwell data sheet, column HGX B200 (5th-generation NVLink with 1.8 "
        "TB/s, up to 1,000 W), its figures with sparsity halved; the network is that of a DGX B200",
        "memory: 178.35 GiB in public out-of-memory lines",
        "context: taken from the h200",
        "matmul: bf16 1512.8 of 2250 and fp8 2544.7 of 4500 TFLOP/s with 16,384 rows, "
        "github.com/vllm-project/vllm pull request 19566; fp4 5239 of 9000 at order 8192, cuBLAS "
        "in github.com/deepseek-ai/DeepGEMM pull request 348; TF32 and fp16 are taken from bf16, "
        "fp32 from the h100-80gb",
        "vector: taken from the h200",
        "attention: taken from the h100-80gb, in proportion to the peak",
        "link: taken from the h100-80gb",
        "launch: assumed, the same for every GPU: 2 us for the shortest kernel, 5 us of the host",
    ),
)

CARDS: dict[str, Card] = {card.name: card for card in (
    V100_SXM2_16GB, V100_32GB, V100_PCIE_16GB, T4, A100_40GB, A100_80GB, A10, RTX3090, L4,
    H100_80GB, H100_PCIE_80GB, H200, B200)}
