"""A10, 24 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
