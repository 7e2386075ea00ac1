"""A100 for NVLink, 80 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
