"""V100 for NVLink with twice the memory."""

from dataclasses import replace

from virtualgpu.core.cards.v100_sxm2_16gb import CARD as V100

CARD = replace(
    V100,
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
