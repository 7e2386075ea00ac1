"""A modeled cluster, seen from one of its GPUs; no process runs on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import takewhile

from minimegatron.device.virtual import VirtualDevice
from virtualgpu.core.card import Card
from virtualgpu.core.workspaces import sizes
from virtualgpu.net import collectives, nccl, network
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.group import VirtualGroup
from virtualgpu.net.nodes import NODES
from virtualgpu.net.topology import Topology


class ModeledCluster:
    """The GPUs of a cluster, and the time and memory that communication between them takes.

    Attributes:
        device: the virtual GPU that all modeled ranks with its GPU model use in turn.
        topology: the GPUs and links of all ranks.
        replicas_differ: whether data-parallel ranks may differ in their GPUs or links, so that
            their collectives end when the slowest of them is ready.
    """

    def __init__(self, device: VirtualDevice, topology: Topology, replicas_differ: bool) -> None:
        self.device, self.topology, self.replicas_differ = device, topology, replicas_differ

    def communicator(self, ranks: Sequence[int], index: int) -> VirtualGroup:
        """Return a communicator whose other ranks reach each collective when this one does.

        Args:
            ranks: its ranks in the cluster.
            index: this rank's place among them.
        """
        return VirtualGroup(self.device.gpu, self.topology, list(ranks), index)

    @property
    def links_are_equal(self) -> bool:
        """Whether every two GPUs of a node have the same link, through NVSwitches."""
        card = self.device.gpu.card
        return card.nvlink > 0 and NODES[card.node].mesh is None

    def alike(self, rank: int, count: int) -> range:
        """Return the ranks that a rank represents: up to `count` of its node, itself first."""
        nodes = self.topology.nodes
        same = takewhile(lambda other: nodes[other] == nodes[rank], range(rank, rank + count))
        return range(rank, rank + len([*same]))

    def slowest(self, groups: Sequence[Sequence[int]]) -> Sequence[int]:
        """Return the group with the slowest path, of groups that do the same work at the same time.

        The others wait for its ranks sooner or later. In a DGX-1, GPUs 2 and 6 share one NVLink,
        and GPUs 0 and 4 two. Groups with one rank per node all have the same path.
        """
        nodes = {self.topology.nodes[rank] for rank in groups[0]}
        if self.links_are_equal or len(nodes) == len(groups[0]):
            return groups[0]
        return min(groups, key=lambda ranks: speed(self.topology.path(ranks)))

    def buffer_bytes(self, ranks: Sequence[int]) -> int:
        """Return the GPU memory that a communicator of `ranks` takes once it is used, in bytes."""
        if len(ranks) == 1:
            return 0
        return nccl.buffer_bytes(self.device.gpu.card, self.topology.path(ranks))

    def workspace_bytes(self, fp8: bool) -> int:
        """Return the size of cuBLAS's workspaces on a rank, where PyTorch allocates them.

        Args:
            fp8: whether GEMMs are in FP8, which cuBLASLt runs in the backward pass, too.
        """
        card = self.device.gpu.card
        forward, backward = sizes(card, fused=True), sizes(card, fused=fp8)
        modern = card.architecture in ("hopper", "blackwell")
        return sum(forward + backward) if modern else 0

    def send_seconds(self, source: int, target: int, size: int, count: int = 1) -> float:
        """Return the modeled time, in seconds, of sending `size` bytes between two ranks.

        Args:
            source: the rank that sends.
            target: the rank that receives.
            size: bytes of the tensor.
            count: ranks from `source` on that send as much at the same time, each to the rank as
                far from `target`; the slowest of those on its node counts.
        """
        nodes = self.topology.nodes
        senders = self.alike(source, count) if nodes[source] == nodes[target] else (source,)
        return max(collectives.message(
            self.topology.p2p_path(sender, target + sender - source), size) for sender in senders)


def speed(path: CommunicationPath) -> tuple[float, ...]:
    """Return a key that sorts paths of equally many ranks: slow ones come first."""
    return (path.bandwidth, path.port or path.bandwidth, path.pair or path.bandwidth, -path.round)


@contextmanager
def modeled_cluster(card: Card, link: str | None, world_size: int, per_node: int,
                    fragments: bool = False) -> Iterator[ModeledCluster]:
    """Create a cluster of equal nodes whose virtual GPU is active inside the block.

    Args:
        card: the GPU model.
        link: the network between nodes, as for --virtual-network; None for the one that nodes with
            these GPUs have.
        world_size: the number of ranks.
        per_node: GPUs per node.
        fragments: see modeled_gpu.
    """
    nodes = tuple(str(rank // per_node) for rank in range(world_size))
    topology = Topology(nodes, (card,) * world_size, network.parse(link or card.network))
    with modeled_gpu(card, topology, fragments=fragments) as cluster:
        yield cluster


@contextmanager
def modeled_gpu(card: Card, topology: Topology, replicas_differ: bool = False,
                fragments: bool = False) -> Iterator[ModeledCluster]:
    """Create the part of a cluster that has one GPU model; its virtual GPU is active inside.

    Args:
        card: the GPU model.
        topology: the whole cluster's GPUs and links.
        replicas_differ: see ModeledCluster.
        fragments: whether the GPU's memory fragments as PyTorch's does. By default, a pass needs
            the same memory whatever ran before it, so that layers add up.
    """
    with ExitStack() as stack:
        device = VirtualDevice(card, None)
        stack.push(device.gpu)  # the device's constructor activated it
        if not fragments:
            device.gpu.memory.split_always()
            device.gpu.workspaces = None  # workspace_bytes counts them once per rank, not per pass
        yield ModeledCluster(device, topology, replicas_differ)
