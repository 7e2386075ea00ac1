"""The nodes that GPUs are sold in: NVLinks, PCIe switches, sockets, and adapters, as data.

A virtual node has the topology of the real node that its GPU model usually comes in, and its GPUs
are the first ones of that node. `nvidia-smi topo -m` prints it, and intranode.py computes its
bandwidths.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from virtualgpu.core.card import Card

# Bytes/s of a CPU's memory channels, with one DIMM per channel: channels x transfers x 8 bytes.
MEMORY = {
    # hothardware.com/reviews/intel-xeon-processor-e5-v4-family-debut-dual-e5-2697-v4-
    # with-72-threads-tested
    "broadwell": 4 * 2.4e9 * 8,
    # kingston.com/en/blog/servers-and-data-centers/purley
    "skylake": 6 * 2.666e9 * 8,
    # tomshardware.com/uk/news/amd-confirms-12-ddr5-memory-channels-on-genoa: 204.8 GB/s
    "rome": 8 * 3.2e9 * 8,
    # wwt.com/article/memory-population-guidelines-for-intel-4th-gen-xeon-scalable-processors
    "sapphire rapids": 8 * 4.8e9 * 8,
    # A preview of Intel's slides, kitguru.net/components/cpu/joao-silva/intel-xeon-emerald-rapids-
    # will-natively-support-ddr5-5600-memory-according-to-leak
    "emerald rapids": 8 * 5.6e9 * 8,
}

PIX, PXB, PHB, NODE, SYS = "PIX", "PXB", "PHB", "NODE", "SYS"  # as in nvidia-smi topo -m


class DeviceLocation(NamedTuple):
    """Location of a device in its node.

    Attributes:
        numa: the NUMA node of its CPUs.
        bridge: the PCIe host bridge, counted within the NUMA node.
        switch: the PCIe switch, counted within the host bridge; None if the device is directly
            below the bridge.
    """

    numa: int
    bridge: int = 0
    switch: int | None = None


@dataclass(frozen=True)
class NodeType:
    """One kind of node.

    Attributes:
        title: its name.
        slots: where its GPUs are plugged in, in the order that CUDA numbers them.
        adapters: where its InfiniBand adapters are plugged in.
        numa_nodes: number of NUMA nodes.
        nvlinks: NVLinks per GPU; 0 if it has none.
        mesh: NVLinks between each pair of GPUs, by their slots; None if all NVLinks lead to
            switches, through which any two GPUs reach each other at the full rate.
        below_switch: the path between two devices below the same PCIe switch, PIX or PXB.
        interconnect: bytes/s that NCCL expects in one direction between two sockets, and so
            between NUMA nodes.
        source: publication that these figures come from.
        memory_bandwidth: bytes/s of all memory channels of its CPUs together, at 8 bytes per
            transfer (see MEMORY).
    """

    title: str
    slots: tuple[DeviceLocation, ...]
    numa_nodes: int
    interconnect: float
    source: str
    adapters: tuple[DeviceLocation, ...] = ()
    nvlinks: int = 0
    mesh: Mapping[tuple[int, int], int] | None = None
    below_switch: str = PIX
    memory_bandwidth: float = 2 * MEMORY["skylake"]

    def location(self, slot: int) -> DeviceLocation:
        """Return where a GPU is plugged in.

        A Slurm job may have more ranks on a node than the node type has GPUs. Slots beyond the last
        are those of another node of the same type, and only the sockets' interconnect connects the
        two.
        """
        box, number = divmod(slot, len(self.slots))
        place = self.slots[number]
        return place._replace(numa=place.numa + box * self.numa_nodes)

    def links_between(self, one: int, other: int) -> int:
        """Return how many NVLinks connect the GPUs in two different slots."""
        box, number = divmod(min(one, other), len(self.slots))
        far, last = divmod(max(one, other), len(self.slots))
        if box != far:
            return 0
        return self.nvlinks if self.mesh is None else self.mesh.get((number, last), 0)

    def path(self, one: DeviceLocation, other: DeviceLocation) -> str:
        """Return how PCIe connects two devices: PIX, PXB, PHB, NODE or SYS."""
        if one.numa != other.numa:
            return SYS
        if one.bridge != other.bridge:
            return NODE
        same = one.switch is not None and one.switch == other.switch
        return self.below_switch if same else PHB


# GPU pairs of the hybrid cube mesh. Each quad is fully connected, and each GPU has one neighbor in
# the other quad: 16 pairs, half of them with two NVLinks.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (1, 2): 2, (1, 3): 1, (2, 3): 2,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
    (0, 4): 2, (1, 5): 2, (2, 6): 1, (3, 7): 1}

# By the name that a GPU model's `node` has. Rates between sockets are those that NCCL's search
# assumes (github.com/NVIDIA/nccl, src/graph/topo.h): 6 GB/s on Broadwell, 10 on Skylake, 16 on AMD,
# 22 on Sapphire Rapids.
SWITCHES = NodeType(
    title="two sockets, each with two PCIe switches of two GPUs",
    slots=tuple(DeviceLocation(gpu // 4, gpu // 2, 0) for gpu in range(8)),
    numa_nodes=2, interconnect=10e9,
    source="assumed: as in common 8-GPU servers, with Skylake CPUs")
NODES: dict[str, NodeType] = {
    "dgx-1": NodeType(
        title="DGX-1 with V100",
        slots=tuple(DeviceLocation(gpu // 4, 0, gpu // 2 % 2) for gpu in range(8)),
        adapters=tuple(DeviceLocation(nic // 2, 0, nic % 2) for nic in range(4)),
        numa_nodes=2, interconnect=6e9, nvlinks=6, mesh=CUBE_MESH,
        memory_bandwidth=2 * MEMORY["broadwell"],  # two Xeon E5-2698 v4
        source="NVIDIA DGX-1 With Tesla V100 System Architecture, WP-08437-002, 2017; the count of "
               "each pair as NCCL detects it in github.com/NVIDIA/nccl issue 671"),
    "dgx-a100": NodeType(
        title="DGX A100",
        slots=tuple(DeviceLocation(numa, 0, 0) for numa in (3, 3, 1, 1, 7, 7, 5, 5)),
        adapters=tuple(DeviceLocation(numa, 0, 0) for numa in (3, 3, 1, 1, 7, 7, 5, 5)),
        numa_nodes=8, interconnect=16e9, nvlinks=12, below_switch=PXB,
        memory_bandwidth=2 * MEMORY["rome"],  # two EPYC 7742
        source="nvidia-smi topo -m of a DGX A100, github.com/NVIDIA/nccl issue 1505"),
    "dgx-h100": NodeType(
        title="DGX H100",
        slots=tuple(DeviceLocation(gpu // 4, gpu, 0) for gpu in range(8)),
        adapters=tuple(DeviceLocation(nic // 4, nic, 0) for nic in range(8)),
        numa_nodes=2, interconnect=22e9, nvlinks=18, below_switch=PXB,
        memory_bandwidth=2 * MEMORY["sapphire rapids"],  # two Xeon 8480C
        source="nvidia-smi topo -m of a DGX H100, github.com/vllm-project/vllm issue 13855"),
    "dgx-b200": NodeType(
        title="DGX B200",
        slots=tuple(DeviceLocation(gpu // 4, gpu, 0) for gpu in range(8)),
        adapters=tuple(DeviceLocation(nic // 4, nic, 0) for nic in range(8)),
        numa_nodes=2, interconnect=22e9, nvlinks=18, below_switch=PXB,
        memory_bandwidth=2 * MEMORY["emerald rapids"],  # two Xeon 8570
        source="NVIDIA DGX B200 data sheet: 8 GPUs, two Xeon 8570, 8 ConnectX-7; PCIe assumed as "
               "in a DGX H100"),
    "pcie-switches": SWITCHES,
    "pcie-switches-2023": replace(
        SWITCHES, interconnect=22e9,
        memory_bandwidth=2 * MEMORY["sapphire rapids"],
        source="assumed: as in common 8-GPU servers, with Sapphire Rapids CPUs"),
    "pcie": NodeType(
        title="two sockets, each with four GPUs on PCIe ports of their own",
        slots=tuple(DeviceLocation(gpu // 4, gpu) for gpu in range(8)),
        numa_nodes=2, interconnect=10e9,
        source="assumed: as in common servers without PCIe switches, with Skylake CPUs"),
    "workstation": NodeType(
        title="a workstation with one socket",
        slots=(DeviceLocation(0),) * 8,
        numa_nodes=1, interconnect=16e9,
        source="nvidia-smi topo -m of a workstation with two RTX 5090, github.com/noonghunna/"
               "club-3090 issue 1229; assumed for an RTX 3090"),
}


# Per element, AdamW reads a gradient, a weight, and two moments, and writes all but the gradient,
# and a weight of 16 bits. The share of the memory bandwidth that it reaches is assumed;
# docs/virtual-gpus.md compares it with a benchmark.
ADAM_BYTES, ADAM_SHARE = 4 * 4 + 3 * 4 + 2, 0.5


def adam_seconds(card: Card, elements: int) -> float:
    """Return the time of AdamW on the host, in seconds; the node's GPUs share its bandwidth.

    Args:
        card: GPU model of the node.
        elements: parameters that one GPU's rank updates.
    """
    node = NODES[card.node]
    return elements * ADAM_BYTES / (ADAM_SHARE * node.memory_bandwidth / len(node.slots))


def max_gpus(card: Card) -> tuple[int, str]:
    """Return how many GPUs the node type of a GPU model has, and a sentence with that number."""
    node = NODES[card.node]
    count = len(node.slots)
    return count, f"a node with {card.name} GPUs ({node.title}) has {count}"


@lru_cache(maxsize=1024)
def rings(name: str, slots: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return rings over NVLinks through GPUs of one node, as many as fit.

    A ring passes every GPU once, and no two rings use the same direction of the same NVLink. So six
    rings pass all 8 GPUs of a DGX-1, one passes two GPUs that share one NVLink, and none passes
    GPUs 0, 1 and 6.

    Args:
        name: a key of NODES.
        slots: slots of two or more GPUs.
    """
    node, starting = NODES[name], sorted(slots)
    if starting[0] // len(node.slots) != starting[-1] // len(node.slots):
        return ()
    if node.mesh is None:
        return (tuple(starting),) * node.nvlinks
    cycles = list(_cycles(node, starting))
    steps = [[(ring[at - 1], ring[at]) for at in range(len(ring))] for ring in cycles]
    free = {(one, other): node.links_between(one, other)
            for one in slots for other in slots if one != other}
    best: list[int] = []

    def add(chosen: list[int]) -> None:
        nonlocal best
        if len(chosen) > len(best):
            best = chosen
        # The GPU with the fewest free NVLinks bounds the rings that could be added.
        remaining = min(sum(free[one, other] for other in slots if other != one) for one in slots)
        if len(chosen) + remaining <= len(best):
            return
        for index in range(chosen[-1] if chosen else 0, len(cycles)):
            if all(free[step] for step in steps[index]):
                for step in steps[index]:
                    free[step] -= 1
                add([*chosen, index])
                for step in steps[index]:
                    free[step] += 1

    add([])
    return tuple(cycles[index] for index in best)


def _cycles(node: NodeType, slots: list[int]) -> list[tuple[int, ...]]:
    """Return every Hamiltonian cycle over NVLinks from the first GPU, in both directions."""
    paths = [(slots[0],)]
    for _ in slots[1:]:
        paths = [(*path, slot) for path in paths for slot in slots
                 if slot not in path and node.links_between(path[-1], slot)]
    return [path for path in paths
            if all(node.links_between(*pair) for pair in pairwise((*path, path[0])))]
