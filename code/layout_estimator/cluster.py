"""A modeled cluster, seen from one of its GPUs; no process runs on the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from minimegatron.device.virtual import VirtualDevice
from virtualgpu.core.card import Card
from virtualgpu.core.workspaces import sizes
from virtualgpu.net import collectives, nccl, network
from virtualgpu.net.collectives import CommunicationPath
from virtualgpu.net.group import VirtualGroup
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

    def path_between(self, first: int, second: int) -> CommunicationPath | None:
        """Return the path of collectives between two ranks; None if they are the same rank."""
        return None if first == second else self.topology.path((first, second))

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

    def send_seconds(self, source: int, target: int, size: int) -> float:
        """Return the modeled time, in seconds, of sending `size` bytes between two ranks."""
        return collectives.message(self.topology.p2p_path(source, target), size)


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
