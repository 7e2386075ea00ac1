"""L4, 24 GB."""

from virtualgpu.core.card import Card, Efficiency

CARD = Card(
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
