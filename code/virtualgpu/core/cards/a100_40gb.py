"""A100 for NVLink with half the memory, and slower memory."""

from dataclasses import replace

from virtualgpu.core.cards.a100_80gb import CARD as A100

CARD = replace(
    A100,
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
