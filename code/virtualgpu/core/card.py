"""GPU models: their data sheets, and the share of them that programs achieve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FLASH, CUDNN = "flash", "cudnn"  # fused attention kernels that stacks choose (rules/attention.py)


@dataclass(frozen=True)
class Efficiency:
    """The measured share of a data sheet that programs achieve, and the cost of launching kernels.

    Each GPU model cites the measurements.

    Attributes:
        matmul: share of the peak that large GEMMs reach, by dtype ("fp32", "tf32", "fp16", "bf16",
            "fp8", "fp4").
        vector: share of the memory bandwidth that elementwise kernels reach.
        attention: share of the peak that FlashAttention-2's forward pass reaches over long rows
            without a mask, with heads of 128 elements; rules/attention.py has the other kernels.
        kernel: duration of the shortest kernel, in seconds.
        dispatch: time that the host takes to launch a kernel, in seconds.
        link: share of the links' bandwidth that NCCL reaches.
        p2p: share of `link` that a point-to-point send reaches within a node; between nodes, the
            network has its own share (network.KINDS).
        pace: seconds from one kernel to the next in a framework whose host does not run ahead of
            the GPU; 0 if it does, as in this trainer.
        fused: fused attention kernel for programs that leave the choice open (rules/attention.py).
        step: host time per training step during which the GPU is idle, in seconds.
    """

    matmul: Mapping[str, float]
    vector: float
    attention: float
    kernel: float
    dispatch: float
    link: float
    p2p: float = 1.0
    pace: float = 0.0
    fused: str = FLASH
    step: float = 0.0


@dataclass(frozen=True, eq=False)  # compared by identity, and hashable
class Card:
    """One GPU model.

    Attributes:
        name: name on the command line.
        product: NVIDIA's name, as CUDA reports it.
        architecture: NVIDIA's name of the generation.
        memory: total memory in bytes, as CUDA reports it.
        bandwidth: memory bandwidth, in bytes/s.
        tflops: dense peaks in TFLOP/s by dtype, with fp32 accumulation and without sparsity.
            "fp32" is without TF32, and 16-bit peaks are those of the Tensor Cores. A GPU model
            lacks the dtypes that are missing.
        sms: number of streaming multiprocessors.
        nvlink: bytes/s of all NVLinks together, per direction; 0 if there are none.
        pcie: bytes/s of the PCIe link, per direction.
        peer: whether GPUs of a node access each other's memory over PCIe (P2P); otherwise, they
            communicate through the host's memory.
        network: default network between nodes, in the form that network.parse reads.
        node: kind of node that it comes in, a key of net.nodes.NODES.
        context: bytes of memory used by CUDA, its libraries, and their workspaces.
        efficiency: the share of these figures that programs achieve.
        sources: where the figures come from, one line per topic.
        stack: name of the software stack whose efficiency this is (stacks.py); empty if the
            efficiency is that of single kernels.
        full_context: the context if all kernels are loaded at startup, as before CUDA 11.7; 0 if
            such software does not run on this GPU.
    """

    name: str
    product: str
    architecture: str
    memory: int
    bandwidth: float
    tflops: Mapping[str, float]
    sms: int
    nvlink: float
    pcie: float
    peer: bool
    network: str
    node: str
    context: int
    efficiency: Efficiency
    sources: tuple[str, ...]
    stack: str = ""
    full_context: int = 0


# Compute capability (major, minor) and the most resident threads per multiprocessor. The A100 has a
# different capability than the other Ampere GPUs.
GENERATIONS = {"volta": (7, 0, 2048), "turing": (7, 5, 1024), "ampere": (8, 6, 1536),
               "ada": (8, 9, 1536), "hopper": (9, 0, 2048), "blackwell": (10, 0, 2048)}
A100 = (8, 0, 2048)


def generation(card: Card) -> tuple[int, int, int]:
    """Return (major, minor, threads): compute capability, and most threads per multiprocessor."""
    return A100 if card.name.startswith("a100") else GENERATIONS[card.architecture]
