"""GeForce RTX 3090, 24 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
