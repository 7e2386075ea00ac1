"""T4, 16 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
