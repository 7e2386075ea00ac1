"""The time of a collective: rings and trees over the links that it uses.

A ring of n ranks moves S bytes per rank in n - 1 steps of S/n. An all-reduce takes twice as many
steps, so each link carries 2 (n-1)/n S (Patarasuk & Yuan 2009). A double binary tree moves 2 S per
rank and needs log2(n) steps between nodes (Sanders et al. 2009; NCCL since 2.4). NCCL chooses the
algorithm that it expects to be faster, and so does this model.

On two nodes, NCCL's trees can do better than this model: each of the two sends its half of the
tensor up to the other node once and down once, so only S passes a node's adapters in each direction
instead of the ring's 2 (n-1)/n S (github.com/NVIDIA/nccl issues 812 and 946; src/graph/search.cc
looks for trees whose links within a node are up to twice as fast as the network, and
src/graph/tuning.cc counts those, `nNodes <= 2 ? bwIntra : bwInter`). It is not modeled: the only
measured step on two nodes that we compare with, on V100s and sockets, takes 0.54 s, of which half
is communication. A ring predicts 0.50 s, and such a tree 0.43 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

LAUNCH = 12e-6  # seconds until the first byte leaves: the kernel starts, and all peers are ready
BARRIER = 4  # bytes that a barrier all-reduces
RING, TREE = "ring", "tree"


@dataclass(frozen=True)
class CommunicationPath:
    """The links between the ranks of a group.

    Attributes:
        size: number of ranks.
        nodes: number of nodes they are on.
        bandwidth: bytes/s of all the group's rings together, at their slowest link.
        near: latency of a hop within a node, in seconds.
        far: latency of a hop between nodes, in seconds.
        adapters: number of each node's adapters that the group uses.
        port: bytes/s that a rank can send to all others in total; None for `bandwidth`.
        pair: lowest bytes/s between any two ranks of a node; None for `bandwidth`.
    """

    size: int
    nodes: int
    bandwidth: float
    near: float
    far: float
    adapters: int = 1
    port: float | None = None
    pair: float | None = None

    @property
    def round(self) -> float:
        """Latency of one trip around the ring, in seconds."""
        internode_hops = self.nodes if self.nodes > 1 else 0
        return (self.size - internode_hops) * self.near + internode_hops * self.far


def ring(path: CommunicationPath, size: int, rounds: int) -> float:
    """Return the time of a ring algorithm, in seconds.

    Args:
        path: the path between the ranks.
        size: bytes of the whole buffer.
        rounds: trips around the ring: 2 for an all-reduce, otherwise 1.
    """
    steps = (path.size - 1) / path.size
    return LAUNCH + rounds * (steps * size / path.bandwidth + steps * path.round)


def tree(path: CommunicationPath, size: int) -> float:
    """Return the time of an all-reduce up and down a tree, in seconds.

    Args:
        path: the path between the ranks.
        size: bytes of the tensor on each rank.
    """
    local = path.size / path.nodes
    depth = (path.nodes - 1).bit_length()
    return LAUNCH + 2 * (size / path.bandwidth + (local - 1) * path.near + depth * path.far)


def algorithm(path: CommunicationPath, size: int) -> str:
    """Return the algorithm of an all-reduce, RING or TREE: the one that takes less time.

    Args:
        path: the path between the ranks.
        size: bytes of the tensor on each rank.
    """
    return TREE if path.nodes > 1 and tree(path, size) < ring(path, size, 2) else RING


def all_reduce(path: CommunicationPath, size: int) -> float:
    """Return the time of an all-reduce, in seconds.

    Args:
        path: the path between the ranks.
        size: bytes of the tensor on each rank.
    """
    return tree(path, size) if algorithm(path, size) == TREE else ring(path, size, 2)


def all_gather(path: CommunicationPath, size: int) -> float:
    """Return the time of an all-gather or a reduce-scatter, in seconds.

    Args:
        path: the path between the ranks.
        size: bytes of the gathered output, or of the reduce-scatter's input.
    """
    return ring(path, size, 1)


def broadcast(path: CommunicationPath, size: int) -> float:
    """Return the time of a broadcast along a chain of all ranks, in seconds.

    Args:
        path: the path between the ranks.
        size: bytes of the tensor.
    """
    latency = (path.size - path.nodes) * path.near + (path.nodes - 1) * path.far
    return LAUNCH + size / path.bandwidth + latency


def reduce(path: CommunicationPath, size: int) -> float:
    """Return the time, in seconds, of a reduce of `size` bytes per rank to one rank.

    NCCL passes partial sums along a chain that ends at the root, as a broadcast does the other way
    around: every link carries all bytes once (nccl-tests, PERFORMANCE.md: the bus bandwidth of
    reduce and broadcast is the algorithm bandwidth).
    """
    return broadcast(path, size)


def gather(path: CommunicationPath, size: int) -> float:
    """Return the time of a gather, or of a scatter in the other direction, in seconds.

    torch.distributed implements both on NCCL as one group of sends and receives
    (torch/csrc/cuda/nccl.cpp, `gather` and `scatter`): everything passes the link of the root at
    once, so only one hop's latency counts.

    Args:
        path: the path between the ranks.
        size: bytes at the root, of all ranks together.
    """
    return LAUNCH + _sends(path, size, (path.size - 1) / path.size) + _hop(path)


def all_to_all(path: CommunicationPath, size: int) -> float:
    """Return the time of an all-to-all, in seconds.

    NCCL sends and receives all parts at once: a rank's link carries (n-1)/n of its bytes
    (nccl-tests, PERFORMANCE.md). Between nodes, the ranks of a node share its adapters, which carry
    everything that leaves the node; `path.bandwidth` is then the group's share of them. Within a
    node, the time is a lower bound, because sends that share a link are not modeled.

    Args:
        path: the path between the ranks.
        size: bytes that the busiest rank sends, or receives, including its own part.
    """
    if path.size == 1:
        return LAUNCH
    local = path.size / path.nodes
    leaving = local * (path.size - local) / path.size if path.nodes > 1 else 0.0
    passing = max(leaving, (path.size - 1) / path.size)
    return LAUNCH + _sends(path, size, passing) + _hop(path)


def _sends(path: CommunicationPath, size: int, passing: float) -> float:
    """Return the time of sends between many pairs at once, without latency, in seconds.

    A send between two GPUs of a node uses the links of that pair, and all sends of a rank together
    use that rank's. Real sends also share links: those relayed by a third GPU, below the same PCIe
    switch, or between sockets.

    Args:
        path: the path between the ranks.
        size: bytes that the busiest rank sends or receives, including its own part.
        passing: the share of `size` that passes the busiest port.
    """
    return max(passing * size / (path.port or path.bandwidth),
               size / path.size / (path.pair or path.bandwidth))


def _hop(path: CommunicationPath) -> float:
    return path.far if path.nodes > 1 else path.near


def message(path: CommunicationPath, size: int) -> float:
    """Return the time of a point-to-point send, in seconds.

    Args:
        path: the path between the two ranks.
        size: bytes of the tensor.
    """
    return LAUNCH + size / path.bandwidth + _hop(path)


def barrier(path: CommunicationPath, size: int) -> float:
    """Return the time of a barrier, in seconds: that of an all-reduce of a few bytes."""
    return all_reduce(path, BARRIER)


class BufferSizes(NamedTuple):
    """The bytes of a collective's buffers.

    Attributes:
        given: this rank's input.
        taken: this rank's output.
        all_given: the inputs of all ranks together.
        all_taken: the outputs of all ranks together.
        most: the largest input or output of any rank.
    """

    given: int
    taken: int
    all_given: int
    all_taken: int
    most: int


# The function that prices each collective, and the field of Volume that it takes.
COSTS: dict[str, tuple[Callable[[CommunicationPath, int], float], str]] = {
    "all_reduce": (all_reduce, "given"), "reduce": (reduce, "given"),
    "broadcast": (broadcast, "given"), "all_gather": (all_gather, "taken"),
    "reduce_scatter": (all_gather, "given"), "gather": (gather, "all_given"),
    "scatter": (gather, "all_taken"), "all_to_all": (all_to_all, "most"),
    "barrier": (barrier, "given")}


def seconds(name: str, path: CommunicationPath, sizes: BufferSizes) -> float:
    """Return the time of a collective once all ranks are ready, in seconds.

    Args:
        name: a key of COSTS.
        path: the path between the ranks.
    """
    cost, field = COSTS[name]
    return cost(path, getattr(sizes, field))
