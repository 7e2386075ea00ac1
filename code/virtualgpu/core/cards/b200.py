"""B200 for NVLink, 180 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
