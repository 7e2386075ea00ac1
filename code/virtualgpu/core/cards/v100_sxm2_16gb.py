"""V100 for NVLink, 16 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
