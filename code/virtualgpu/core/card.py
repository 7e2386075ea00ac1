"""What is known of a card: its data sheet, and how much of it programs reach."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Efficiency:
    """What programs get of a data sheet; measured, each card's file says by whom.

    matmul: by dtype ("fp32", "tf32", "fp16", "bf16", "fp8"), the share of the peak that large
    matrix products reach. vector: the share of the memory bandwidth that elementwise kernels
    reach. attention: the share of the peak that a fused attention kernel reaches.
    kernel: seconds of the shortest kernel. dispatch: seconds of the host's work to launch one.
    link: the share of the links' bandwidth that NCCL's messages reach.
    p2p: the share of that again that a point-to-point send and receive within a node reaches;
    between nodes the network has its own share (network.KINDS).
    pace: seconds from one kernel to the next under a framework whose host keeps no lead over the
    card; 0 where it does, as this trainer's.
    """

    matmul: Mapping[str, float]
    vector: float
    attention: float
    kernel: float
    dispatch: float
    link: float
    p2p: float = 1.0
    pace: float = 0.0


@dataclass(frozen=True, eq=False)  # a card is itself; hashable
class Card:
    """One product.

    memory: bytes, as CUDA reports the total. bandwidth: of the memory, bytes/s. tflops: dense peaks
    by dtype in TFLOP/s, sums in fp32, no sparsity; "fp32" is without TF32, a 16-bit one is of the
    Tensor Cores; a dtype that is missing is one that the card lacks. sms: multiprocessors. nvlink:
    bytes/s per direction of all a card's NVLinks together, 0 where it has none. pcie: bytes/s per
    direction. peer: whether cards of a node reach each other's memory over PCIe (else messages pass
    through the host's). network: between nodes where nothing else is said, as network.parse reads
    it. node: the kind of node that it comes in, a key of net.nodes.NODES. context: bytes that CUDA,
    its libraries and their workspaces take of the memory.
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
